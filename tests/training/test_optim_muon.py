import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from training.small import MASK, Chain, network, settings
from unmask.model.backbones.transformer import Architecture
from unmask.training.loop import begin, train
from unmask.training.optim import OPTIMIZERS
from unmask.training.optimizers import muon
from unmask.training.optimizers.muon import Muon
from unmask.training.phases import phases

ASKED = settings(optim=OPTIMIZERS.turned(settings().optim, "muon"))


@pytest.mark.parametrize("shape", [(40, 40), (24, 96), (96, 24)])
def test_singular_values_come_near_one_and_their_vectors_stay(shape):
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64)
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    s = torch.linspace(0.3, 1, len(s), dtype=torch.float64)
    turned = u.mT @ muon.orthogonal(1e-3 * u * s @ v) @ v.mT
    assert turned.diagonal().min() > 0.65
    assert turned.diagonal().max() < 1.25
    torch.testing.assert_close(turned, turned.diagonal().diag(), rtol=0, atol=1e-9)


def test_an_update_has_the_size_of_adamws():
    torch.manual_seed(0)
    net = network(ASKED)
    before = [p.detach().clone() for p in net.parameters()]
    optimizer = Muon(lr=1e-2).updates(net)
    for p in net.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    for p, old in zip(net.parameters(), before, strict=True):
        size = (p - old).square().mean().sqrt().item()
        assert size == pytest.approx(muon.SIZE * 1e-2 if p in optimizer.matrices else 1e-2, rel=0.25)


def test_embeddings_head_norms_and_modulation_are_left_to_adamw():
    asked = settings(model=replace(settings().model, cond=8))
    net = network(asked)
    names = {name for name, p in net.backbone.named_parameters() if p in net.backbone.matrices()}
    assert {name.split(".", 2)[2] for name in names} == {
        *["attn_qkv.weight", "attn_out.weight", "mlp.0.weight", "mlp.2.weight"]
    }
    assert len(names) == 4 * len(net.units)


@pytest.mark.slow
def test_a_small_run_learns_faster_than_with_adamw():
    told = {}
    for name in ("adamw", "muon"):
        asked = settings(steps=60, optim=OPTIMIZERS.turned(ASKED.optim, name))
        state = begin(network(asked), asked)
        told[name] = [p.bound for p in train(state, phases(asked)[0], asked, Chain.make().batch(16), mask=MASK)]
    assert sum(told["muon"][-10:]) < sum(told["adamw"][-10:]) < sum(told["adamw"][:10])


def test_the_cost_is_what_a_counter_counts():
    a = Architecture(vocab=11, length=8, width=32, blocks=2, heads=2)
    shapes = a.blocks * [(32, 32)] * 4 + a.blocks * [(128, 32), (32, 128)]
    with FlopCounterMode(display=False) as counter:
        for shape in shapes:
            muon.orthogonal(torch.randn(shape))
    assert counter.get_total_flops() == Muon().flops(a)


TORCHS = """
import sys
import torch
from torch import nn
from training.small import network
from training.test_optim_muon import ASKED
from unmask.training.optimizers import muon
from unmask.training.optimizers.muon import Muon
usual, kinds = muon.orthogonal, set()
def orthogonal(x, kind):
    moved = usual(x, kind)
    kinds.add(moved.dtype)
    return moved
muon.orthogonal = orthogonal
torch.manual_seed(0)
net = network(ASKED)
net.backbone.compute = getattr(torch, sys.argv[1])
ours = Muon(lr=0.1, weight_decay=0.1).updates(net)
mine = [(p, 3 if "qkv" in name else 1) for name, p in net.named_parameters() if p in ours.matrices]
theirs = [nn.Parameter(part.clone()) for p, n in mine for part in p.detach().chunk(n)]
other = torch.optim.Muon(theirs, lr=0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
for _ in range(3):
    for p in net.parameters():
        p.grad = torch.randn_like(p)
    parts = [part.clone() for p, n in mine for part in p.grad.chunk(n)]
    for p, grad in zip(theirs, parts, strict=True):
        p.grad = grad
    ours.step()
    other.step()
ended = torch.cat([p.detach().flatten() for p, _ in mine])
told = torch.cat([p.detach().flatten() for p in theirs])
print((ended - told).square().mean().sqrt().item() / (0.2 * 0.1), *kinds)
"""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_three_updates_are_those_of_torch_which_has_bfloat16(dtype):
    """In a process of its own: bfloat16 products end some machines' processes unless AMX is left alone."""
    ran = subprocess.run(
        [sys.executable, "-c", TORCHS, dtype],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    apart, *kinds = ran.stdout.split()
    assert float(apart) < 0.05  # of the size of one update
    assert kinds == [f"torch.{dtype}"]
