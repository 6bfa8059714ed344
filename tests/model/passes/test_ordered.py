"""Passes in any order: nothing leaks from what is read later, and reading in pieces changes nothing."""

from functools import partial

import pytest
import torch

from diffusion.test_block_exact import small_network
from model.passes.test_doubled import random_network
from unmask.errors import UserError
from unmask.model.passes.ordered import check_ordered, unread
from unmask.model.passes.whole import logits_at
from unmask.model.passing import Empty

MASK = 6


def some_rows(b=3, l=7):
    generator = torch.Generator().manual_seed(1)
    clean = torch.randint(0, MASK, (b, l), generator=generator)
    return clean, torch.rand(b, l, generator=generator).argsort(1).argsort(1)


def all_logits(network, clean, rank, **options):
    rows = torch.arange(clean.numel())
    asked = torch.full_like(clean, MASK)
    with torch.no_grad():
        logits = logits_at(network, asked, torch.zeros(len(clean)), rows, clean=clean, rank=rank, **options)
    return logits.view(*clean.shape, -1)


def test_a_prediction_depends_on_the_tokens_read_before_and_on_nothing_else():
    network = random_network(before=False)
    clean, rank = some_rows()
    before = all_logits(network, clean, rank)
    for position in range(clean.shape[1]):
        changed = clean.clone()
        changed[:, position] = (changed[:, position] + 1) % MASK
        moved = (all_logits(network, changed, rank) - before).abs().amax(-1)
        later = rank > rank[:, position, None]
        assert float(moved[~later].max()) == 0.0, "its own token, or one that is read later, is seen"
        assert bool((moved[later] > 0).all())


def test_reading_token_by_token_with_a_memory_gives_the_predictions_of_one_pass():
    network = random_network(before=False)
    clean, rank = some_rows()
    together = all_logits(network, clean, rank)
    for row, order, expected in zip(clean, rank.argsort(1), together, strict=True):
        memory, read = Empty(20), 0
        for position in order:
            new = order[read : int((order == position).nonzero())]
            with torch.no_grad():
                states = network.run(unread(row[new], new, position[None], memory, mask=MASK))
                logits = network.head(states.hidden)[0]
            memory, read = states.memory, read + len(new)
            assert float((logits - expected[position]).abs().max()) < 1e-5


def test_several_questions_at_once_do_not_see_each_other():
    network = random_network(before=False)
    row, places = torch.tensor([1, 2, 3]), torch.tensor([4, 0, 2])
    ask = partial(unread, row, places, mask=MASK)
    with torch.no_grad():
        three = network.run(ask(torch.tensor([1, 3, 5]), Empty(20))).hidden
        one = [network.run(ask(torch.tensor([i]), Empty(20))).hidden[0] for i in (1, 3, 5)]
    assert float((three - torch.stack(one)).abs().max()) < 1e-6


def test_padding_is_not_seen():
    network = random_network(before=False)
    clean, rank = some_rows()
    short = all_logits(network, clean[:, :5], rank[:, :5].argsort(1).argsort(1))
    padded = all_logits(network, clean, rank, lengths=torch.tensor([5, 5, 5]))
    assert float((short - padded[:, :5]).abs().max()) < 1e-5
    assert bool(padded[:, :5].isfinite().all())


def test_networks_that_cannot_are_refused():
    check_ordered(small_network(before=False).spec)
    with pytest.raises(UserError, match="cannot read in any order"):
        check_ordered(small_network(before=True).spec)
