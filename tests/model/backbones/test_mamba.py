"""Mamba is the recorded network, reads token by token, and is trained and sampled like any other."""

import pytest
import torch
import torch.nn.functional as F

from contracts.members import LETTERS, network_of, spec_of
from model.golden import dna_cases, dna_folder, dna_gradients, relative
from unmask.errors import UserError
from unmask.model.backbones.mamba import Mamba, MambaSpec
from unmask.model.checkpoint import load
from unmask.model.cost import parameters
from unmask.model.passes.whole import hidden_states, read_on
from unmask.model.passing import Empty

TOLERANCE = 2e-5
IGNORED = 4  # the id that the recorded loss leaves out


@pytest.fixture
def net(tmp_path) -> Mamba:
    return load(dna_folder("mamba_tiny", tmp_path / "m"), trainable=True).network


@pytest.fixture(scope="module")
def case():
    return dna_cases("mamba_tiny")


@pytest.mark.slow
def test_the_estimate_of_memory_has_the_states_that_the_compiled_scan_keeps():
    """Of two states of different size; the inputs of the scan, which grow with it too, are less than they."""
    pytest.importorskip("numba")
    kept, told, tokens = [], [], torch.zeros(1, 512, dtype=torch.long)
    for state in (16, 128):
        spec, seen = MambaSpec(vocab=8, width=32, blocks=1, state=state), {}

        def keep(x, seen=seen):
            seen[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // 4
            return x

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            hidden_states(network_of(spec), tokens)
        kept.append(sum(seen.values()))
        told.append(512 * spec.activations)
    assert told[1] - told[0] < kept[1] - kept[0] < 3 * (told[1] - told[0])


def test_logits_and_hidden_states_are_the_recorded_ones(net, case):
    with torch.no_grad():
        hidden, _ = read_on(net, case["input_ids"], Empty(0))
        assert relative(hidden, case["hidden_final"]) < TOLERANCE
        assert relative(net.head(hidden), case["logits"]) < TOLERANCE
        assert relative(net.head(hidden_states(net, case["input_ids"]))[:, 1:], case["logits"][:, :-1]) < TOLERANCE
        x = net.embed(case["input_ids"])
        for block, entering, out in zip(net.layers, case["residual"], case["mixer_out"], strict=True):
            assert relative(x, entering) < TOLERANCE
            after, _ = block(x)
            assert relative(after - x, out) < TOLERANCE
            x = after


def test_token_by_token_the_recorded_logits_and_states_come_out(net, case):
    memory, logits = Empty(0), []
    with torch.no_grad():
        for token in case["input_ids"].split(1, 1):
            hidden, memory = read_on(net, token, memory)
            logits.append(net.head(hidden))
    assert relative(torch.cat(logits, 1), case["step_logits"]) < TOLERANCE
    for past, inputs, state in zip(memory.layers, case["step_conv_state"], case["step_ssm_state"], strict=True):
        assert relative(past.state, state) < TOLERANCE
        assert relative(past.inputs, inputs.transpose(1, 2)[:, 1:]) < TOLERANCE


def test_the_memory_does_not_grow(net, case):
    sizes = set()
    for length in (5, 20):
        _, memory = read_on(net, case["input_ids"][:, :length], Empty(0))
        sizes.add(sum(past.inputs.numel() + past.state.numel() for past in memory.layers))
    assert len(sizes) == 1


@pytest.mark.parametrize("recompute", [False, True])
def test_loss_and_gradients_are_the_recorded_ones(net, case, recompute):
    net.recompute = recompute
    x = case["input_ids"]
    logits = net.head(hidden_states(net, x))[:, 1:]
    loss = F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten(), ignore_index=IGNORED)
    loss.backward()
    assert loss.item() == pytest.approx(case["loss"].item(), rel=1e-5)
    told = {name.removeprefix("backbone."): g for name, g in dna_gradients("mamba_tiny").items()}
    assert told.keys() == {name for name, _ in net.named_parameters()}
    for name, p in net.named_parameters():
        assert (p.grad - told[name]).abs().max() < 1e-4 * told[name].abs().max(), name


def test_the_network_of_the_paper_has_the_published_number_of_weights():
    assert parameters(MambaSpec(vocab=16, width=128, blocks=4)) == 468_608  # both embeddings aside: 464,512, "465K"


def test_fresh_weights_remember_over_many_scales():
    net = Mamba(MambaSpec(vocab=16, width=64, blocks=4))
    mixer = net.layers[0].mixer
    delta = F.softplus(mixer.dt_proj.bias.detach())
    assert 1e-3 <= delta.min() < 3e-3
    assert 0.03 < delta.max() <= 0.1001
    assert torch.allclose(mixer.A_log.exp()[5], torch.arange(1.0, 17))
    assert mixer.out_proj.weight.abs().max() <= 128**-0.5 / 2 < mixer.in_proj.weight.abs().max() * 2
    with torch.no_grad():
        nats = F.cross_entropy(
            net.head(hidden_states(net, torch.randint(16, (4, 50)))).flatten(0, 1), torch.arange(200) % 16
        )
    assert abs(nats.item() - torch.tensor(16.0).log().item()) < 0.1


def test_dropout_acts_in_training_only():
    net = network_of(spec_of("mamba", causal=True))
    x = torch.randint(LETTERS.size, (2, 9), generator=torch.Generator().manual_seed(0))
    plain = hidden_states(net, x)
    dropping = Mamba(MambaSpec(**{**vars(net.spec), "dropout": 0.5}))
    dropping.load_state_dict(net.state_dict())
    assert torch.equal(hidden_states(dropping.eval(), x), plain)
    assert not torch.allclose(hidden_states(dropping.train(), x), plain)


def test_decay_leaves_out_what_the_states_decay_by(net):
    decayed = {id(p) for group in net.groups() if group.decay for p in group.parameters}
    assert not {id(layer.mixer.A_log) for layer in net.layers} & decayed
    assert {id(layer.mixer.in_proj.weight) for layer in net.layers} <= decayed


def test_what_it_cannot_do_is_refused_in_words(net):
    with pytest.raises(UserError, match="reads forward only"):
        spec_of("mamba", causal=False)
    with pytest.raises(UserError, match="state must be at least 1"):
        MambaSpec(state=0)
    with pytest.raises(UserError, match="cannot run a pass"):
        hidden_states(net, torch.zeros(1, 3, dtype=torch.long), allowed=torch.ones(3, 3, dtype=torch.bool))
