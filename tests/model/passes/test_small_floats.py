"""Attention to few keys in bfloat16 on a CPU: computed in float32, with the types that came in."""

import pytest
import torch

from unmask.model import attending
from unmask.model.attending import attend, slow_backward


def drawn(kind: torch.dtype, keys: int = 12) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return [torch.randn(2, length, 2, 8, generator=g).to(kind).requires_grad_() for length in (5, keys, keys)]


def some_visible(kind: torch.dtype) -> torch.Tensor:
    seen = torch.rand(2, 1, 5, 12, generator=torch.Generator().manual_seed(1)) < 0.7
    return seen if kind == torch.bool else torch.where(seen, 0.5, -1e4).to(kind)


@pytest.mark.parametrize("kind", [torch.bool, torch.bfloat16])
def test_the_numbers_and_gradients_are_those_of_float32_rounded_once(kind):
    small = drawn(torch.bfloat16)
    large = [one.detach().float().requires_grad_() for one in small]
    of = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(2)).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        out = attend(*small, visible=some_visible(kind))
    visible = some_visible(kind)
    expected = attend(*large, visible=visible if kind == torch.bool else visible.float())
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, expected.bfloat16())
    for ours, theirs in zip(
        torch.autograd.grad(out, small, of), torch.autograd.grad(expected, large, of.float()), strict=True
    ):
        assert ours.dtype == torch.bfloat16
        assert torch.equal(ours, theirs.bfloat16())


def test_it_is_for_gradients_of_bfloat16_and_few_keys_alone(monkeypatch):
    monkeypatch.setattr(attending, "SHORT", 12)
    q, k, _ = (one.transpose(1, 2) for one in drawn(torch.bfloat16))
    assert slow_backward(q, k)
    assert not slow_backward(q.detach(), k)
    assert not slow_backward(q.float(), k)
    assert not slow_backward(q.to("meta"), k.to("meta"))
    q, k, _ = (one.transpose(1, 2) for one in drawn(torch.bfloat16, keys=13))
    assert not slow_backward(q, k)
