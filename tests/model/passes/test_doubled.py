"""One pass over noisy and clean text gives the recorded values, and those of a pass for each block."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.flop_counter import FlopCounterMode

from model.golden import FOLDER, arrays_of, distance
from unmask.errors import UserError
from unmask.model.backbones.transformer import Architecture, Transformer
from unmask.model.passes.doubled import halves
from unmask.model.passes.whole import hidden_states, logits_at

GOLDEN = FOLDER / "block"
SIZES = [1, 2, 3, 4, 6, 8, 12, 24]
CPU = torch.device("cpu")


def golden_network() -> Transformer:
    c = json.loads((GOLDEN / "block_tiny.config.json").read_text())
    network = Transformer(
        Architecture(
            vocab=c["vocab_size"],
            length=c["model_length"],
            width=c["hidden_dim"],
            blocks=c["n_blocks"],
            heads=c["n_heads"],
            cond=c["cond_dim"],
        )
    )
    weights = load_file(GOLDEN / "block_tiny.safetensors")
    network.load_state_dict({n.removeprefix("backbone."): w for n, w in weights.items() if "sampling" not in n})
    return network.eval()


@pytest.fixture(scope="module")
def cases():
    found = arrays_of(GOLDEN / "block_tiny_cases.npz")
    return {name: value.long() if value.dtype == torch.int16 else value for name, value in found.items()}


def random_network(*, before: bool, seed: int = 0) -> Transformer:
    generator = torch.Generator().manual_seed(seed)
    network = Transformer(Architecture(vocab=7, length=12, width=16, blocks=2, heads=2, reads_before=before)).double()
    with torch.no_grad():
        for p in network.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * (0.6 if p.ndim > 1 else 0.3))
    return network.eval()


def every(x):
    return torch.arange(x.numel())


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_logits_for_the_noisy_half_are_the_recorded_ones(cases, size):
    x_t = cases[f"bs{size}_xt"]
    with torch.no_grad():
        found = logits_at(golden_network().freeze(), x_t, None, every(x_t), clean=cases["x0"], size=size)
    assert distance(found.view(*x_t.shape, -1), cases[f"bs{size}_logits"]) < 5e-5


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 4, 24])
def test_the_rule_of_sight_is_the_recorded_one(cases, size):
    """We leave out the last clean block, which no noisy block sees."""
    found, length = halves(24, size, leads=False, device=CPU), 24
    assert torch.equal(found.visible, cases[f"bs{size}_attn"].bool()[found.source][:, found.source])
    assert len(found.source) == 2 * length - size


@pytest.mark.slow
def test_gradients_are_the_recorded_ones_so_the_clean_half_has_them_too(cases):
    network, x0, x_t = golden_network(), cases["x0"], cases["bs4_xt"]
    rows = (x_t == int(cases["mask_index"])).flatten().nonzero().squeeze(1)
    logits = logits_at(network, x_t, None, rows, clean=x0, size=4)
    logits = logits.index_fill(1, cases["mask_index"].view(1), -torch.inf)
    nats = -logits.log_softmax(-1).gather(1, x0.flatten()[rows, None]).squeeze(1) / cases["bs4_t"].flatten()[rows]
    loss = nats.sum() / (x0.numel() - len(x0))
    assert float(loss.detach()) == pytest.approx(float(cases["main_train_loss"]), rel=1e-4)
    loss.backward()
    for name, told in load_file(GOLDEN / "block_tiny_grads.safetensors").items():
        seen = dict(network.named_parameters()).get(name.removeprefix("backbone."))
        if seen is not None:
            assert distance(seen.grad, told) < 1e-4, name


@pytest.mark.parametrize("before", [False, True])
def test_the_clean_half_has_no_head_and_in_the_last_layer_keys_and_values_only(before):
    """By the multiplications of all weights: whatever else was computed would be counted."""
    network, size, (b, l, d) = random_network(before=before), 3, (2, 12, 16)
    noisy, clean = torch.randint(7, (b, l)), torch.randint(7, (b, l))
    rows = torch.tensor([1, 3, 5, 14, 22])
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        logits_at(network, noisy, None, rows, clean=clean, size=size)
    products = sum(
        flops
        for name, flops in counted.get_flop_counts()["Global"].items()
        if "mm" in str(name)  # attention aside
    )
    elements = b * (2 * l - size + (l // size - 1 if before else 0))
    whole, last = 24 * d * d * elements, 4 * d * d * elements + 20 * d * d * len(rows)
    assert products == whole + last + 2 * d * 7 * len(rows), "one whole layer, the last one, the head"


@pytest.mark.slow
@pytest.mark.parametrize("before", [False, True])
def test_one_block_is_the_network_itself(before):
    network = random_network(before=before)
    x, clean = torch.randint(7, (2, 12)), torch.randint(7, (2, 12))
    with torch.no_grad():
        assert torch.equal(
            logits_at(network, x, None, every(x), clean=clean, size=12), logits_at(network, x, None, every(x))
        )


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3, 5, 6])
def test_all_blocks_at_once_are_each_block_after_its_clean_text(size):
    """A pass for each block alone, with a mask written down here: clean blocks, then the noisy one, block-causal."""
    network = random_network(before=False)
    noisy, clean = torch.randint(7, (2, 12)), torch.randint(7, (2, 12))
    number = torch.arange(12) // size
    with torch.no_grad():
        together = logits_at(network, noisy, None, every(noisy), clean=clean, size=size).view(2, 12, -1)
        for first in range(0, 12, size):
            stop = min(first + size, 12)
            row = torch.cat([clean[:, :first], noisy[:, first:stop]], 1)
            allowed = number[:stop, None] >= number[:stop]
            alone = network.head(hidden_states(network, row, allowed=allowed))[:, first:]
            torch.testing.assert_close(together[:, first:stop], alone, rtol=1e-9, atol=1e-9)


def test_blocks_of_one_token_are_the_causal_network_where_it_reads_before():
    network = random_network(before=True)
    twin = Transformer(Architecture(vocab=7, length=12, width=16, blocks=2, heads=2, causal=True, reads_before=True))
    twin.double().load_state_dict(network.state_dict())
    clean = torch.randint(7, (2, 12))
    masked = torch.full_like(clean, 6)
    with torch.no_grad():
        found = logits_at(network, masked, None, every(clean), clean=clean, size=1).view(2, 12, -1)
        told = twin.head(hidden_states(twin, clean))
    torch.testing.assert_close(found[:, 1:], told[:, 1:], rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("before", [False, True])
def test_a_block_depends_on_its_own_noise_and_on_the_clean_text_before_it_alone(before):
    network, size = random_network(before=before), 3
    noisy, clean = torch.randint(6, (1, 12)), torch.randint(6, (1, 12))
    noisy[0, [3, 6, 9]] = 6  # first positions are asked for when they are hidden
    number = torch.arange(12) // size

    def answers(x, text):
        with torch.no_grad():
            return logits_at(network, x, None, every(x), clean=text, size=size).view(12, -1)

    told = answers(noisy, clean)
    for at in range(12):
        other = clean.clone()
        other[0, at] = (clean[0, at] + 1) % 6
        changed = (answers(noisy, other) - told).abs().amax(1) > 1e-9
        assert torch.equal(changed, number > at // size)
        if int(noisy[0, at]) != 6:
            other = noisy.clone()
            other[0, at] = (noisy[0, at] + 1) % 6
            changed = (answers(other, clean) - told).abs().amax(1) > 1e-9
            assert torch.equal(changed, number == at // size), "a first position sees its own block too"


@pytest.mark.slow
def test_padding_and_anneal_hold_for_both_halves():
    network, size = random_network(before=True), 4
    noisy, clean = torch.randint(6, (2, 12)), torch.randint(6, (2, 12))
    rows = torch.arange(7)
    with torch.no_grad():
        short = logits_at(network, noisy[:1, :7], None, rows, clean=clean[:1, :7], size=size)
        padded = logits_at(network, noisy, None, rows, clean=clean, size=size, lengths=torch.tensor([7, 12]))
        causal = torch.ones(12, 12).tril().bool()
        ahead = logits_at(network, noisy, None, rows, clean=clean, size=size, allowed=causal)
    torch.testing.assert_close(padded, short, rtol=1e-9, atol=1e-9)
    assert (ahead - padded).abs().max() > 1e-3


@pytest.mark.slow
def test_a_network_that_takes_the_noise_level_is_refused():
    timed = Transformer(Architecture(vocab=7, length=12, width=16, heads=2, cond=8, time_conditioning=True))
    x = torch.zeros(1, 12, dtype=torch.long)
    with pytest.raises(UserError, match="without time_conditioning"):
        logits_at(timed, x, torch.zeros(1), every(x), clean=x, size=4)
