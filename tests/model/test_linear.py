import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from unmask.model import linear as module
from unmask.model.linear import linear, times

ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@pytest.fixture(autouse=True)
def with_onednn(monkeypatch):
    if not ONEDNN:
        pytest.skip("torch has no oneDNN here")
    monkeypatch.setattr(module, "faster_with_onednn", lambda: True)
    monkeypatch.setattr(module, "LEAST", 1)


def drawn(*shape, outputs=5, bias=True):
    torch.manual_seed(0)
    x, weight = torch.randn(*shape, requires_grad=True), torch.randn(outputs, shape[-1], requires_grad=True)
    return x, weight, torch.randn(outputs, requires_grad=True) if bias else None


def used(result):
    """The name of what computed a result."""
    return type(result.grad_fn).__name__


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [5, 24])
@pytest.mark.parametrize("shape", [(4, 8), (2, 3, 8), (31, 8), (33, 16), (3, 50, 16), (64, 8)])
def test_product_and_gradients_are_those_of_torch(shape, outputs, bias):
    inputs = drawn(*shape, outputs=outputs, bias=bias)
    learned = [one for one in inputs if one is not None]
    ours, torchs = linear(*inputs), F.linear(*inputs)
    assert used(ours) == "LinearBackward"
    torch.testing.assert_close(ours, torchs)
    weight = torch.randn_like(ours)
    for a, b in zip(
        torch.autograd.grad(ours, learned, weight), torch.autograd.grad(torchs, learned, weight), strict=True
    ):
        assert a.shape == b.shape
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        assert torch.equal(linear(*inputs), ours)


def test_gradient_that_is_one_number_everywhere_is_right():
    x, weight, _ = drawn(40, 8)
    ours, torchs = (torch.autograd.grad(f(x, weight).sum(), [x, weight]) for f in (linear, F.linear))
    for a, b in zip(ours, torchs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_weights_may_be_transposed_or_a_part_of_others():
    x = torch.randn(40, 8)
    whole = torch.randn(8, 12)
    for weight in (whole.t(), whole.t()[4:8], whole.t().contiguous()[4:8]):
        torch.testing.assert_close(linear(x, weight), F.linear(x, weight))


def test_only_what_learns_has_a_gradient():
    x, weight, bias = drawn(40, 8)
    linear(x.detach(), weight, bias.detach()).sum().backward()
    assert x.grad is None
    assert bias.grad is None
    assert weight.grad is not None


def test_gradient_of_a_gradient_is_that_of_torch():
    x, weight, _ = drawn(40, 8)

    def twice(f):
        first = torch.autograd.grad(f(x, weight).pow(2).sum(), x, create_graph=True)[0]
        return torch.autograd.grad(first.pow(2).sum(), [x, weight])

    for a, b in zip(twice(linear), twice(F.linear), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-2)


def test_result_may_be_written_to():
    x, weight, _ = drawn(2, 20, 8, outputs=8)
    torch.testing.assert_close(linear(x, weight).add_(x), F.linear(x, weight) + x)
    ours, torchs = (torch.autograd.grad(y.sum(), x)[0] for y in (linear(x, weight).add_(x), F.linear(x, weight) + x))
    torch.testing.assert_close(ours, torchs)


def test_rows_are_filled_up_so_that_few_numbers_of_rows_occur():
    assert {len(module.filled(torch.ones(rows, 8))) for rows in range(17, 97)} == {32, 48, 64, 80, 96}


def test_row_does_not_depend_on_the_rows_beside_it():
    """From four rows on, bit for bit."""
    x, weight, bias = (one.detach() for one in drawn(200, 64, outputs=96))
    together = linear(x, weight, bias)
    for rows in (4, 5, 16, 31, 32, 33, 64, 100, 199):
        assert torch.equal(linear(x[:rows], weight, bias), together[:rows])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_are_left_to_torch(dtype):
    x, weight = (one.detach().to(dtype).requires_grad_() for one in drawn(40, 8)[:2])
    assert used(linear(x, weight)) != "LinearBackward"


def test_few_rows_and_other_devices_are_left_to_torch():
    x, weight, _ = drawn(3, 8)
    assert used(linear(x, weight)) != "LinearBackward"
    assert linear(torch.zeros(40, 8, device="meta"), weight.detach().to("meta")).device.type == "meta"
    assert linear(torch.zeros(0, 8), weight).shape == (0, 5)


def test_small_products_are_left_to_torch(monkeypatch):
    x, weight, _ = drawn(40, 8)
    monkeypatch.setattr(module, "LEAST", 40 * 8 * 5 - 1)
    assert used(linear(x, weight)) == "LinearBackward"
    assert used(linear(x[1:], weight)) != "LinearBackward"


def test_tools_that_count_operations_see_them():
    x, weight, _ = drawn(40, 8)
    with FlopCounterMode(display=False) as counter:
        linear(x, weight)
    assert counter.get_total_flops() == 2 * 40 * 8 * 5


def test_autocast_chooses_its_own_type():
    layer = nn.Linear(8, 5)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(torch.randn(40, 8), layer.weight).dtype == torch.bfloat16


@pytest.mark.parametrize("shape", [(8, 20), (128, 128), (128, 200)])
def test_products_without_gradients_are_those_of_torch(shape):
    x = torch.randn(shape)
    torch.testing.assert_close(times(x, x), x @ x.mT, rtol=1e-4, atol=1e-4)
    square = x @ x.mT
    torch.testing.assert_close(times(square, x.mT), square @ x, rtol=1e-4, atol=1e-2)
