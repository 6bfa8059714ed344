import math
from dataclasses import dataclass, replace

import pytest
import torch

from toys.objective import Toy
from toys.recurrent import RecurrentSpec
from training.small import LENGTH, MASK, OBJECTIVES, Chain, network, settings
from unmask.diffusion.any_order import AnyOrder
from unmask.diffusion.autoregressive import Autoregressive
from unmask.diffusion.block import BlockDiffusion
from unmask.diffusion.mdlm import MDLM
from unmask.diffusion.times import Count
from unmask.model.backbones.transformer import Architecture, Transformer
from unmask.model.denoiser import Denoiser
from unmask.model.passes.whole import hidden_states
from unmask.processes.team import Alone
from unmask.text.row import Rows
from unmask.training import ema, noise, optim
from unmask.training.loop import Diverged, begin, train
from unmask.training.phases import continue_spec, phases, sight
from unmask.training.settings import Run, Warm

CHAIN = Chain.make()


def trained(asked, steps=4, batch=None, start=0, state=None):
    state = state or begin(network(asked), asked)
    run = train(state, phases(asked)[0], asked, batch or CHAIN.batch(asked.optim.batch), mask=MASK, start=start)
    return state, [next(run) for _ in range(steps)]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_passes_that_add_up_give_the_same_step_as_one(name):
    asked = OBJECTIVES[name]
    whole, told = trained(asked)
    parts, seen = trained(replace(asked, optim=replace(asked.optim, micro=5)))
    for a, b in zip(told, seen, strict=True):
        assert (b.loss, b.bound, b.norm) == pytest.approx((a.loss, a.bound, a.norm), rel=1e-4)
        assert a.tokens == b.tokens
    for a, b in zip(whole.network.parameters(), parts.network.parameters(), strict=True):
        # AdamW divides by tiny moments, which magnifies the rounding where a gradient is nearly zero.
        assert (a - b).abs().median() < 1e-5


ASKED = {**OBJECTIVES, "flat": settings(objective=MDLM(times=Count(), weight="flat"))}


@pytest.mark.parametrize("name", ASKED)
def test_loss_bound_and_gradient_of_a_step_are_those_of_the_objective_per_real_token(name):
    asked = ASKED[name]
    rows, real = CHAIN.rows(16, 0), torch.arange(LENGTH) < torch.arange(5, 21)[:, None]
    told = replace(asked, optim=replace(asked.optim, micro=5, clip=0.0))
    _, (first,) = trained(told, steps=1, batch=lambda step: Rows.of(rows, real))
    denoiser, drawn = network(asked), noise.draw(16, LENGTH, seed=asked.seed, step=0)
    found, _ = denoiser(rows, drawn, mask=MASK, frozen=~real, lengths=real.sum(1))
    tokens = asked.objective.counted(real)
    (found.loss.sum() / tokens).backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in denoiser.parameters()])
    seen = (found.loss.sum() / tokens, found.bound.sum() / tokens, norm)
    assert [first.loss, first.bound, first.norm] == pytest.approx([value.item() for value in seen], rel=1e-4)
    assert (first.loss == first.bound) == (name != "flat")


@dataclass(frozen=True)
class OneOfTwo(Alone):
    """A process whose other has as many tokens."""

    world: int = 2

    def sum(self, values):
        return 2 * values


def test_the_gradients_of_two_processes_are_those_of_one_on_average():
    asked, rows = settings(optim=replace(settings().optim, clip=0.0)), CHAIN.rows(16, 0)

    def gradient(part, team):
        state, whole = begin(network(asked), asked), torch.ones(rows[part].shape, dtype=torch.bool)
        state.optimizer.zero_grad = lambda: None  # the gradients of the update stay
        next(train(state, phases(asked)[0], asked, lambda step: Rows.of(rows[part], whole), mask=MASK, team=team))
        return torch.cat([p.grad.flatten() for p in state.learner.parameters()])

    halves = [gradient(slice(8 * rank, 8 * rank + 8), OneOfTwo(rank=rank)) for rank in (0, 1)]
    torch.testing.assert_close((halves[0] + halves[1]) / 2, gradient(slice(0, 16), Alone()), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_first_loss_is_that_of_a_network_that_knows_nothing(name):
    _, (first, *_) = trained(OBJECTIVES[name], steps=1)
    told = {"mdlm": math.log(8), "ar": math.log(8), "d3pm": math.log(9), "sedd": 0}[name]
    assert first.bound >= told - 1e-4
    if name in ("mdlm", "ar"):
        assert first.bound == pytest.approx(told, rel=1e-5)


def test_dropout_is_a_function_of_the_step_too():
    asked = settings(model=Architecture(width=32, blocks=2, heads=2, dropout=0.3))
    _, told = trained(asked, steps=3)
    torch.manual_seed(12345)
    _, seen = trained(asked, steps=3)
    assert [p.loss for p in told] == [p.loss for p in seen]


@pytest.mark.parametrize(("objective", "dropout", "different"), [("mdlm", 0, 4), ("ar", 0.3, 4), ("ar", 0, 1)])
def test_each_step_draws_its_own_noise_and_dropout(objective, dropout, different):
    asked = replace(OBJECTIVES[objective], model=Architecture(width=32, blocks=2, heads=2, dropout=dropout))
    asked, one = replace(asked, optim=replace(asked.optim, lr=0.0)), CHAIN.batch(16)(0)
    _, told = trained(asked, steps=4, batch=lambda step: one)
    assert len({p.norm for p in told}) == different


def test_the_objectives_state_is_brought_to_the_next_step_by_what_all_parts_saw():
    asked = settings(objective=Toy(), optim=replace(settings().optim, micro=5))
    state, told = trained(asked, steps=3)
    level = 1.0
    for progress in told:
        level = (level + progress.bound) / 2
    assert state.learner.state["level"].item() == pytest.approx(level, rel=1e-5)
    assert state.learner.state["steps"].item() == 3


def test_what_the_network_carries_reaches_the_same_rows_of_the_next_step():
    asked = settings(objective=Autoregressive(), model=RecurrentSpec(width=16))
    asked = replace(asked, optim=replace(asked.optim, lr=0.0, micro=5))
    rows, denoiser = CHAIN.rows(16, 0), network(asked)
    state, (_, second) = trained(asked, steps=2, batch=lambda step: Rows.of(rows.roll(-step, 0), rows >= 0))
    with torch.no_grad():
        _, memory = denoiser(rows, noise.draw(16, LENGTH, seed=0, step=0), mask=MASK)
        told, memory = denoiser(rows.roll(-1, 0), noise.draw(16, LENGTH, seed=0, step=1), mask=MASK, memory=memory)
    assert second.bound == pytest.approx(told.bound.sum().item() / (16 * (LENGTH - 1)), rel=1e-5)
    torch.testing.assert_close(state.memory, memory)


def test_a_loss_that_is_no_number_stops_the_run_and_names_step_and_batch():
    asked = settings()
    state, _ = trained(asked, steps=2)
    before = [p.detach().clone() for p in state.network.parameters()]
    with torch.no_grad():
        state.network.output_layer.linear.bias[0] = torch.inf
    run = train(state, phases(asked)[0], asked, CHAIN.batch(16), mask=MASK, start=2)
    with pytest.raises(Diverged, match=r"became nan .* at step 3, batch 2"):
        next(run)
    assert all(torch.equal(a, b) for a, b in zip(before[:-1], list(state.network.parameters())[:-1], strict=True))


def test_padding_changes_nothing():
    asked = settings()
    rows = CHAIN.rows(16, 0)
    real = torch.arange(LENGTH) < torch.full((16, 1), 9)

    def padded(fill):
        return lambda step: Rows.of(rows.masked_fill(~real, fill), real)

    _, a = trained(asked, steps=2, batch=padded(0))
    _, b = trained(asked, steps=2, batch=padded(3))
    assert [p.loss for p in a] == [p.loss for p in b]
    assert a[0].tokens == 16 * 9


def test_a_warm_run_is_two_phases_that_share_the_steps():
    asked = settings(steps=10, recipe="warm", warm=Warm(share=0.3, anneal=2))
    first, second = phases(asked)
    assert (first.start, first.stop, second.start, second.stop) == (0, 3, 3, 10)
    assert (first.objective.name, second.objective.name) == ("ar", "mdlm")
    before = network(asked).backbone.spec
    after = continue_spec(before, asked, second)
    assert before.causal
    assert not after.causal
    assert before.reads_before
    assert after.reads_before


def test_a_later_phase_has_a_learning_rate_and_an_average_of_its_own():
    asked = settings(steps=10, recipe="warm", warm=Warm(share=0.4))
    second = phases(asked)[1]
    state = begin(network(asked, 1), asked)
    before = [average.clone() for average in state.shadow]
    first = next(train(state, second, asked, CHAIN.batch(16), mask=MASK))
    assert first.lr == optim.learning_rate(0, steps=6, optim=asked.optim)
    decay = ema.decay_at(1, asked.optim.ema)
    for old, average, weight in zip(before, state.shadow, state.learner.parameters(), strict=True):
        torch.testing.assert_close(average, decay * old + (1 - decay) * weight)


def test_a_warm_start_knows_at_once_what_the_first_phase_learned():
    asked = settings(steps=200, recipe="warm", objective=MDLM(times=Count()))
    first, second = phases(asked)
    state = begin(network(asked), asked)
    list(train(state, first, asked, CHAIN.batch(16), mask=MASK))
    warm = Transformer(continue_spec(state.network.spec, asked, second))
    warm.load_state_dict(state.network.state_dict())
    one_mask = CHAIN.rows(64, 9)
    told = hidden_states(state.network, one_mask)
    # Under the causal mask the phase's network is the old one: only what it may see has changed.
    seen = hidden_states(warm, one_mask, allowed=torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril())
    torch.testing.assert_close(seen, told, rtol=1e-4, atol=1e-4)


def test_an_any_order_network_that_begins_with_a_warm_started_one_predicts_each_position_at_its_own_place():
    """`mdlm` keeps the place, one before, at which its weights were trained; two streams cannot."""
    before = replace(network(settings()).backbone.spec, reads_before=True)
    asked = settings(init="somewhere", objective=AnyOrder())
    for objective, reads_before in ((MDLM(), True), (AnyOrder(), False)):
        (phase,) = phases(replace(asked, objective=objective))
        assert continue_spec(before, asked, phase).reads_before is reads_before
    after = Transformer(continue_spec(before, asked, phases(asked)[0]))
    after.load_state_dict(network(settings()).backbone.state_dict())
    state = begin(Denoiser(after, asked.objective), asked)
    assert next(train(state, phases(asked)[0], asked, CHAIN.batch(16), mask=MASK)).loss > 0


def test_sight_grows_from_the_past_to_the_whole_row():
    asked = settings(steps=40, init="somewhere", warm=Warm(anneal=8))
    (phase,) = phases(asked)
    seen = [sight(phase, step, LENGTH) for step in range(9)]
    assert seen[8] is None
    ahead = [int(mask[0].sum()) - 1 for mask in seen[:8]]
    assert ahead == sorted(ahead)
    assert ahead[0] == 1
    assert ahead[-1] >= LENGTH - 3
    assert all(bool(mask.tril().sum() == torch.ones(LENGTH, LENGTH).tril().sum()) for mask in seen[:8])


def test_sight_of_blocks_grows_to_a_block():
    """Sight beyond a block would be lost on a network that sees no further."""
    asked = settings(steps=40, init="somewhere", warm=Warm(anneal=3), objective=BlockDiffusion(size=4))
    (phase,) = phases(asked)
    ahead = [int(sight(phase, step, LENGTH)[0].sum()) - 1 for step in range(3)]
    assert ahead == [1, 2, 3]
    assert sight(phase, 3, LENGTH) is None


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_forgetting_activations_changes_memory_and_nothing_else(dropout):
    asked = settings(model=Architecture(width=32, blocks=2, heads=2, dropout=dropout))
    _, told = trained(asked)
    forgotten, seen = trained(replace(asked, run=Run(checkpointing=True)))
    assert [p.loss for p in seen] == [p.loss for p in told]
    assert [p.norm for p in seen] == pytest.approx([p.norm for p in told], rel=1e-5)
    assert forgotten.network.recompute
