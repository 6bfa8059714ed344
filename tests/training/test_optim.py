import pytest
import torch

from model.backbones.test_golden import masked_loss, strided_distance
from model.golden import network, recorded
from unmask.diffusion.mdlm import MDLM
from unmask.errors import UserError
from unmask.model.denoiser import Denoiser
from unmask.training import ema, optim
from unmask.training.optimizers.adamw import AdamW


def rates(steps, **settings):
    return [optim.learning_rate(i, steps=steps, optim=AdamW(lr=1.0, **settings)) for i in range(steps)]


def test_the_first_update_learns_and_warm_up_ends_at_the_peak():
    assert rates(6, warmup=4, schedule="constant") == [0.25, 0.5, 0.75, 1, 1, 1]
    assert rates(3, warmup=0, schedule="constant") == [1, 1, 1]


def test_the_reference_warm_up_begins_with_zero():
    assert rates(6, warmup=4, schedule="constant", reference=True) == [0, 0.25, 0.5, 0.75, 1, 1]


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_schedules_fall_to_their_floor_at_the_last_step(schedule):
    seen = rates(100, warmup=10, schedule=schedule, floor=0.2)
    assert seen[9] == 1
    assert seen[9:] == sorted(seen[9:], reverse=True)
    assert seen[-1] == pytest.approx(0.2)
    assert seen[54] == pytest.approx(0.6, abs=0.01)  # halfway


def test_five_steps_end_at_the_weights_and_the_average_of_the_reference():
    case, net = recorded("dit_tiny"), network("dit_tiny")
    settings = AdamW(lr=3e-3, beta2=0.999, schedule="constant", warmup=3, reference=True, ema=0.9999)
    parameters = list(net.parameters())
    optimizer, shadow = settings.updates(Denoiser(net, MDLM())), ema.begin_average(parameters)
    for i in range(5):
        loss = masked_loss(net, case["x0"].roll(i, 1), case["xt"].roll(i, 1), case["t"], torch.ones(case["x0"].shape))
        optimizer.zero_grad()
        loss.backward()
        norm = optim.clip(parameters, settings.clip)
        lr = optim.learning_rate(i, steps=5, optim=settings)
        optim.set_learning_rate(optimizer, lr)
        optimizer.step()
        ema.update(shadow, parameters, n=i + 1, decay=settings.ema)
        assert lr == pytest.approx(case["train_lrs"][i].item(), rel=1e-6)
        assert norm.item() == pytest.approx(case["train_gradnorms"][i].item(), rel=1e-4)
    averages = {name: shadow[i] for i, (name, _) in enumerate(net.named_parameters())}
    assert strided_distance(net, case, "after5.", dict(net.named_parameters())) < 1e-4
    assert strided_distance(net, case, "ema.", averages) < 1e-4


def test_a_limit_of_zero_leaves_the_gradient_alone():
    p = torch.nn.Parameter(torch.zeros(3))
    p.grad = torch.tensor([3.0, 0.0, 4.0])
    assert optim.clip([p], 0.0).item() == pytest.approx(5)
    assert p.grad.tolist() == [3, 0, 4]
    optim.clip([p], 1.0)
    assert p.grad.norm().item() == pytest.approx(1)


def test_weight_decay_is_on_matrices_alone():
    net = network("dit_tiny")
    groups = AdamW(weight_decay=0.1).updates(Denoiser(net, MDLM())).param_groups
    assert [(group["weight_decay"], {p.ndim >= 2 for p in group["params"]}) for group in groups] == [
        *[(0.1, {True}), (0.0, {False})]
    ]
    assert sum(len(group["params"]) for group in groups) == len(list(net.parameters()))


def test_averaged_weights_are_in_the_network_only_while_asked_for():
    p = torch.nn.Parameter(torch.ones(2))
    shadow = [torch.zeros(2)]
    with ema.in_place(shadow, [p]):
        assert p.tolist() == [0, 0]
    assert p.tolist() == [1, 1]
    assert shadow[0].tolist() == [0, 0]


@pytest.mark.parametrize(
    "wrong", [{"eps": -1.0}, {"eps": float("nan")}, {"beta1": 1.0}, {"beta2": 1.0}, {"beta2": 2.0}]
)
def test_what_adamw_cannot_be_is_refused_in_words(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        AdamW(**wrong)
