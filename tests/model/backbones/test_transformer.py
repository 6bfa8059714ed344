"""Every shortcut of the transformer gives what the long way gives, and no position sees what it must not see."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model.golden import distance, network, recorded
from model.worlds import KINDS, PLAIN, random_network, random_tokens
from unmask.errors import UserError
from unmask.model.backbones.transformer import Architecture, Transformer, precision
from unmask.model.passes.whole import hidden_states, logits_at, read_on
from unmask.model.passing import Causal, Empty, Pass

EXACT = 1e-12
kinds = pytest.mark.parametrize("kind", KINDS)


def full(net: Transformer, tokens: Tensor, sigma: Tensor | None = None, **options) -> Tensor:
    with torch.no_grad():
        return hidden_states(net, tokens, sigma, **options)


def levels(batch: int) -> Tensor:
    return torch.linspace(0.1, 3, batch, dtype=torch.float64)


@kinds
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_asked_rows_are_those_of_the_full_pass_in_any_order(kind, data):
    net, tokens = random_network(KINDS[kind]), random_tokens(3, 9)
    rows = torch.tensor(data.draw(st.lists(st.integers(0, 26), max_size=30, unique=True)), dtype=torch.int64)
    some = full(net, tokens, levels(3), rows=rows)
    assert some.shape == (len(rows), 16)
    everything = full(net, tokens, levels(3)).flatten(0, 1)
    assert (
        distance(torch.cat((some, some.new_zeros(1, 16))), torch.cat((everything[rows], some.new_zeros(1, 16))))
        < EXACT
    )


@kinds
def test_logits_are_the_head_of_the_asked_rows(kind):
    net, tokens, rows = random_network(KINDS[kind]), random_tokens(2, 9), torch.tensor([17, 3, 0, 9])
    with torch.no_grad():
        told = net.head(hidden_states(net, tokens, levels(2))).flatten(0, 1)[rows]
        assert distance(logits_at(net, tokens, levels(2), rows), told) < EXACT


@kinds
def test_frozen_equals_unfrozen_and_thaws_when_gradients_are_wanted(kind):
    net, tokens = random_network(KINDS[kind]), random_tokens(3, 7)
    told = full(net, tokens, levels(3))
    assert distance(full(net.freeze(), tokens, levels(3)), told) < EXACT
    narrow = full(net.float(), tokens, levels(3).float())  # not with the weights kept before .to()
    assert narrow.dtype == torch.float32
    assert distance(narrow, told) < 1e-3
    net.double()
    net.requires_grad_(True)
    hidden_states(net, tokens, levels(3)).square().sum().backward()
    assert all(p.grad is not None for name, p in net.named_parameters() if not name.startswith("output_layer.linear"))


@kinds
@pytest.mark.parametrize("rows", [None, torch.tensor([2, 20, 10, 0])])
def test_padding_and_neighbours_change_nothing(kind, rows):
    net, tokens, lengths = random_network(KINDS[kind]), random_tokens(3, 9), torch.tensor([4, 9, 6])
    together = full(net, tokens, levels(3), rows=rows, lengths=lengths)
    for i, length in enumerate(lengths.tolist()):
        alone = full(net, tokens[i : i + 1, :length], levels(3)[i : i + 1])[0]
        if rows is None:
            assert distance(together[i, :length], alone) < EXACT
        else:
            for row, hidden in zip(rows.tolist(), together, strict=True):
                if row // 9 == i:
                    assert distance(hidden, alone[row % 9]) < EXACT


def test_a_wholly_real_batch_needs_no_padding_mask():
    net, tokens = random_network(PLAIN), random_tokens(2, 9)
    assert torch.equal(full(net, tokens, lengths=torch.tensor([9, 9])), full(net, tokens))


@pytest.mark.parametrize("rows", [None, torch.tensor([5, 11, 12])])
def test_an_allowed_mask_takes_the_place_of_the_architectures_rule(rows):
    tokens, lower = random_tokens(2, 9), torch.ones(9, 9, dtype=torch.bool).tril()
    both, causal = random_network(PLAIN), random_network(replace(PLAIN, causal=True))
    assert distance(full(both, tokens, rows=rows, allowed=lower), full(causal, tokens, rows=rows)) < EXACT
    assert distance(full(causal, tokens, rows=rows, allowed=lower | True), full(both, tokens, rows=rows)) < EXACT
    lengths = torch.tensor([5, 9])
    padded = full(causal, tokens, allowed=lower | True, lengths=lengths)
    assert distance(padded[0, :5], full(both, tokens[:1, :5])[0]) < EXACT


def test_a_causal_network_has_a_zero_jacobian_to_the_future_and_a_bidirectional_one_has_not():
    tokens = random_tokens(1, 6)

    def jacobian(net: Transformer) -> Tensor:
        """How much position i's hidden state moves with position j's embedding (i j)."""
        x = net.vocab_embed(tokens).detach()

        def run(x: Tensor) -> Tensor:
            return net.run(Pass(x, net.spec.own_rule)).hidden

        return torch.autograd.functional.jacobian(run, x)[0, :, :, 0].abs().amax((1, 3))

    causal = jacobian(random_network(replace(PLAIN, causal=True)))
    assert (causal.triu(1) == 0).all()
    assert (causal.tril() > 0).sum() == 21
    assert (jacobian(random_network(PLAIN)) > 0).all()


@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(1, 8), unique=True).map(sorted))
def test_reading_through_the_cache_in_any_pieces_equals_reading_at_once(cuts):
    net, tokens = random_network(KINDS["causal"]), random_tokens(2, 9)
    memory, pieces = Empty(12), []
    with torch.no_grad():
        for piece in tokens.tensor_split(cuts, dim=1):
            hidden, memory = read_on(net, piece, memory)
            pieces.append(hidden)
    assert memory.filled == 9
    assert distance(torch.cat(pieces, 1), full(net, tokens)) < EXACT


def test_sampling_with_the_cache_draws_the_recorded_tokens():
    case, net = recorded("ar_tiny"), network("ar_tiny").freeze()
    memory = Empty(16)
    drawn = [case["bos"].expand(3)]
    for noise in case["sample_gumbel"].unbind(1):
        hidden, memory = read_on(net, drawn[-1][:, None], memory)
        logits = net.head(hidden[:, -1])
        logits[:, 97] = -torch.inf
        drawn.append((logits.log_softmax(-1) + noise).argmax(-1))
    assert torch.equal(torch.stack(drawn, 1), case["sample_x"])


def test_a_bidirectional_network_reads_token_by_token_as_its_causal_twin():
    here, twin = random_network(PLAIN), random_network(replace(PLAIN, causal=True))
    tokens, memory, parts = random_tokens(2, 7), Empty(7), []
    for piece in tokens.split([3, 1, 3], 1):
        hidden, memory = read_on(here, piece, memory)
        parts.append(hidden)
    assert distance(torch.cat(parts, 1), twin.run(Pass(tokens, Causal())).hidden) < EXACT


def test_reading_before_shifts_predictions_by_one():
    tokens = random_tokens(2, 9)
    here, before = random_network(PLAIN), random_network(replace(PLAIN, reads_before=True))
    told = full(here, tokens)
    assert distance(full(before, tokens), torch.cat((told[:, :1], told[:, :-1]), 1)) < EXACT


def test_a_causal_network_becomes_bidirectional_by_flipping_one_flag():
    causal = random_network(replace(PLAIN, causal=True, reads_before=True))
    warm = Transformer(replace(causal.spec, causal=False)).double()
    warm.load_state_dict(causal.state_dict())
    tokens = random_tokens(1, 9)
    assert distance(full(warm, tokens), full(causal, tokens)) > 1e-3
    lower = torch.ones(9, 9, dtype=torch.bool).tril()
    assert distance(full(warm, tokens, allowed=lower), full(causal, tokens)) < EXACT


def test_dropout_acts_in_training_only():
    net, tokens = random_network(replace(PLAIN, dropout=0.5)), random_tokens(2, 9)
    assert torch.equal(full(net, tokens), full(net, tokens))
    net.train()
    assert not torch.equal(full(net, tokens), full(net, tokens))


def test_a_new_network_predicts_every_token_alike():
    for cond in (0, 8):
        net = Transformer(replace(PLAIN, cond=cond))
        assert (net.head(hidden_states(net, random_tokens(2, 9))) == 0).all()


def test_a_tied_head_learns_through_the_embedding():
    net = random_network(KINDS["tied"])
    assert "output_layer.linear.weight" not in net.state_dict()
    net.head(hidden_states(net, random_tokens(1, 9))).logsumexp(-1).sum().backward()
    untouched = [id for id in range(11) if id not in random_tokens(1, 9)]
    assert (net.vocab_embed.embedding.grad[untouched].abs().sum(1) > 0).all()


def test_a_network_conditioned_on_time_asks_for_the_noise_level():
    with pytest.raises(ValueError, match="noise level"):
        hidden_states(random_network(KINDS["timed"]), random_tokens(1, 4))


def test_bf16_is_never_switched_on_for_a_cpu():
    with precision(torch.device("cpu")):
        assert not torch.is_autocast_enabled("cpu")
        assert not torch.is_autocast_enabled("cuda")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"width": 18, "heads": 2}, "multiple of 4"),
        ({"time_conditioning": True}, "set cond"),
        ({"dropout": 1.0}, "dropout"),
        ({"blocks": 0}, "blocks must be at least 1"),
        ({"cond": -1}, "cond"),
    ],
)
def test_an_impossible_architecture_is_refused(wrong, words):
    with pytest.raises(UserError, match=words):
        Architecture(**{"vocab": 11, **wrong})


COMPILED = """
import sys
from dataclasses import replace
import torch
from functools import partial
from model.golden import distance
from model.worlds import KINDS, random_network, random_tokens
from unmask.model.passes.whole import hidden_states

torch.set_num_threads(1)
compiled = partial(torch.compile, fullgraph=True, backend=sys.argv[1])
net, tokens = random_network(replace(KINDS["modulated"], blocks=1), dtype=torch.float32), random_tokens(2, 9)
trunk, head = compiled(partial(hidden_states, net)), compiled(net.head)
with torch.no_grad():
    print(distance(head(trunk(tokens)), net.head(hidden_states(net, tokens))))


def gradients(trunk):
    net.zero_grad()
    net.head(trunk(tokens)).square().sum().backward()
    return [p.grad.clone() for p in net.parameters()]


# The tracing of the backward pass, without the minute it takes to generate its code.
plain = partial(hidden_states, net)
pairs = zip(gradients(torch.compile(plain, fullgraph=True, backend="aot_eager")), gradients(plain))
print(max(distance(a, b) / (1 + b.abs().max().item()) for a, b in pairs))
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_trunk_and_head_compile_and_give_the_same_logits_and_gradients(backend):
    # In a process of its own, for the compiler warns of its own code, and shape checks are not there to be compiled.
    out = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", COMPILED, backend],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert out.returncode == 0, out.stderr
    far, far_gradients = map(float, out.stdout.split())
    assert far < 1e-4
    assert far_gradients < 1e-4
