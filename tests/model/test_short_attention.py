"""Attention to few keys in bfloat16 on a CPU: float32's values but for rounding, and no weight for what is hidden.

Products of bfloat16 end some machines' processes: where that is so, the function is tried with float32.
"""

import pytest
import torch
import torch.nn.functional as F

from unmask.model import short_attention as module
from unmask.model.short_attention import short_attention, suits
from unmask.processes.device import small_floats

KIND = torch.float32 if small_floats("bfloat16") else torch.bfloat16


def drawn(kind: torch.dtype, heads: int = 2, keys: int = 12) -> list[torch.Tensor]:
    """Queries, keys and values."""
    g = torch.Generator().manual_seed(0)
    sizes = ((4, 5), (heads, keys), (heads, keys))
    return [torch.randn(2, h, m, 8, generator=g).to(KIND).to(kind).requires_grad_() for h, m in sizes]


def visibility(kind: str) -> torch.Tensor | None:
    g = torch.Generator().manual_seed(1)
    seen = torch.rand(2, 1, 5, 12, generator=g) < 0.6
    bias = torch.randn(2, 4, 5, 12, generator=g).to(KIND)
    return {"all": None, "some": seen, "bias": bias}[kind]


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("kind", ["all", "some", "bias"])
def test_values_and_gradients_are_torchs_in_float32_but_for_rounding(kind, heads):
    small, large = drawn(KIND, heads), drawn(torch.float32, heads)
    visible = visibility(kind)
    out = short_attention(*small, visible=visible)
    more = visible.float() if kind == "bias" else visible
    expected = F.scaled_dot_product_attention(*large, attn_mask=more, enable_gqa=True)
    assert out.dtype == KIND
    torch.testing.assert_close(out.float(), expected, rtol=0.02, atol=0.02)
    of = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2))
    ours, theirs = torch.autograd.grad(out, small, of.to(KIND)), torch.autograd.grad(expected, large, of)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.float(), other, rtol=0.05, atol=0.05)


def test_the_causal_rule_is_torchs():
    q, k, v = drawn(KIND, 4)
    k, v = k[:, :, :5], v[:, :, :5]
    large = (one.float() for one in (q, k, v))
    expected = F.scaled_dot_product_attention(*large, is_causal=True)
    torch.testing.assert_close(short_attention(q, k, v, causal=True).float(), expected, rtol=0.02, atol=0.02)


def test_what_is_hidden_has_no_weight_at_all():
    q, k, v = drawn(KIND, 4)
    visible = visibility("some")
    (of_v,) = torch.autograd.grad(short_attention(q, k, v, visible=visible).sum(), v)
    seen = visible.any(2)[:, 0]
    assert not of_v.transpose(1, 2)[~seen].any()
    (of_k,) = torch.autograd.grad(short_attention(q, k, v, visible=visible)[:, :, 2].sum(), k)
    hidden = ~visible[:, 0, 2]
    assert hidden.any()
    assert not of_k.transpose(1, 2)[hidden].any()
    assert of_k.transpose(1, 2)[~hidden].any(-1).all()


def test_a_query_that_sees_nothing_is_no_nan():
    visible = torch.zeros(2, 1, 5, 12, dtype=torch.bool)
    assert short_attention(*drawn(KIND), visible=visible).isfinite().all()


def test_dropout_leaves_the_mean():
    torch.manual_seed(0)
    q, k, v = (one.detach() for one in drawn(KIND, 4))
    many = [one.repeat(500, 1, 1, 1) for one in (q, k, v)]
    mean = short_attention(*many, dropout=0.3).float().unflatten(0, (500, 2)).mean(0)
    torch.testing.assert_close(mean, short_attention(q, k, v).float(), rtol=0, atol=0.15)


def test_it_is_for_bfloat16_on_a_cpu_and_so_many_keys_and_weights(monkeypatch):
    monkeypatch.setattr(module, "KEYS", 12)
    q, k, _ = drawn(torch.bfloat16)
    assert suits(q, k)
    assert not suits(q.float(), k.float())
    assert not suits(q.to("meta"), k.to("meta"))
    assert not suits(q, drawn(torch.bfloat16, keys=13)[1])
    monkeypatch.setattr(module, "WEIGHTS", 2 * 4 * 5 * 12 - 1)
    assert not suits(q, k)
