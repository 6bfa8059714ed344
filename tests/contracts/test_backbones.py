"""Every backbone equals itself by rows, padded, batched, as vectors, read on, saved and loaded."""

import pytest
import torch

from contracts.members import LENGTH, LETTERS, NAMES, network_of, spec_of
from unmask.errors import UserError
from unmask.model.backbone import BACKBONES, skeleton
from unmask.model.checkpoint import load, save
from unmask.model.cost import parameters
from unmask.model.passes.whole import hidden_states, logits_at, read_on
from unmask.model.passing import Empty


def builds(name: str, causal: bool) -> bool:
    """Whether a backbone can see both sides, or only the past: some refuse one of the two."""
    if BACKBONES[name].__dataclass_fields__["causal"].default and not causal:
        return False
    try:
        return spec_of(name, causal=causal).causal == causal
    except UserError:
        return False


CASES = [(name, causal) for name in NAMES["backbones"] for causal in (False, True) if builds(name, causal)]
assert {name for name, _ in CASES} == set(NAMES["backbones"])
pytestmark = pytest.mark.parametrize(("name", "causal"), CASES)
SIGMA = torch.tensor([0.3, 1.2, 2.5])


@pytest.fixture
def net(name, causal):
    return network_of(spec_of(name, causal=causal))


@pytest.fixture
def x():
    return torch.randint(LETTERS.size, (3, LENGTH), generator=torch.Generator().manual_seed(0))


def everywhere(net, x, **options) -> torch.Tensor:
    with torch.no_grad():
        return net.head(hidden_states(net, x, SIGMA[: len(x)], **options))


def close(a, b) -> None:
    """Equal up to rounding, which grows with the largest number of the sum."""
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 + 1e-6 * b.abs().max().item())


def test_asked_rows_are_those_of_the_whole(net, x):
    rows = torch.tensor([30, 2, 17, 5])
    with torch.no_grad():
        close(logits_at(net, x, SIGMA, rows), everywhere(net, x).flatten(0, 1)[rows])


def test_a_row_is_the_same_alone_and_in_a_batch(net, x):
    close(everywhere(net, x[1:2]), everywhere(net, x)[1:2])


def test_padding_is_seen_by_nobody(net, x):
    short = x[:, :7]
    padded = torch.cat((short, torch.full((3, 5), 1)), 1)
    lengths = torch.full((3,), 7)
    close(everywhere(net, padded, lengths=lengths)[:, :7], everywhere(net, short))


def test_vectors_may_stand_for_tokens(net, x):
    with torch.no_grad():
        close(everywhere(net, net.embed(x)), everywhere(net, x))
        close(net.table()[x], net.embed(x))


def test_a_causal_network_predicts_from_what_is_before(net, x, causal):
    other = x.clone()
    other[:, 6] = (other[:, 6] + 1) % LETTERS.size
    before, after = everywhere(net, x), everywhere(net, other)
    rounding = 1e-6 * max(1.0, before.abs().max().item())  # Fourier transforms spread it over all positions
    changed = (before - after).abs().amax((0, 2)) > rounding
    assert changed[:7].any() != causal
    assert changed[7:].any()


def test_reading_on_equals_reading_at_once(net, x):
    if not net.spec.abilities.memory:
        with pytest.raises(UserError, match=r"cannot run a pass|token by token"):
            read_on(net, x, Empty(LENGTH))
        return
    with torch.no_grad():
        at_once, _ = read_on(net, x, Empty(LENGTH))
        memory, parts = Empty(LENGTH), []
        for piece in x.split([4, 1, 7], 1):
            hidden, memory = read_on(net, piece, memory)
            parts.append(hidden)
        assert memory.filled == LENGTH
        close(torch.cat(parts, 1), at_once)
        if net.spec.causal:
            close(net.head(at_once[:, :-1]), everywhere(net, x)[:, 1:])  # the same predictions, one position earlier
        some, _ = read_on(net, x[[2, 0], 8:], read_on(net, x[:, :8], Empty(LENGTH))[1].take(torch.tensor([2, 0])))
        close(some, at_once[[2, 0], 8:])


def test_the_noise_level_may_be_per_row_or_per_position(name, causal, x):
    if not hasattr(BACKBONES[name](), "cond"):
        with pytest.raises(UserError, match="noise level"):
            spec_of(name, causal=causal, sigma=True)
        return
    net = network_of(spec_of(name, causal=causal, sigma=True))
    assert net.spec.shown_sigma
    with torch.no_grad():
        by_row = net.head(hidden_states(net, x, SIGMA))
        by_position = net.head(hidden_states(net, x, SIGMA[:, None].expand(-1, LENGTH)))
        close(by_position, by_row)
        rows = torch.tensor([0, 13, 25])
        close(logits_at(net, x, SIGMA[:, None].expand(-1, LENGTH).contiguous(), rows), by_row.flatten(0, 1)[rows])
        other = SIGMA[:, None].repeat(1, LENGTH)
        other[:, 5] += 1.0
        assert not torch.allclose(net.head(hidden_states(net, x, other)), by_row)
        spread = torch.rand(3, LENGTH, generator=torch.Generator().manual_seed(0)) * 3
        close(logits_at(net, x, spread, rows), net.head(hidden_states(net, x, spread)).flatten(0, 1)[rows])


def test_what_is_saved_is_loaded(net, x, tmp_path, causal):
    objective = "ar" if causal else "mdlm"
    model = load(save(tmp_path / "m", net, mask=LETTERS.mask, objective=objective, tokenizer=LETTERS))
    assert model.spec == net.spec
    close(everywhere(model.network, x), everywhere(net, x))
    assert model.self_test < 1e-3


def test_every_parameter_has_one_group_and_matrices_are_among_the_units(net):
    groups = [id(p) for group in net.groups() for p in group.parameters]
    assert sorted(groups) == sorted(id(p) for p in net.parameters())
    inside = {id(p) for unit in net.units for p in unit.parameters()}
    assert all(id(p) in inside and p.ndim == 2 and p.shape[0] % n == 0 for p, n in net.matrices().items())


def test_costs_are_known_before_it_is_built(net):
    assert parameters(net.spec) == sum(p.numel() for p in net.parameters())
    assert net.spec.flops() > net.spec.flops(rows=0.1) > 0
    assert net.spec.activations > 0
    assert all(p.is_meta for p in skeleton(net.spec).parameters())


def test_pooling_takes_the_real_positions(net, x):
    with torch.no_grad():
        hidden = hidden_states(net, x, SIGMA)
        pooled = net.pool(hidden, torch.tensor([3, LENGTH, 5]))
        close(pooled[0], net.pool(hidden[:1, :3])[0])
    assert pooled.shape == (3, net.spec.width)


def test_freezing_leaves_no_gradient_and_changes_nothing(net, x):
    before = everywhere(net, x)
    assert not any(p.requires_grad for p in net.freeze().parameters())
    close(everywhere(net, x), before)
    assert net.device == torch.device("cpu")
