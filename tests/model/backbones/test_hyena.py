"""Hyena is the recorded network, and its long convolution is the sum that it stands for."""

import json

import pytest
import torch
import torch.nn.functional as F

from contracts.members import network_of, spec_of
from model.golden import dna_cases, dna_folder, dna_gradients, relative
from unmask.errors import UserError
from unmask.model.backbones.hyena import Hyena, HyenaSpec, convolve
from unmask.model.checkpoint import load
from unmask.model.cost import parameters
from unmask.model.formats.hyenadna import HyenaDNA
from unmask.model.passes.whole import hidden_states, read_on
from unmask.model.passing import Empty

TOLERANCE = 2e-5


@pytest.fixture
def net(tmp_path) -> Hyena:
    folder = dna_folder("hyenadna_tiny", tmp_path / "m")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "hyenadna"}))
    return load(folder, trainable=True).network


@pytest.fixture(scope="module")
def case():
    return dna_cases("hyenadna_tiny")


def test_logits_and_hidden_states_are_the_recorded_ones(net, case):
    x = case["input_ids"]
    with torch.no_grad():
        assert relative(net.head(read_on(net, x, Empty(0))[0]), case["logits"]) < TOLERANCE
        assert relative(net.head(hidden_states(net, x))[:, 1:], case["logits"][:, :-1]) < TOLERANCE
        hidden = net.embed(x)
        for block, entering in zip(net.layers, case["hidden"], strict=False):
            assert relative(hidden, entering) < TOLERANCE
            hidden = block(hidden)
        assert relative(hidden, case["hidden"][-2]) < TOLERANCE
        assert relative(net.ln_f(hidden), case["hidden"][-1]) < TOLERANCE


def test_filter_and_operator_are_the_recorded_ones(net, case):
    operator = net.layers[0].mixer
    with torch.no_grad():
        assert relative(operator.filter_fn(case["input_ids"].shape[1]), case["filter_layer0"]) < TOLERANCE
        assert relative(operator(case["operator_in"]), case["operator_out"]) < TOLERANCE


def test_computed_constants_are_the_recorded_ones(net, case):
    fresh = Hyena(net.spec).layers[0].mixer.filter_fn
    assert relative(fresh.pos_emb.z, case["pos_z"]) < 1e-6
    assert relative(fresh.modulation.deltas, case["deltas"]) < 1e-6
    assert relative(fresh.pos_emb.t, net.layers[0].mixer.filter_fn.pos_emb.t) < 1e-6


@pytest.mark.parametrize("recompute", [False, True])
def test_loss_and_gradients_are_the_recorded_ones(net, case, recompute):
    net.recompute = recompute
    x = case["input_ids"]
    loss = F.cross_entropy(net.head(hidden_states(net, x))[:, 1:].flatten(0, 1), x[:, 1:].flatten())
    loss.backward()
    assert loss.item() == pytest.approx(case["loss"].item(), rel=1e-5)
    told = {HyenaDNA().our_name(key): g for key, g in dna_gradients("hyenadna_tiny").items()}
    assert told.keys() == {f"backbone.{key}" for key, _ in net.named_parameters()}
    for key, p in net.named_parameters():
        g = told[f"backbone.{key}"]
        assert (p.grad - g).abs().max() < 1e-4 * g.abs().max(), key


def test_the_long_convolution_is_the_sum_over_the_past(generator):
    w, k, bias = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((2, 9, 3), (1, 9, 3), (3,))
    )
    told = torch.stack([sum(k[0, s] * w[:, t - s] for s in range(t + 1)) + bias * w[:, t] for t in range(9)], 1)
    torch.testing.assert_close(convolve(w, k, bias), told)


def test_the_filters_of_a_shorter_text_are_the_first_ones(net):
    filters = net.layers[1].mixer.filter_fn
    assert torch.equal(filters(20), filters(40)[:, :20])


def test_the_network_of_the_paper_has_the_number_of_weights_that_its_shapes_give():
    d, f = 128, 64
    layer = (3 * d * d + 3 * d) + (d * d + d) + 4 * 3 * d + 4 * d + (8 * d * d + 5 * d)  # operator, norms, MLP
    layer += d + (5 * f + f) + f + 2 * (f * f + f) + f * d  # filter
    assert 2 * layer == 433_792  # "433K" in the paper
    spec = HyenaSpec(vocab=16, length=1024, positions=1026, width=d, blocks=2)
    assert parameters(spec) == 2 * layer + 2 * d + 2 * 16 * d


def test_decay_leaves_out_the_filters(net):
    decayed = {id(p) for group in net.groups() if group.decay for p in group.parameters}
    assert not {id(p) for p in net.layers[0].mixer.filter_fn.parameters()} & decayed
    assert id(net.layers[0].mlp.fc1.weight) in decayed


def test_what_it_cannot_do_is_refused_in_words():
    net = network_of(spec_of("hyena", causal=True))
    with pytest.raises(UserError, match="cover 12 positions, the text has 13"):
        hidden_states(net, torch.zeros(1, 13, dtype=torch.long))
    for options, told in (
        ({"causal": False}, "reads forward only"),
        ({"positions": 5, "length": 6}, "shorten the rows"),
        ({"features": 4}, "odd number"),
        ({"mlps": 0}, "mlps must be at least 1"),
    ):
        with pytest.raises(UserError, match=told):
            HyenaSpec(**options)
