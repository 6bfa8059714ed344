"""A row read block by block with its cache gives what one pass over everything gives."""

import pytest
import torch

from model.passes.test_doubled import every, golden_network, random_network
from unmask.model.key_values import KeyValues
from unmask.model.passes.pieces import BlockRule, piece
from unmask.model.passes.together import run_together
from unmask.model.passes.whole import logits_at
from unmask.model.passing import Empty


def pieces(network, clean, noisy, memories, first, size, window=10**6):
    stop, rule = min(first + size, clean.shape[1]), BlockRule(size, window, network.spec.before)
    return [
        piece(
            rule,
            torch.cat([clean[r, memory.filled : first], noisy[r, first:stop]]),
            memory,
            first=first,
            wanted=torch.arange(stop - first),
            lead=int(clean[r, first - 1]) if first else None,
        )
        for r, memory in enumerate(memories)
    ]


def read_blocks(network, passes):
    states = run_together(network, passes)
    return torch.cat([one.hidden for one in states]), [one.memory for one in states]


@torch.no_grad()
def by_cache(network, clean, noisy, size, window=10**6, keep=lambda first: True):
    memories, found = [Empty() for _ in clean], []
    for first in range(0, clean.shape[1], size):
        hidden, after = read_blocks(network, pieces(network, clean, noisy, memories, first, size, window))
        found.append(network.head(hidden).view(len(clean), -1, network.spec.vocab))
        if keep(first):
            memories = after
    return torch.cat(found, 1)


@pytest.mark.slow
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("size", [1, 3, 4, 5, 12])
def test_reading_block_by_block_is_the_pass_over_both_halves(before, size):
    network = random_network(before=before)
    clean, noisy = torch.randint(6, (2, 12)), torch.randint(6, (2, 12))
    noisy[:, ::size] = 6
    with torch.no_grad():
        told = logits_at(network, noisy, None, every(noisy), clean=clean, size=size).view(2, 12, -1)
    torch.testing.assert_close(by_cache(network, clean, noisy, size), told, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("window", [6, 7, 9])
def test_with_a_window_too_what_is_kept_is_what_would_be_read_again(before, window):
    network = random_network(before=before)
    clean, noisy = torch.randint(6, (2, 40)), torch.randint(6, (2, 40))
    told = by_cache(network, clean, noisy, 3, window, keep=lambda first: False)
    torch.testing.assert_close(by_cache(network, clean, noisy, 3, window), told, rtol=1e-9, atol=1e-9)
    lagging = by_cache(network, clean, noisy, 3, window, keep=lambda first: first % 4 == 0)
    torch.testing.assert_close(lagging, told, rtol=1e-9, atol=1e-9)
    assert (by_cache(network, clean, noisy, 3) - told).abs()[:, window:].max() > 1e-3, "the window changes something"


@pytest.mark.slow
def test_the_cache_keeps_no_more_than_the_window_needs():
    network = random_network(before=True)
    clean = torch.randint(6, (1, 200))
    memories = [Empty()]
    for first in range(0, 200, 4):
        with torch.no_grad():
            _, memories = read_blocks(network, pieces(network, clean, clean, memories, first, 4, window=12))
    (cache,) = memories
    assert isinstance(cache, KeyValues)
    assert cache.filled == 196
    assert cache.room <= 40


@pytest.mark.slow
def test_rows_at_different_blocks_share_a_pass():
    network = random_network(before=True)
    clean, noisy = torch.randint(6, (3, 12)), torch.randint(6, (3, 12))
    one = pieces(network, clean, noisy, [Empty()] * 3, 3, 3)[0]
    two = pieces(network, clean, noisy, [Empty()] * 3, 9, 3)[1]
    with torch.no_grad():
        together, memories = read_blocks(network, [one, two])
        alone = torch.cat([read_blocks(network, [single])[0] for single in (one, two)])
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-9)
    assert [memory.filled for memory in memories] == [3, 9]


@pytest.mark.slow
def test_a_frozen_network_gives_the_same():
    network = golden_network()
    clean, noisy = torch.randint(97, (2, 24)), torch.randint(97, (2, 24))
    told = by_cache(network, clean, noisy, 4)
    torch.testing.assert_close(by_cache(network.freeze(), clean, noisy, 4), told, rtol=1e-4, atol=1e-4)
