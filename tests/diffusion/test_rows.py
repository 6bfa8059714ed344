import pytest
import torch
import torch.nn.functional as F

from unmask.diffusion.rows import forbid, parts, row_nats


@pytest.mark.parametrize("n, v, mask", [(7, 5, 4), (300, 4097, 4096), (3, 600_000, 103), (0, 5, 2)])
def test_nats_of_rows_and_their_gradients_are_those_of_a_softmax_without_the_mask(n, v, mask, generator):
    logits = 5 * torch.randn(n, v, generator=generator, dtype=torch.float64)
    true = torch.randint(v - 1, (n,), generator=generator)
    true = torch.where(true >= mask, true + 1, true)
    weight = torch.rand(n, generator=generator, dtype=torch.float64)
    before = logits.clone()
    found, told = [], []
    for answers, nats in (
        (found, lambda x: row_nats(x, true, mask=mask)),
        (told, lambda x: F.cross_entropy(forbid(x, mask), true, reduction="none")),
    ):
        x = logits.clone().requires_grad_()
        value = nats(x)
        (gradient,) = torch.autograd.grad(value, x, weight)
        answers += [value.detach(), gradient]
    torch.testing.assert_close(found, told, rtol=1e-10, atol=1e-12)
    assert torch.equal(logits, before)


def test_a_logit_of_the_mask_changes_nothing_however_large():
    logits = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    true = torch.tensor([0, 1, 2, 3])
    plain = row_nats(logits, true, mask=5)
    logits[:, 5] = 1e6
    torch.testing.assert_close(row_nats(logits, true, mask=5), plain, rtol=0, atol=0)


def test_parts_cover_every_row_once():
    covered = [row for part in parts(torch.empty(1000, 3000)) for row in range(1000)[part]]
    assert covered == list(range(1000))
    assert len(list(parts(torch.empty(1000, 3000)))) > 1
