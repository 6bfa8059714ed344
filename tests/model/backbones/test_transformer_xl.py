"""Transformer-XL is the recorded network; segments with a memory are one causal pass over the text."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from model.golden import FOLDER, arrays_of, relative
from unmask.errors import UserError
from unmask.model.backbones.transformer_xl import TransformerXL, TransformerXLSpec, align_distances
from unmask.model.cost import parameters
from unmask.model.formats.transformer_xl import Authors
from unmask.model.passes.segments import segment
from unmask.model.passes.whole import hidden_states, read_on
from unmask.model.passing import Causal, Empty, Pass

NAMES = ("adaptive", "window", "short")
TOLERANCE = 1e-5


def recorded(name: str) -> TransformerXL:
    path = FOLDER / "baselines" / f"txl_{name}.safetensors"
    with safe_open(path, "pt") as file:
        spec = Authors().spec(json.loads(file.metadata()["config"]))
    network = TransformerXL(spec).eval()
    network.load_state_dict({key: w for key, w in load_file(path).items() if key not in network.copies})
    return network


def case_of(name: str) -> dict[str, torch.Tensor]:
    """The recorded values, batch first."""
    found = arrays_of(FOLDER / "baselines" / f"txl_{name}_cases.npz")
    found["tokens"] = found["tokens"].T.contiguous()
    return found


def walked(network: TransformerXL, case: dict[str, torch.Tensor]):
    """Each segment's log-probabilities and the memory after it, as in training."""
    tokens, size, memory = case["tokens"], int(case["segment"]), None
    for start in range(0, tokens.shape[1] - 1, size):
        x = tokens[:, start : start + size + 1]
        rows = torch.arange(x.numel()).view(x.shape)[:, 1:].flatten()
        states = network.run(segment(x, rows, memory))
        logits, memory = network.head(states.hidden), states.memory.states
        yield x[:, 1:], logits.log_softmax(-1).unflatten(0, (len(x), size)), memory


@pytest.mark.parametrize("name", NAMES)
def test_losses_memories_and_gradients_are_the_recorded_ones(name):
    network, case = recorded(name), case_of(name)
    for number, (true, log_p, memory) in enumerate(walked(network, case)):
        nats = -log_p.gather(-1, true[..., None]).squeeze(-1)
        assert relative(nats, case[f"seg{number}_nll"].T) < TOLERANCE
        told = case[f"seg{number}_mems"].permute(2, 0, 1, 3)
        assert relative(memory, told[:, :-1]) < TOLERANCE  # that of the last layer is not read again
    assert relative(log_p, case["last_logp"].transpose(0, 1)) < TOLERANCE
    assert relative(nats.mean(), case["last_loss"]) < TOLERANCE
    nats.mean().backward()
    told = load_file(FOLDER / "baselines" / f"txl_{name}_grads.safetensors")
    assert told.keys() == {key for key, _ in network.named_parameters()}
    for key, p in network.named_parameters():
        assert relative(p.grad, told[key]) < 1e-5, key


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_layer_s_states_and_scores_are_the_recorded_ones(name):
    network, case = recorded(name), case_of(name)
    inputs = []
    for layer in network.layers:
        layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    with torch.no_grad():
        top = network.run(Pass(case["tokens"][:, : int(case["segment"])], Causal())).hidden
    for layer, told in zip([*inputs[1:], top], case["seg0_hidden"], strict=True):
        assert relative(layer, told.transpose(0, 1)) < TOLERANCE
    x, attention = inputs[0], network.layers[0].dec_attn
    q, k, _ = attention.qkv_net(x).unflatten(-1, (3, attention.heads, -1)).unbind(2)
    r = attention.by_distance(network.pos_emb(x.shape[1], network.spec.clamp))
    for row, told in enumerate(case["seg0_scores"][0]):  # (k, b, heads) of one query
        for column in range(row + 1):
            by_content = ((q[:, row] + network.r_w_bias) * k[:, column]).sum(-1)
            by_distance = ((q[:, row] + network.r_r_bias) * r[len(r) - 1 - (row - column)]).sum(-1)
            mine = (by_content + by_distance) / network.spec.features**0.5
            assert relative(mine, told[column]) < TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_segments_with_a_memory_are_one_pass_if_the_memory_reaches_far_enough(name):
    """It does if it is longer than the text, or if every position sees equally far; else they must differ."""
    network, case = recorded(name), case_of(name)
    with torch.no_grad():
        tokens = case["tokens"][:, :-1]
        whole = network.run(Pass(tokens, Causal())).hidden
        memory, parts = Empty(tokens.shape[1]), []
        for piece in tokens.split([3, 1, 5, tokens.shape[1] - 9], 1):
            hidden, memory = read_on(network, piece, memory)
            parts.append(hidden)
        segments = torch.cat([log_p for _, log_p, _ in walked(network, case)], 1)
    assert relative(whole, case["onepass_hidden"].transpose(0, 1)) < TOLERANCE
    read = relative(torch.cat(parts, 1), whole)
    at_once = relative(segments, network.head(whole).log_softmax(-1))
    assert (read < TOLERANCE, at_once < TOLERANCE) == ((name != "short"),) * 2
    assert memory.filled == tokens.shape[1]
    assert memory.layers[0][0].shape[1] == min(network.spec.memory, tokens.shape[1])


@pytest.mark.slow
def test_the_gradient_of_a_segment_is_that_of_one_pass_in_which_earlier_states_are_constants():
    network, case = recorded("adaptive"), case_of("adaptive")
    *_, (true, log_p, _) = walked(network, case)
    log_p.gather(-1, true[..., None]).mean().backward()
    seen = {name: p.grad.clone() for name, p in network.named_parameters()}
    network.zero_grad()
    size = int(case["segment"])
    x = network.embed(case["tokens"][:, :-1])
    first = x.shape[1] - size
    visible = network.visible(0, x.shape[1])
    for layer in network.layers:
        x = torch.cat((x[:, :first].detach(), x[:, first:]), 1)
        r = network.pos_emb(x.shape[1], 0)
        x, _ = layer(x, None, r, (network.r_w_bias, network.r_r_bias), visible)
    log_p = network.head(x[:, first:]).log_softmax(-1)
    log_p.gather(-1, true[..., None]).mean().backward()
    for name, p in network.named_parameters():
        assert relative(seen[name], p.grad) < 1e-5, name


@pytest.mark.slow
def test_nothing_ahead_and_nothing_beyond_the_reach_of_all_layers_is_seen():
    network = recorded("window").double()
    a = network.spec
    x = network.embed(torch.randint(a.vocab, (1, 24), generator=torch.Generator().manual_seed(0)))
    states = lambda one: network.run(Pass(one, Causal())).hidden[0].sum(-1)  # noqa: E731
    jacobian = torch.autograd.functional.jacobian(states, x)[:, 0].abs().sum(-1)
    distance = torch.arange(24)[:, None] - torch.arange(24)
    reach = a.blocks * (a.memory - 1)
    assert (jacobian[(distance < 0) | (distance > reach)] == 0).all()
    assert (jacobian[(distance >= 0) & (distance <= reach)] > 0).all()


def test_scores_by_distance_are_moved_to_their_positions():
    scores = torch.arange(12.0).view(1, 1, 3, 4)  # a column for each of the distances 3, 2, 1, 0
    found = align_distances(scores)
    for i in range(3):
        for j in range(i + 2):  # one position of memory
            assert found[0, 0, i, j] == scores[0, 0, i, 3 - (i + 1 - j)]


@pytest.mark.parametrize(
    "changes",
    [
        {"cutoffs": (5, 9), "divide": 2},
        {"cutoffs": (5, 9), "divide": 2, "tied_projections": True},
        {"cutoffs": (5, 9), "embed": 12},
        {"cutoffs": (5,), "tied": False, "embed": 12, "tied_projections": True},
    ],
    ids=str,
)
def test_an_adaptive_softmax_is_a_distribution_and_has_a_gradient_for_every_parameter(changes):
    torch.manual_seed(0)
    network = TransformerXL(TransformerXLSpec(vocab=13, width=16, blocks=1, heads=2, memory=4, **changes))
    x = torch.randint(13, (2, 40))
    log_p = network.head(hidden_states(network, x))
    assert torch.allclose(log_p.logsumexp(-1), torch.zeros(2, 40), atol=1e-5)
    log_p.gather(-1, x[..., None]).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())
    assert not network.copies.keys() & network.state_dict().keys()
    assert set(network.copies.values()) <= network.state_dict().keys()


@pytest.mark.parametrize("recompute", [False, True])
def test_dropout_and_recomputation_leave_the_gradient_that_of_the_loss(recompute):
    network = recorded("window").train()
    network.recompute = recompute
    case = case_of("window")
    *_, (true, log_p, _) = walked(network, case)
    (-log_p.gather(-1, true[..., None]).mean()).backward()
    told = load_file(FOLDER / "baselines" / "txl_window_grads.safetensors")
    assert all(relative(p.grad, told[key]) < 1e-5 for key, p in network.named_parameters())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"cutoffs": (9, 5)}, "ids from 1 that grow"),
        ({"cutoffs": (5, 13)}, "do not fit a vocabulary of 13 ids"),
        ({"cutoffs": (2, 4), "divide": 8}, "no feature"),
        ({"same_length": True, "memory": 0}, "needs a memory"),
        ({"heads": 3}, "cannot be split into 3 heads"),
        ({"width": 15, "heads": 3}, "must be even"),
        ({"causal": False}, "choose the objective 'ar'"),
        ({"memory": -1}, "memory must be at least 0"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(changes, told):
    with pytest.raises(UserError, match=told):
        TransformerXL(replace(TransformerXLSpec(vocab=13, width=16, blocks=1, heads=2), **changes))


def test_a_memory_longer_than_its_text_is_refused_with_what_to_do():
    with pytest.raises(UserError, match=r"text of 40 tokens.* remembers 128: use model.memory = 40 or less"):
        TransformerXLSpec().check_lane(40)


@pytest.mark.slow
def test_the_network_of_the_paper_has_about_the_published_number_of_weights():
    """0.46 billion; 20 layers of 1024 with an inner width of 6144, and the words of the benchmark."""
    spec = TransformerXLSpec(
        **{"vocab": 793_471, "width": 1024, "blocks": 20, "heads": 8, "head": 128, "inner": 6144},
        **{"cutoffs": (60_000, 100_000, 640_000), "divide": 4, "separate": True},
    )
    assert 0.44e9 < parameters(spec) < 0.48e9
