"""The continuous process: rounded text at every step, given text kept, blocks for any length, the right law."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
import torch

import unmask
from contracts.members import LENGTH, LETTERS, model_of
from diffusion.test_plaid import world
from diffusion.test_ssd_lm import Identity, Word
from unmask.diffusion.diffusion_lm import DiffusionLM
from unmask.diffusion.plaid import Plaid
from unmask.diffusion.ssd_lm import SSDLM
from unmask.errors import UserError
from unmask.evaluation.likelihood.measure import How, settle_measurement
from unmask.model import room
from unmask.model.denoiser import Denoiser
from unmask.model.passes.whole import logits_at
from unmask.sampling.continuous import ContinuousProcess
from unmask.sampling.masked import Sliding
from unmask.sampling.policies.gaussian import DDIM, Gaussian
from unmask.sampling.policies.simplex import SimplexSteps
from unmask.sampling.process import NetworkAnswer, answer, run
from unmask.sampling.recipe import Recipe, method_for
from unmask.text.prompt.canvas import blank, of_tokens
from unmask.training import noise

MASK = LETTERS.mask
SMALL = {"plaid": Plaid(embed=4), "diffusion-lm": DiffusionLM(steps=6, embed=4), "ssd-lm": SSDLM(steps=6, block=5)}
CALLS = {"plaid": 7, "diffusion-lm": 6, "ssd-lm": 12}  # Plaid's tokens take a call; SSD-LM has two blocks


@pytest.mark.parametrize("name", sorted(SMALL))
def test_every_step_shows_rounded_text_and_keeps_what_is_given(name, tmp_path):
    model = model_of(tmp_path / "m", SMALL[name])
    method = method_for(model, Recipe(steps=6))
    start = of_tokens(torch.tensor([[1, 2, *[MASK] * 10], [3, 4, *[MASK] * 10]]), mask=MASK)
    steps = list(method.fill(start, seed=0, ids=torch.arange(2)))
    assert len(steps) == CALLS[name]
    for step in steps:
        assert torch.equal(step.canvas.tokens[:, :2], start.tokens[:, :2])
        assert not step.canvas.hidden[:, 2:7].any(), "the first block, or the whole text, is shown at once"
    assert not steps[-1].canvas.hidden.any()
    assert not method.process.settled


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SMALL))
def test_the_trace_of_a_sample_ends_with_its_text_and_counts_every_call(name, tmp_path):
    model = model_of(tmp_path / "m", SMALL[name])
    (one,) = unmask.sample(model, prompt="ab", length=12, steps=6)
    assert one.calls == CALLS[name]
    last = {event.position: event.token for event in one.trace}
    assert [last[place] for place in range(2, 12)] == one.tokens[2:]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SMALL))
def test_a_pattern_needs_rejection(name, tmp_path):
    model = model_of(tmp_path / "m", SMALL[name])
    with pytest.raises(UserError, match="--reject"):
        unmask.sample(model, prompt="ab", length=8, pattern="[a-h .,\n]*")
    found = unmask.sample(model, prompt="ab", length=8, steps=3, pattern="[a-h .,\n]*", reject=300)
    assert found[0].text.startswith("ab")


@pytest.mark.slow
def test_blocks_write_text_of_any_length_within_the_length_of_training(tmp_path):
    model = model_of(tmp_path / "m", SMALL["ssd-lm"])
    process = method_for(model, Recipe(steps=2)).process
    state, widths = process.begin(blank(2, 33, mask=MASK)), []
    while (asked := process.ask(state)) is not None:
        widths.append(asked.vectors.shape[1])
        answer = NetworkAnswer(logits_at(model.network, asked.vectors, asked.sigma, asked.rows))
        state, _ = process.commit(state, asked, answer)
    assert max(widths) == LENGTH
    assert not process.canvas(state).hidden.any()
    assert [one.stop - one.first for one in process.spans(blank(1, 33, mask=MASK))] == [5] * 6 + [3]


@pytest.mark.slow
def test_what_a_block_model_cannot_do_is_refused(tmp_path, monkeypatch):
    model = model_of(tmp_path / "m", SMALL["ssd-lm"])
    with pytest.raises(UserError, match="both sides"):
        unmask.infill(model, "a[2]b")
    with pytest.raises(UserError, match=f"trained on {LENGTH}"), pytest.warns(UserWarning, match="poor text"):
        unmask.sample(model, length=40, window=30)
    with pytest.raises(UserError, match="not for this model"):
        unmask.sample(model, length=8, sampler="ddim")
    monkeypatch.setattr(room, "machine_bytes", lambda: 1000)
    with pytest.raises(UserError, match=r"need .* GB"):
        unmask.sample(model, length=8)


@pytest.mark.slow
def test_more_steps_than_the_process_has_are_refused(tmp_path):
    model = model_of(tmp_path / "m", SMALL["diffusion-lm"])
    with pytest.raises(UserError, match="at most"):
        unmask.sample(model, length=8, steps=7)


@pytest.mark.slow
def test_windows_give_longer_text_than_the_network_sees(tmp_path):
    model = model_of(tmp_path / "m", SMALL["plaid"])
    process = method_for(model, Recipe(steps=2, window=12, stride=6)).process
    assert process.windows == Sliding(12, 6)
    *_, last = run(process, model.network, blank(1, 24, mask=MASK))
    assert not last.canvas.hidden.any()


ROWS = 1500


def shares(process, network):
    """How often each word is drawn."""
    *_, last = run(process, network, blank(ROWS, 1, mask=network.mask), seed=3)
    return (torch.bincount(last.canvas.tokens[:, 0], minlength=network.mask)[: network.mask] / ROWS).tolist()


def chance(p):
    """Four standard errors of a share."""
    return 4 * (p * (1 - p) / ROWS) ** 0.5


@dataclass(frozen=True)
class Exact:
    """The exact denoiser of one word on the simplex, as a backbone."""

    word: Word
    mask: int = 2
    spec: object = field(default_factory=lambda: SimpleNamespace(length=4, vocab=3))

    def embed(self, tokens):
        return self.word.embed(tokens)

    def __call__(self, x, sigma, rows):
        return self.word.head(x.flatten(0, 1)[rows])


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 3])
def test_the_simplex_loop_has_the_law_of_the_data(steps):
    prior = torch.tensor([0.7, 0.3], dtype=torch.float64)
    network = Exact(Word(prior, steps, 1.0))
    objective = SSDLM(steps=steps, block=4, scale=1.0)
    process = ContinuousProcess(objective, network, SimplexSteps(steps), parts=Identity(2))
    assert shares(process, network)[0] == pytest.approx(0.7, abs=chance(0.7))


@dataclass(frozen=True)
class Frequencies:
    """The exact denoiser of one word in the plane, as a backbone: the output prior does the rest."""

    belief: torch.Tensor
    mask: int = 3
    spec: object = field(default_factory=lambda: SimpleNamespace(length=4, vocab=4))

    def __call__(self, x, sigma, rows):
        return torch.nn.functional.pad(self.belief.log(), (0, 1)).expand(len(rows), -1).clone()


@pytest.mark.slow
@pytest.mark.parametrize("policy", [Gaussian(32), DDIM(32)])
def test_plaid_s_steps_have_the_law_of_the_data(policy):
    parts = {name: part.float() for name, part in world().items()} | {"entry": lambda z, gamma, guess: z}
    network = Frequencies(torch.tensor([0.5, 0.3, 0.2]))
    process = ContinuousProcess(Plaid(embed=2, ramp=0), network, policy, parts=parts)
    for found, expected in zip(shares(process, network), (0.5, 0.3, 0.2), strict=True):
        assert found == pytest.approx(expected, abs=chance(expected) + 0.01)


@pytest.mark.slow
def test_given_text_is_held_at_its_noised_truth(tmp_path):
    model = model_of(tmp_path / "m", SMALL["plaid"])
    process = method_for(model, Recipe(steps=4)).process
    start = of_tokens(torch.tensor([[1, 2, *[MASK] * 4]]).repeat(4000, 1), mask=MASK)
    state = process.begin(start)
    gamma = torch.tensor(-0.5, dtype=torch.float64)
    held = process.held(state, torch.zeros(4000, 6, 4), gamma)
    assert (held[:, 2:] == 0).all()
    x = model.objective.clean(torch.tensor([1, 2]), model.parts)
    signal = torch.sigmoid(-gamma)
    torch.testing.assert_close(held[:, :2].mean(0), (signal.sqrt() * x).float(), rtol=0, atol=0.06)
    assert float(held[:, :2].var(0).mean()) == pytest.approx(float(1 - signal), abs=0.03)
    other = process.held(replace(state, calls=1), torch.zeros(4000, 6, 4), gamma)
    assert not torch.equal(other[:, :2], held[:, :2]), "the noise is fresh at every level"


@pytest.mark.slow
@pytest.mark.parametrize("backbone", ["bert", "caduceus"])
@pytest.mark.parametrize("name", sorted(SMALL))
def test_on_every_backbone_that_takes_vectors_it_learns_and_samples(name, backbone, tmp_path):
    model = model_of(tmp_path / "m", SMALL[name], backbone)
    denoiser = Denoiser(model.network, model.objective, parts=model.parts, state=model.state).requires_grad_(True)
    rows = torch.randint(LETTERS.size - 3, (4, LENGTH), generator=torch.Generator().manual_seed(3))
    nats, _ = denoiser(rows, noise.draw(4, LENGTH, seed=0, step=0), mask=MASK)
    nats.loss.sum().backward()
    assert nats.bound.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in denoiser.parameters())
    assert any(p.grad.any() for unit in model.network.units for p in unit.parameters()), "the trunk is used"
    (one,) = unmask.sample(model, prompt="ab", length=LENGTH, steps=3)
    assert one.text.startswith("ab")
    assert MASK not in one.tokens


@pytest.mark.slow
def test_a_window_of_two_blocks_shows_the_last_block_only(tmp_path):
    process = method_for(model_of(tmp_path / "m", SMALL["ssd-lm"]), Recipe(steps=2, window=10)).process
    spans = process.spans(blank(1, 18, mask=MASK))
    assert [(one.start, one.first, one.stop) for one in spans] == [(0, 0, 5), (0, 5, 10), (5, 10, 15), (8, 15, 18)]
    grows = method_for(model_of(tmp_path / "n", SMALL["ssd-lm"]), Recipe(steps=2)).process
    assert [one.start for one in grows.spans(blank(1, 18, mask=MASK))] == [0, 0, 3, 6]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["gaussian", "ddim"])
def test_plaid_is_shown_its_last_estimate_and_a_new_window_begins_without_one(policy, tmp_path):
    model = model_of(tmp_path / "m", SMALL["plaid"])
    process = method_for(model, Recipe(sampler=policy, steps=2, window=8, stride=4)).process
    state, given = process.begin(blank(2, 12, mask=MASK)), []
    while (asked := process.ask(state)) is not None:
        given.append(state.guess)
        gamma = process.path.gamma[state.call]
        reply = answer(model.network, asked)
        output = reply.logits.unflatten(0, state.z.shape[:2])
        read = model.objective.meaning(output.clone(), process.window(state), model.parts, model.state, mask=MASK)
        with torch.no_grad():
            again = model.parts["entry"](state.z, gamma.expand(2), state.guess)
        torch.testing.assert_close(asked.vectors, again)
        state, _ = process.commit(state, asked, reply)
        if state.guess is not None:
            torch.testing.assert_close(state.guess, read.x)
    assert [one is None for one in given] == [True, False, False] * 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plaid", "diffusion-lm"])
def test_infilling_is_labelled_approximate(name, tmp_path):
    model = model_of(tmp_path / "m", SMALL[name])
    found = unmask.infill(model, "ab[3]cd", passes=2, steps=3)[0]
    assert found.text.startswith("ab")
    assert found.text.endswith("cd")
    assert "held at its noised truth, approximate" in found.law


@pytest.mark.slow
def test_what_does_not_fit_into_memory_is_not_evaluated(tmp_path, monkeypatch):
    model = model_of(tmp_path / "m", SMALL["ssd-lm"])
    monkeypatch.setattr(room, "machine_bytes", lambda: 1000)
    with pytest.raises(UserError, match=r"need .* GB; .* smaller --batch-tokens"):
        settle_measurement(model, How())
    settle_measurement(model_of(tmp_path / "n", SMALL["plaid"]), How())


@pytest.mark.slow
def test_fewer_steps_than_one_are_refused(tmp_path):
    for name, objective in SMALL.items():
        with pytest.raises(UserError, match="step"):
            unmask.sample(model_of(tmp_path / name, objective), length=8, steps=0)
