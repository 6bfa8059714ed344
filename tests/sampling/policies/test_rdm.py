"""DPLM's sampler: the numbers it hides, and its loop written plainly."""

import pytest
import torch

from exact import TableWorld
from unmask.errors import UserError
from unmask.sampling.logits import LogitOptions
from unmask.sampling.masked import fill
from unmask.sampling.policies.rdm import Rdm
from unmask.text.prompt.canvas import of_tokens

MASK, LENGTH = 9, 12


def network(x_t, sigma, rows):
    """Logits that depend on all tokens of a row."""
    table = torch.randn(LENGTH, 10, LENGTH, 10, generator=torch.Generator().manual_seed(2))
    parts = torch.stack([table[i, x_t[:, i]] for i in range(x_t.shape[1])]).sum(0)  # (b, l, v)
    return parts.flatten(0, 1)[rows]


def plain(row, total):
    """Draw all blanks, then hide the floor(n (1 - i/T)) least likely of the n drawn tokens again."""
    free = row == MASK
    written = torch.zeros(LENGTH)
    for step in range(1, total + 1):
        blank = (row == MASK).nonzero().squeeze(1)
        logits = network(row[None], None, torch.arange(LENGTH)).index_fill(-1, torch.tensor([MASK]), -torch.inf)
        best, token = logits.log_softmax(-1).max(-1)
        row, written = row.clone(), written.clone()
        row[blank], written[blank] = token[blank], best[blank]
        count = int(free.sum()) * (total - step) // total
        order = sorted(free.nonzero().squeeze(1).tolist(), key=lambda i: (float(written[i]), i))
        row[order[:count]] = MASK
    return row


@pytest.mark.parametrize("total", [1, 4, 30])
def test_it_is_its_loop(total):
    tokens = torch.tensor([3, 4, *[MASK] * (LENGTH - 2)])
    *_, end = fill(network, of_tokens(tokens[None], mask=MASK), Rdm(total), options=LogitOptions(temperature=0.0))
    assert torch.equal(end.canvas.tokens[0], plain(tokens, total))


def test_a_token_that_was_set_may_be_hidden_and_drawn_again():
    hidden, again, before = [], False, None
    for step in fill(network, of_tokens(torch.full((8, LENGTH), MASK), mask=MASK), Rdm(6), seed=1):
        now = step.canvas.hidden
        hidden.append(int(now[0].sum()))
        again = again or (before is not None and bool((now & ~before).any()))
        before = now
    assert hidden == [10, 8, 6, 4, 2, 0]
    assert again
    assert Rdm(6).law == "approximate (6 steps, unlikely tokens hidden again)"
    with pytest.raises(UserError, match="at least 1"):
        Rdm(0)


def test_one_step_is_a_draw_of_every_blank_by_itself():
    world = TableWorld.random()
    *_, end = fill(world.network, of_tokens(torch.full((5, 3), 3), mask=3), Rdm(1), seed=3)
    assert end.call == 1
    assert not end.canvas.hidden.any()
