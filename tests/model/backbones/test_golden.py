"""The networks give the recorded outputs, gradients and trained weights of the reference implementation."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from model.golden import STRIDE, distance, network, recorded
from unmask.model.backbones.transformer import Transformer
from unmask.model.passes.whole import hidden_states, logits_at

DITS = ["dit_tiny", "dit_mid"]
TOLERANCE = 2e-5


def full_logits(net: Transformer, tokens: Tensor, sigma: Tensor | None = None) -> Tensor:
    with torch.no_grad():
        return net.head(hidden_states(net, tokens, sigma))


@pytest.mark.parametrize("name", DITS)
@pytest.mark.parametrize("freeze", [False, True])
def test_logits_with_time_conditioning_are_the_recorded_ones(name, freeze):
    case, net = recorded(name), network(name, time_conditioning=True)
    if freeze:
        net.freeze()
    assert distance(full_logits(net, case["xt"], case["sigma"]), case["logits_time"]) < TOLERANCE


@pytest.mark.parametrize("name", DITS)
@pytest.mark.parametrize("freeze", [False, True])
def test_logits_without_time_conditioning_are_those_of_noise_level_zero_whatever_is_passed(name, freeze):
    case, net = recorded(name), network(name)
    if freeze:
        net.freeze()
    assert distance(full_logits(net, case["xt"], case["sigma"]), case["logits_zero"]) < TOLERANCE
    assert distance(full_logits(net, case["xt"]), case["logits_zero"]) < TOLERANCE


@pytest.mark.parametrize("name", DITS)
def test_logits_of_short_and_of_wholly_masked_rows_are_the_recorded_ones(name):
    case, net = recorded(name), network(name).freeze()
    short = case["xt"][:, : case["logits_zero_short"].shape[1]]
    assert distance(full_logits(net, short), case["logits_zero_short"]) < TOLERANCE
    mask = int(case["xt"][case["xt"] != case["x0"]][0])
    masked = torch.full_like(case["x0"][:1], mask)
    assert distance(full_logits(net, masked), case["logits_zero_allmask"]) < TOLERANCE


@pytest.mark.parametrize("name", DITS)
def test_the_noise_level_becomes_the_recorded_vector(name):
    case = recorded(name)
    with torch.no_grad():
        assert distance(network(name, time_conditioning=True).condition(case["sigma"]), case["time_cond"]) < 1e-6
        assert distance(network(name).condition(None), case["time_cond_zero"][:1]) < 1e-6


def test_logits_of_the_causal_network_are_the_recorded_ones():
    case = recorded("ar_tiny")
    assert distance(full_logits(network("ar_tiny"), case["x0"]), case["raw_logits"]) < TOLERANCE


def masked_loss(net: Transformer, x0: Tensor, xt: Tensor, t: Tensor, counted: Tensor) -> Tensor:
    """The mean over counted tokens of −log p(x0 | xt) / t on hidden ones: the recorded objective, log-linear."""
    mask = xt[xt != x0][0]
    rows = (xt == mask).flatten().nonzero().squeeze(1)
    logits = logits_at(net, xt, torch.zeros(len(xt)), rows).index_fill(1, mask, -torch.inf)
    nats = F.cross_entropy(logits, x0.flatten()[rows], reduction="none")
    return (nats / t[rows // xt.shape[1]] * counted.flatten()[rows]).sum() / counted.sum()


def causal_loss(net: Transformer, case: dict[str, Tensor]) -> Tensor:
    x, counted = case["x0"], case["attention_mask"][:, 1:]
    logits = net.head(hidden_states(net, x[:, :-1])).index_fill(2, torch.tensor(97), -torch.inf)
    nats = F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten(), reduction="none")
    return (nats * counted.flatten()).sum() / counted.sum()


def strided_distance(net: Transformer, case: dict[str, Tensor], prefix: str, values: dict[str, Tensor]) -> float:
    """The largest difference to the recorded elements of all parameters, relative to 1 + |recorded|."""
    names = {key.removeprefix(prefix) for key in case if key.startswith(prefix)}
    assert names == {name for name, _ in net.named_parameters()}
    far = 0.0
    for name in names:
        seen, told = values[name].flatten()[::STRIDE], case[prefix + name]
        far = max(far, ((seen - told).abs() / (1 + told.abs())).max().item())
    return far


@pytest.mark.parametrize("name", [*DITS, "ar_tiny"])
def test_gradients_are_the_recorded_ones(name):
    case, net = recorded(name), network(name)
    if name == "ar_tiny":
        loss, told = causal_loss(net, case), case["loss"]
    else:
        loss = masked_loss(net, case["x0"], case["xt"], case["t"], case["attention_mask"])
        told = case["reduced_loss"]
    loss.backward()
    assert loss.item() == pytest.approx(told.item(), rel=1e-5)
    assert strided_distance(net, case, "grad.", {n: p.grad for n, p in net.named_parameters()}) < 1e-5


def test_five_steps_of_adamw_with_ema_end_at_the_recorded_weights():
    case, net = recorded("dit_tiny"), network("dit_tiny")
    optimizer = torch.optim.AdamW(net.parameters(), betas=(0.9, 0.999), eps=1e-8, weight_decay=0)
    shadow = {name: p.detach().clone() for name, p in net.named_parameters()}
    for i, lr in enumerate(case["train_lrs"].tolist()):
        loss = masked_loss(net, case["x0"].roll(i, 1), case["xt"].roll(i, 1), case["t"], torch.ones(case["x0"].shape))
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
        decay = min(0.9999, (2 + i) / (11 + i))
        for name, p in net.named_parameters():
            shadow[name].lerp_(p.detach(), 1 - decay)
        assert loss.item() == pytest.approx(case["train_losses"][i].item(), rel=1e-4)
        assert norm.item() == pytest.approx(case["train_gradnorms"][i].item(), rel=1e-4)
    assert strided_distance(net, case, "after5.", dict(net.named_parameters())) < 1e-4
    assert strided_distance(net, case, "ema.", shadow) < 1e-4
