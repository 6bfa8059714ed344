import pytest
import torch

from unmask.model.backbones.block import drop_some


@pytest.mark.parametrize("chance", [0.1, 0.5, 0.9])
def test_dropout_drops_its_share_anywhere_and_keeps_the_mean(chance):
    torch.manual_seed(0)
    y = torch.ones(401, 501, requires_grad=True)
    out = drop_some(y, chance)
    share = (out == 0).double()
    error = (chance * (1 - chance) / y.numel()) ** 0.5
    assert share.mean().item() == pytest.approx(chance, abs=4 * error)
    for lane in range(4):  # four decisions share a random number: each is as likely, and none tells of its neighbour
        assert share.flatten()[lane::4].mean().item() == pytest.approx(chance, abs=8 * error)
    pairs = share.flatten()[: -(len(share.flatten()) % 4) or None].view(-1, 4)
    together = (pairs[:, 0] * pairs[:, 1]).mean().item()
    assert together == pytest.approx(chance**2, abs=10 * error)
    kept = out[out != 0]
    assert kept.min() == kept.max()
    assert kept[0].item() == pytest.approx(1 / (1 - chance), rel=1e-4)
    out.sum().backward()
    assert torch.equal(y.grad, out.detach())


def test_dropout_follows_the_seed():
    y = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(3)
    first = drop_some(y, 0.4)
    torch.manual_seed(3)
    assert torch.equal(drop_some(y, 0.4), first)
    assert not torch.equal(drop_some(y, 0.4), first)
