"""All ways to compute the selective scan give the values and gradients of its formula."""

import pytest
import torch
import torch.nn.functional as F

from model.golden import FOLDER, arrays_of
from unmask.model.scan import loop, selective
from unmask.model.scan.selective import selective_scan

B, L, E, N = 2, 150, 300, 5  # neither chunks of 16 steps nor blocks of 256 channels come out even
NAMES = ["y", "last", "u", "delta", "a", "b", "c"]


def formula(u, delta, a, b, c, state):
    """The recurrence as it is written, left to autograd."""
    h, y = state, []
    for t in range(u.shape[1]):
        h = torch.exp(delta[:, t, :, None] * a) * h + (delta[:, t] * u[:, t])[..., None] * b[:, t, None]
        y.append((h * c[:, t, None]).sum(-1))
    return torch.stack(y, 1), h


def given(generator, *, rows: int = B, length: int = L) -> list[torch.Tensor]:
    """Inputs in float64; the largest steps forget everything at once."""
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    delta = F.softplus(3 * draw(rows, length, E))
    return [
        draw(rows, length, E),
        delta,
        -draw(E, N).exp(),
        draw(rows, length, N),
        draw(rows, length, N),
        draw(rows, E, N),
    ]


def values_and_gradients(scan, inputs, weight) -> dict[str, torch.Tensor]:
    inputs = [x.clone().requires_grad_(i < 5) for i, x in enumerate(inputs)]
    y, last = scan(*inputs)
    (y * weight).sum().backward()
    return dict(zip(NAMES, [y.detach(), last.detach(), *(x.grad for x in inputs[:5])], strict=True))


def compiled_scan():
    pytest.importorskip("numba")
    return selective.compiled_kernel()


def vendor_scan():
    if not torch.cuda.is_available() or selective.vendor_kernel() is None:
        pytest.skip("the vendor's kernel needs a GPU and mamba_ssm")
    kernel = selective.vendor_kernel()
    return lambda *inputs: selective.vendor_scan(kernel, *(x.cuda() for x in inputs[:5]))  # has no first state


WAYS = {"loop": lambda: loop.scan, "compiled": compiled_scan, "vendor": vendor_scan, "chosen": lambda: selective_scan}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_has_the_values_and_gradients_of_the_formula(way, generator):
    scan, inputs = WAYS[way](), given(generator)
    if way == "vendor":
        inputs[-1].zero_()
    weight = torch.randn(B, L, E, generator=generator, dtype=torch.float64)
    told = values_and_gradients(formula, inputs, weight)
    seen = values_and_gradients(scan, [x.float() for x in inputs], weight.float())
    for name in NAMES:
        far = (seen[name].cpu().double() - told[name]).abs().max() / told[name].abs().max()
        assert far < 2e-6, name


def test_the_loop_is_exact_in_double_precision(generator):
    inputs = given(generator)
    weight = torch.randn(B, L, E, generator=generator, dtype=torch.float64)
    told, seen = (values_and_gradients(scan, inputs, weight) for scan in (formula, selective_scan))
    for name in NAMES:
        torch.testing.assert_close(seen[name], told[name], rtol=1e-12, atol=1e-12)


def test_strong_decays_neither_overflow_nor_lose_what_follows(generator):
    u, _, a, b, c, state = (x.float() for x in given(generator))
    delta = torch.full_like(u, 1e4)
    for scan in (selective_scan, loop.scan):
        y, last = scan(u, delta, a - 1, b, c, state)
        fresh = delta * u * (b * c).sum(-1, keepdim=True)  # nothing of the step before is left
        torch.testing.assert_close(y, fresh, rtol=1e-4, atol=1e-1)
        assert last.isfinite().all()


@pytest.mark.parametrize("cut", [1, 16, 100])
def test_a_scan_goes_on_from_the_state_of_another(cut, generator):
    u, delta, a, b, c, state = (x.float() for x in given(generator))
    whole, end = selective_scan(u, delta, a, b, c, state)
    first, middle = selective_scan(u[:, :cut], delta[:, :cut], a, b[:, :cut], c[:, :cut], state)
    second, last = selective_scan(u[:, cut:], delta[:, cut:], a, b[:, cut:], c[:, cut:], middle)
    torch.testing.assert_close(torch.cat((first, second), 1), whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(last, end, rtol=1e-5, atol=1e-5)


def test_without_numba_the_loop_is_used(monkeypatch, generator):
    inputs = [x.float() for x in given(generator, length=3)]
    monkeypatch.setattr(selective, "find_spec", lambda name: None)
    selective.compiled_kernel.cache_clear()
    try:
        assert selective.compiled_kernel() is None
        for seen, told in zip(selective_scan(*inputs), loop.scan(*inputs), strict=True):
            assert torch.equal(seen, told)
    finally:
        selective.compiled_kernel.cache_clear()


def test_two_threads_share_the_work_of_one(generator):
    scan, inputs = compiled_scan(), [x.float() for x in given(generator, rows=3)]
    weight = torch.ones(3, L, E)
    alone = values_and_gradients(scan, inputs, weight)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        shared = values_and_gradients(scan, inputs, weight)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(alone[name], shared[name]) for name in NAMES)


def test_the_scan_of_the_reference_is_reproduced():
    case = arrays_of(FOLDER / "dna" / "mamba_tiny_cases.npz")
    u, raw, z, b, c = (case[f"scan_{name}"].transpose(1, 2) for name in ("u", "dt_raw", "z", "B", "C"))
    delta = F.softplus(raw + case["scan_dt_bias"])
    y, last = selective_scan(u, delta, case["scan_A"], b, c)
    y = (y + case["scan_D"] * u) * F.silu(z)
    torch.testing.assert_close(y, case["scan_y"].transpose(1, 2), rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(last, case["scan_last_state"], rtol=2e-5, atol=2e-5)
