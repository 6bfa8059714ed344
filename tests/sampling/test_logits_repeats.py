"""No run of tokens twice: against a search through every run, in any order of drawing, and for every text model."""

from itertools import pairwise

import pytest
import torch

import unmask
from sampling.laws import last
from unmask.errors import UserError
from unmask.sampling.logits import LogitOptions, repeats
from unmask.sampling.masked import fill
from unmask.sampling.policies.confidence import Leftmost, Ordered
from unmask.sampling.policies.planned import FirstHitting
from unmask.sampling.recipe import Recipe, method_for
from unmask.text.prompt.canvas import blank

MASK, UNTOLD = 4, 3  # 0..2 are text


def searched(tokens, size):
    """Every (flat position, token) whose token would repeat an n-gram of its row, by trying each."""
    found = set()
    for b, row in enumerate(tokens.tolist()):
        runs = [tuple(row[i : i + size]) for i in range(len(row) - size + 1)]
        whole = [run for run in runs if MASK not in run and UNTOLD not in run]
        for i, token in enumerate(row):
            if token != MASK:
                continue
            for new in range(3):
                after = [*row[:i], new, *row[i + 1 :]]
                made = [tuple(after[j : j + size]) for j in range(max(0, i - size + 1), min(i, len(row) - size) + 1)]
                if any(run in whole for run in made):
                    found.add((b * len(row) + i, new))
    return found


@pytest.mark.parametrize("size", [2, 3, 4, 12])
@pytest.mark.parametrize("hide", [0.1, 0.5])
def test_what_would_repeat_a_run_is_what_a_search_finds(size, hide):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 4, (300, 12), generator=generator)
    tokens[torch.rand(300, 12, generator=generator) < hide] = MASK
    rows = (tokens == MASK).flatten().nonzero().squeeze(-1)
    which, token = repeats(tokens, rows, tokens < UNTOLD, size)
    found = set(zip(rows[which].tolist(), token.tolist(), strict=True))
    assert found == searched(tokens, size)
    assert bool(found) == (size < 12)


@pytest.mark.parametrize("policy", [FirstHitting(), Leftmost(), Ordered("entropy")], ids=str)
def test_no_run_of_a_text_stands_twice(policy):
    def network(x_t, sigma, rows):
        return torch.tensor([4.0, 4.0, *[0.0] * 38, 0.0], dtype=torch.float64).repeat(len(rows), 1)

    def twice(options):
        tokens = last(fill(network, blank(50, 16, mask=40), policy, options=options)).canvas.tokens
        # A token between two of its kind makes two equal pairs at once, and neither stood before.
        pairs = [[pair for pair in pairwise(row) if len(set(pair)) == 2] for row in tokens.tolist()]
        return sum(len(row) - len(set(row)) for row in pairs)

    assert twice(LogitOptions()) > 50
    assert twice(LogitOptions(no_repeat=2)) == 0
    assert twice(LogitOptions(no_repeat=2, repeatable=(0, 1))) > 50


def test_a_model_of_text_may_be_asked_for_it_and_padding_does_not_count(model):
    (one,) = unmask.sample(model, no_repeat=2, seed=1, length=12)
    assert "no-repeat 2" in one.law
    told = unmask.sample(model, n=30, seed=1, no_repeat=2, length=12)
    silent = model.tokenizer.specials
    assert set(method_for(model, Recipe(no_repeat=2)).options.repeatable) == silent
    for tokens in (one.tokens for one in told):
        pairs = [pair for pair in pairwise(tokens) if len(set(pair)) == 2 and not silent.intersection(pair)]
        assert len(set(pairs)) == len(pairs)


def test_a_run_of_one_token_is_refused():
    with pytest.raises(UserError, match="at least two tokens; saw 1"):
        LogitOptions(no_repeat=1)
