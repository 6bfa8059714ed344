"""GELU in pieces against torch's own in float64."""

import pytest
import torch
import torch.nn.functional as F

from unmask.model.backbones.gelu import PIECE, gelu, gelu_linear


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(3,), (2, 3, 8), (PIECE // 8 + 5, 16)])
def test_gelu_is_the_tanh_form_to_the_rounding_of_float32(shape):
    x = numbers(*shape)
    torch.testing.assert_close(
        gelu(x).double(), F.gelu(x.double(), approximate="tanh"), rtol=2e-5, atol=1e-6, check_dtype=False
    )


def test_far_from_zero_it_is_the_identity_or_zero():
    x = torch.tensor([-1e20, -100.0, 0.0, 100.0, 1e20])
    assert gelu(x).tolist() == [0, 0, 0, 100.0, torch.tensor(1e20).item()]


@pytest.mark.parametrize("rows", [5, PIECE // 16 + 3])
def test_gelu_and_product_have_the_value_and_the_gradients_of_the_two_in_turn(rows):
    x, weight, bias = numbers(2, rows, 16), numbers(6, 16, seed=1), numbers(6, seed=2)
    out = numbers(2, rows, 6, seed=3)
    given = [one.clone().requires_grad_() for one in (x, weight, bias)]
    found = gelu_linear(*given)
    true = [one.double().requires_grad_() for one in (x, weight, bias)]
    wanted = F.linear(F.gelu(true[0], approximate="tanh"), true[1], true[2])
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-4)
    pairs = zip(torch.autograd.grad(found, given, out), torch.autograd.grad(wanted, true, out.double()), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5 * float(other.abs().max()))


def test_gradients_are_exact_in_float64():
    given = [one.double().requires_grad_() for one in (numbers(2, 3, 4), numbers(3, 4, seed=1), numbers(3, seed=2))]
    assert torch.autograd.gradcheck(gelu_linear, given)


def test_a_strided_input_is_read_as_it_is():
    x = numbers(6, 8)
    torch.testing.assert_close(gelu(x.mT), gelu(x).mT)
    strided = x.mT.requires_grad_()
    weight, bias = numbers(2, 6, seed=1), numbers(2, seed=2)
    gelu_linear(strided, weight, bias).sum().backward()
    wanted = x.mT.detach().clone().requires_grad_()
    F.linear(F.gelu(wanted, approximate="tanh"), weight, bias).sum().backward()
    torch.testing.assert_close(strided.grad, wanted.grad)


def test_only_the_input_is_kept_for_the_backward_pass():
    x, weight, bias = numbers(64, 16).requires_grad_(), numbers(6, 16, seed=1), numbers(6, seed=2)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one.numel()) or one, lambda one: one):
        gelu_linear(x, weight, bias)
    assert sorted(kept) == sorted([x.numel(), weight.numel()])


def test_a_residual_can_be_added_in_place():
    x, weight, bias = numbers(2, 5, 16).requires_grad_(), numbers(6, 16, seed=1), numbers(6, seed=2)
    plain = gelu_linear(x, weight, bias) + 1
    torch.testing.assert_close(gelu_linear(x, weight, bias).add_(1), plain)
