"""Caduceus is the recorded networks, and equivariant to the strands of DNA if it says so."""

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from contracts.members import network_of
from model.formats.caduceus_files import published
from model.golden import FOLDER, arrays_of, dna_cases, dna_gradients, relative
from unmask.diffusion.bound import exact_bound
from unmask.errors import UserError
from unmask.model.backbone import Backbone, build
from unmask.model.backbones.caduceus import BothWays, Caduceus, CaduceusSpec, reverse
from unmask.model.checkpoint import load
from unmask.model.cost import parameters
from unmask.model.formats.caduceus import CaduceusLayout
from unmask.model.passes.whole import hidden_states, logits_at
from unmask.random import TOKEN, Dice
from unmask.sampling import masked
from unmask.sampling.logits import LogitOptions
from unmask.sampling.masked import fill
from unmask.sampling.policies.planned import Ancestral, FirstHitting
from unmask.text.prompt.canvas import of_tokens
from unmask.text.tokens import vocabulary

NAMES = ["ps_fused", "ps_unfused", "ph", "ph_untied_mult"]
STRANDED = NAMES[:2]
TOLERANCE, IGNORED = 2e-5, 4


def network(name, tmp_path) -> Caduceus:
    return load(published(name, tmp_path / name), trainable=True).network


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_hidden_states_are_the_recorded_ones(name, tmp_path):
    net, case = network(name, tmp_path), dna_cases(f"caduceus_{name}")
    for suffix, tokens in (("", case["input_ids"]), ("_rc_input", case["rc_input_ids"])):
        with torch.no_grad():
            hidden = hidden_states(net, tokens)
            assert relative(hidden, case[f"hidden_final{suffix}"]) < TOLERANCE
            assert relative(net.head(hidden), case[f"logits{suffix}"]) < TOLERANCE
    assert relative(net.embed(case["input_ids"]), case["embeddings"]) < TOLERANCE


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("recompute", [False, True])
def test_loss_and_gradients_are_the_recorded_ones(name, recompute, tmp_path):
    net, case = network(name, tmp_path), dna_cases(f"caduceus_{name}")
    net.recompute = recompute
    rows = (case["labels"] != IGNORED).flatten().nonzero().squeeze(1)
    loss = F.cross_entropy(logits_at(net, case["input_ids"], None, rows), case["labels"].flatten()[rows])
    loss.backward()
    assert loss.item() == pytest.approx(case["loss"].item(), rel=1e-5)
    told = {CaduceusLayout().our_name(key): g for key, g in dna_gradients(f"caduceus_{name}").items()}
    assert told.keys() == {f"backbone.{key}" for key, _ in net.named_parameters()}
    for key, p in net.named_parameters():
        g = told[f"backbone.{key}"]
        assert (p.grad - g).abs().max() < 1e-4 * g.abs().max(), key


@pytest.mark.parametrize("name", STRANDED)
def test_the_reverse_complement_gives_the_same_logits_reversed_and_complemented(name, tmp_path):
    """Bit for bit, as these sizes fill vector registers; numbers that are left over would be rounded otherwise."""
    net, case = network(name, tmp_path), dna_cases(f"caduceus_{name}")
    partners = net.complement(torch.device("cpu"))
    assert torch.equal(partners[case["input_ids"]].flip(1), case["rc_input_ids"])
    with torch.no_grad():
        one, other = hidden_states(net, case["input_ids"]), hidden_states(net, case["rc_input_ids"])
        assert torch.equal(other.flip(1, 2), one)
        assert torch.equal(net.head(other).flip(1)[..., partners], net.head(one))
        torch.testing.assert_close(net.pool(other), net.pool(one), rtol=1e-6, atol=1e-6)


def test_the_two_networks_that_are_called_ps_differ(tmp_path):
    net, case = network("ps_fused", tmp_path), dna_cases("caduceus_ps_fused")
    other = Caduceus(replace(net.spec, exchange=False))
    other.load_state_dict(net.state_dict())
    with torch.no_grad():
        logits = other.head(hidden_states(other, case["input_ids"]))
    assert relative(logits, dna_cases("caduceus_ps_unfused")["logits"]) < TOLERANCE
    assert (logits - case["logits"]).abs().max() > 1


@pytest.mark.parametrize("name", ["ps_fused", "ps_unfused", "ph"])
def test_pooled_features_give_the_recorded_classification(name, tmp_path):
    net, case = network(name, tmp_path), dna_cases(f"caduceus_{name}")
    score = load_file(FOLDER / "dna" / f"caduceus_{name}.safetensors")["score.weight"]
    with torch.no_grad():
        seen = F.linear(net.pool(hidden_states(net, case["input_ids"])), score)
        back = F.linear(net.pool(hidden_states(net, case["rc_input_ids"])), score)
    if name == "ph":  # both strands are read one after the other
        assert relative(seen, case["cls_logits_single"]) < TOLERANCE
        seen = (seen + back) / 2
    else:
        assert relative(back, case["cls_logits_rc_input"]) < TOLERANCE
    assert relative(seen, case["cls_logits"]) < TOLERANCE


@pytest.fixture(params=[{}, {"exchange": False}], ids=["exchanged", "apart"])
def stranded(request) -> Backbone:
    """The contract's network with two strands; the contract tests run the one with a single strand."""
    return network_of(CaduceusSpec(vocab=8, length=12, width=16, blocks=3, equivariant=True, **request.param))


@pytest.fixture
def x(generator):
    return torch.randint(8, (3, 12), generator=generator)


def test_with_two_strands_rows_vectors_and_batches_are_those_of_the_whole(stranded, x):
    rows = torch.tensor([30, 2, 17, 5])
    with torch.no_grad():
        whole = stranded.head(hidden_states(stranded, x))
        torch.testing.assert_close(
            logits_at(stranded, x, None, rows), whole.flatten(0, 1)[rows], rtol=1e-4, atol=1e-4
        )
        torch.testing.assert_close(stranded.head(hidden_states(stranded, stranded.embed(x))), whole)
        torch.testing.assert_close(stranded.head(hidden_states(stranded, x[1:2])), whole[1:2], rtol=1e-4, atol=1e-4)
    assert stranded.table().shape == (8, 32)
    assert stranded.pool(hidden_states(stranded, x)).shape == (3, 16)


def test_with_two_strands_padding_is_seen_by_nobody(stranded, x):
    lengths = torch.tensor([7, 12, 4])
    with torch.no_grad():
        padded = stranded.head(hidden_states(stranded, x, lengths=lengths))
        for row, n in enumerate(lengths.tolist()):
            alone = stranded.head(hidden_states(stranded, x[row : row + 1, :n]))
            torch.testing.assert_close(padded[row, :n], alone[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("combine", ["add", "multiply"])
@pytest.mark.parametrize("shared", [True, False])
def test_the_mixer_is_two_mambas_one_of_which_reads_backwards(combine, shared, generator):
    mixer = BothWays(CaduceusSpec(vocab=8, width=8, combine=combine, shared=shared))
    x = torch.randn(2, 20, 8, generator=generator)

    def alone(mamba, owner, x):
        u, z = owner.in_proj(x).chunk(2, -1)
        return owner.out_proj(mamba.scanned(u)[0] * F.silu(z))

    owner = mixer.mamba_fwd if shared else mixer.mamba_rev
    one, other = alone(mixer.mamba_fwd, mixer.mamba_fwd, x), alone(mixer.mamba_rev, owner, x.flip(1)).flip(1)
    told = one + other if combine == "add" else one * other
    torch.testing.assert_close(mixer(x, None), told, rtol=1e-5, atol=1e-6)


def test_rows_are_reversed_within_their_lengths():
    x = torch.arange(10.0).view(2, 5, 1)
    order = torch.tensor([[2, 1, 0, 3, 4], [4, 3, 2, 1, 0]])
    assert reverse(x, order).flatten().tolist() == [2, 1, 0, 3, 4, 9, 8, 7, 6, 5]


def test_the_modulated_network_is_the_recorded_dimamba():
    case = arrays_of(FOLDER / "dna" / "dimamba_tiny_cases.npz")
    spec = CaduceusSpec(vocab=13, length=18, width=32, blocks=2, cond=16, time_conditioning=True, tied=False)
    net = build(spec).eval()
    names = ("backbone.model.bimamba.backbone.", "backbone.model.", "backbone.")
    state = {}
    for key, w in load_file(FOLDER / "dna" / "dimamba_tiny.safetensors").items():
        prefix = next(one for one in names if key.startswith(one))
        state[key.removeprefix(prefix)] = w
    for copy, original in net.copies.items():
        assert torch.equal(state.pop(copy), state[original])
    net.load_state_dict(state)
    with torch.no_grad():
        assert relative(net.head(hidden_states(net, case["xt"], case["sigma"])), case["logits_time"]) < TOLERANCE


@pytest.mark.parametrize("equivariant", [False, True])
def test_the_network_of_the_paper_has_the_published_number_of_weights(equivariant):
    spec = CaduceusSpec(vocab=16, width=118, blocks=4, equivariant=equivariant)
    assert parameters(spec) == 470_702  # both embeddings aside: 466,926, "467K"


def test_what_it_cannot_do_is_refused_in_words(stranded, x):
    for options, told in (
        ({"causal": True}, "reads both ways"),
        ({"equivariant": True, "cond": 8}, "set cond = 0"),
        ({"time_conditioning": True}, "set cond"),
        ({"kernel": 0}, "kernel must be at least 1"),
    ):
        with pytest.raises(UserError, match=told):
            CaduceusSpec(vocab=8, **options)
    for complement, told in (
        ("0-9", "from 0 to 7"),
        ("a-b", "from 0 to 7"),
        ("9" * 9999 + "-1", "from 0 to 7"),
        ("0-3 3-1", "one pair only"),
    ):
        with pytest.raises(UserError, match=told):
            build(CaduceusSpec(vocab=8, equivariant=True, complement=complement))
    with pytest.raises(UserError, match="cannot take the noise level as input"):
        stranded.spec.shown(True)
    with pytest.raises(UserError, match="cannot run a pass"):
        hidden_states(stranded, x, allowed=torch.ones(12, 12, dtype=torch.bool))


def test_the_complement_of_a_new_network_is_that_of_its_tokenizer():
    spec = CaduceusSpec(vocab=12, equivariant=True)
    assert spec.reading(vocabulary.caduceus()).complement == "7-10 8-9"
    assert spec.reading(vocabulary.dna()).complement == "0-3 1-2"
    assert CaduceusSpec(vocab=12, equivariant=True, complement="0-1").reading(vocabulary.dna()).complement == "0-1"
    with pytest.raises(UserError, match="vocabulary of bases"):
        spec.reading(vocabulary.byte())


STRANDS = pytest.mark.parametrize("exchange", [True, False], ids=["exchanged", "apart"])


@pytest.mark.slow
@STRANDS
def test_at_the_size_of_the_paper_the_other_strand_gives_the_same_logits_to_the_last_bit(exchange, generator):
    net = network_of(CaduceusSpec(vocab=8, width=118, blocks=4, equivariant=True, exchange=exchange), scale=0.05)
    partners, x = net.complement(torch.device("cpu")), torch.randint(5, (2, 200), generator=generator)
    with torch.no_grad():
        one, other = (net.head(hidden_states(net, tokens)) for tokens in (x, partners[x].flip(1)))
    assert torch.equal(other.flip(1)[..., partners], one)
    assert float(one.std()) > 0.01


@pytest.mark.parametrize("width", [7, 13, 118])
@pytest.mark.parametrize("rows, length", [(1, 9), (2, 17), (3, 37), (1, 63)])
def test_at_any_size_the_other_strand_gives_the_same_logits_up_to_rounding(width, rows, length, generator):
    """A number beyond the last full vector register is rounded otherwise: by less than 1e-6 of the largest logit."""
    net = network_of(CaduceusSpec(vocab=8, width=width, blocks=3, equivariant=True), scale=0.2)
    partners, x = net.complement(torch.device("cpu")), torch.randint(5, (rows, length), generator=generator)
    with torch.no_grad():
        one, other = (net.head(hidden_states(net, tokens)) for tokens in (x, partners[x].flip(1)))
    assert (other.flip(1)[..., partners] - one).abs().max() < 1e-6 * one.abs().max()
    assert (other.flip(1) - one).abs().max() > 1e-3 * one.abs().max()  # without the complement they differ


@STRANDS
def test_the_exact_bound_of_a_sequence_is_that_of_its_reverse_complement(exchange):
    """Over all 63 masks of 6 bases; a network without strands tells them apart."""
    spec = CaduceusSpec(vocab=8, width=16, blocks=2, equivariant=True, exchange=exchange)
    tokens = torch.tensor([0, 2, 3, 3, 0, 1])
    for one, equal in ((spec, True), (replace(spec, equivariant=False), False)):
        net = network_of(one)
        back = torch.tensor([3, 2, 1, 0, 4, 5, 6, 7])[tokens].flip(0)
        with torch.no_grad():
            bounds = [float(exact_bound(partial(logits_at, net), row, mask=7)) for row in (tokens, back)]
        assert (abs(bounds[0] - bounds[1]) < 1e-4 * bounds[0]) == equal


def mirrored(length: int) -> type[Dice]:
    """Dice whose numbers belong to positions counted from the end, and whose tokens are drawn from the last id on."""

    class Mirrored(Dice):
        def grid(self, width, purpose, *, number=None):
            return super().grid(width, purpose, number=number).flip(1)

        def at(self, row, column, number, purpose):
            u = super().at(row, length - 1 - column, number, purpose)
            return 1 - u if purpose == TOKEN else u

    return Mirrored


@pytest.mark.slow
@STRANDS
@pytest.mark.parametrize("policy", [FirstHitting(), Ancestral(7)], ids=["first-hitting", "ancestral"])
def test_drawing_on_the_other_strand_with_mirrored_dice_gives_the_mirrored_text(policy, exchange, monkeypatch):
    net = network_of(CaduceusSpec(vocab=8, width=16, blocks=2, equivariant=True, exchange=exchange))
    partners, options = net.complement(torch.device("cpu")), LogitOptions(banned=(4, 5, 6))
    given = torch.tensor([[7] * 5 + [0, 2, 3] + [7] * 12, [1] + [7] * 19])
    with torch.no_grad():
        (*_, one) = fill(net, of_tokens(given, mask=7), policy, seed=3, options=options)
        monkeypatch.setattr(masked, "Dice", mirrored(20))
        (*_, other) = fill(net, of_tokens(partners[given].flip(1), mask=7), policy, seed=3, options=options)
    text = one.canvas.tokens
    assert set(text.flatten().tolist()) == {0, 1, 2, 3}
    assert torch.equal(partners[other.canvas.tokens].flip(1), text)
