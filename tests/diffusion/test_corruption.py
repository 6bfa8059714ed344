"""Hiding tokens: the right share, the right number, never a frozen one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unmask.diffusion.corruption import check_clean, hide, hide_count
from unmask.diffusion.schedule import LogLinear
from unmask.errors import UserError

MASK = 9


def test_tokens_are_hidden_where_the_reference_hides_them(golden):
    hidden = LogLinear().at(golden["t"]).hidden
    x_t = hide(golden["x0"], hidden, golden["qxt_u"], mask=int(golden["mask_index"]))
    assert torch.equal(x_t, golden["qxt_xt"])


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 8), st.floats(0, 1))
def test_frozen_tokens_stay_and_the_rest_is_a_token_or_the_mask(seed, b, l, share):
    generator = torch.Generator().manual_seed(seed)
    x0 = torch.randint(0, MASK, (b, l), generator=generator)
    frozen = torch.rand(b, l, generator=generator) < 0.4
    u = torch.rand(b, l, generator=generator)
    by_share = hide(x0, torch.full((b,), share), u, mask=MASK, frozen=frozen)
    k = ((~frozen).sum(1) * share).long()
    by_count = hide_count(x0, k, u, mask=MASK, frozen=frozen)
    for x_t in (by_share, by_count):
        assert torch.equal(x_t[frozen], x0[frozen])
        assert ((x_t == x0) | (x_t == MASK)).all()
    assert torch.equal((by_count == MASK).sum(1), k)


def test_every_set_of_k_positions_is_equally_likely(generator):
    n = 60_000
    x0, u = torch.zeros(n, 4, dtype=torch.long), torch.rand(n, 4, generator=generator)
    x_t = hide_count(x0, torch.full((n,), 2), u, mask=MASK)
    sets = ((x_t == MASK) * torch.tensor([1, 2, 4, 8])).sum(1).bincount(minlength=16)
    seen = sets[sets > 0]
    assert len(seen) == 6
    assert ((seen - n / 6).abs() < 5 * (n / 6 * 5 / 6) ** 0.5).all()


def test_all_or_nothing_can_be_hidden():
    x0, u = torch.zeros(1, 3, dtype=torch.long), torch.tensor([[0.0, 0.5, 0.999]])
    assert (hide(x0, torch.tensor([1.0]), u, mask=MASK) == MASK).all()
    assert (hide(x0, torch.tensor([0.0]), u, mask=MASK) == x0).all()
    assert (hide_count(x0, torch.tensor([3]), u, mask=MASK) == MASK).all()


@pytest.mark.parametrize(
    "x0, says",
    [
        (torch.zeros(0, 3, dtype=torch.long), "empty batch"),
        (torch.tensor([[1, MASK, 2]]), "mask id 9 at row 0, position 1"),
        (torch.tensor([[1, 12, 2]]), "token id 12 is outside the vocabulary"),
        (torch.tensor([[1, -1, 2]]), "token id -1"),
    ],
)
def test_text_that_is_not_clean_is_refused(x0, says):
    with pytest.raises(UserError, match=says):
        check_clean(x0, mask=MASK, vocab=10)


def test_more_masks_than_free_positions_are_refused():
    with pytest.raises(UserError, match="saw k"):
        hide_count(torch.zeros(1, 3, dtype=torch.long), torch.tensor([4]), torch.rand(1, 3), mask=MASK)
