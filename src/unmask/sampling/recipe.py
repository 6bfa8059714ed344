"""Recipe: how to draw, whatever is drawn: sampler, temperature, seed, windows. Made ready for a model: a method."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

import tyro
from jaxtyping import Int
from torch import Tensor

from unmask.diffusion import schedule
from unmask.diffusion.times import check_total
from unmask.errors import UserError, unknown
from unmask.model.checkpoint import Model
from unmask.sampling.autoregressive import LeftToRight, Reader
from unmask.sampling.control import Control
from unmask.sampling.logits import Shape
from unmask.sampling.masked import Sliding, Windows
from unmask.sampling.patterns.constraint import Constraint
from unmask.sampling.policies.remask import Remask
from unmask.sampling.policy import Policy
from unmask.sampling.process import Step, fill
from unmask.sampling.samplers import SAMPLERS, named
from unmask.shapes import Network
from unmask.text.prompt.canvas import Canvas
from unmask.text.tokens.tokenizer import Tokenizer

LEFT_TO_RIGHT = "autoregressive"
OWN = {"mdlm": "first-hitting", "d3pm": "d3pm", "sedd": "analytic", "ar": LEFT_TO_RIGHT}  # each objective's sampler
ONLY_FOR = {OWN[objective]: objective for objective in ("d3pm", "sedd")}  # samplers that need their own kind of model
LONGEST = 1_000_000  # tokens of a canvas: beyond it a slip of the keyboard is likelier than a wish


@dataclass(frozen=True)
class Recipe:
    """How to draw."""

    sampler: str | None = None  # None: the model's own way, which is first-hitting, exact, for most mdlm models
    steps: int | None = None  # T of a grid, or the number of calls; for the samplers that have one
    temperature: float = 1.0  # 0: always the most likely token
    top_p: float = 1.0  # only the most likely tokens that together have this mass
    top_k: int | None = None  # only the k most likely tokens
    no_repeat: int | None = None  # a run of so many tokens stands once in a text, if it can be helped
    seed: int = 0  # with a sample's number it fixes the sample, whatever the batch
    window: int | None = None  # tokens the model sees at once, for text longer than it was trained on
    stride: int | None = None  # tokens added by each window after the first; None: half a window
    batch: int = 32  # samples drawn at once; changes speed and memory, never a sample
    control: Annotated[Control, tyro.conf.arg(name="")] = field(default_factory=Control)

    def __post_init__(self) -> None:
        if self.steps is not None:
            check_total(self.steps)
        if self.batch < 1:
            raise UserError(f"a batch needs at least one sample; saw {self.batch}.")
        if self.window is None and self.stride is not None:
            raise UserError("a stride is the pace of a window: give the window too.")
        if self.window is not None and self.window < 2:
            raise UserError(f"a window needs at least two tokens; saw {self.window}.")
        self.shape(())
        self.windows()

    def shape(self, banned: tuple[int, ...]) -> Shape:
        return Shape(self.temperature, self.top_k, self.top_p, banned=banned, no_repeat=self.no_repeat)

    def windows(self) -> Sliding | None:
        if self.window is None:
            return None
        return Sliding(self.window, max(1, self.window // 2) if self.stride is None else self.stride)


WAY = ("sampler", "steps", "temperature", "top_p", "top_k", "no_repeat")  # what a model may say of its draws


def own_way(model: Model, recipe: Recipe) -> Recipe:
    """The recipe, where it leaves the way of drawing open with the model's own, if its maker wrote one down."""
    said = model.settings.get("sampling")
    plain = Recipe()
    if not isinstance(said, Mapping) or any(getattr(recipe, name) != getattr(plain, name) for name in WAY):
        return recipe
    strange = sorted(set(said) - set(WAY))
    if strange:
        raise UserError(
            f"the model's unmask.json has {strange[0]!r} among its settings of sampling; known: {', '.join(WAY)}."
        )
    try:
        return replace(recipe, **said)
    except TypeError:
        raise UserError(
            f"the model's unmask.json has settings of sampling that are no numbers: {dict(said)}."
        ) from None


@dataclass(frozen=True)
class Method:
    """A recipe made ready for one model."""

    sampler: str
    law: str  # what the samples follow
    policy: Policy
    shape: Shape
    windows: Windows | None
    network: Callable[[], Network]  # a fresh one for each canvas: some remember what they have read
    kept: Constraint | None = None  # rows that do not match are drawn again
    tries: int = 1  # at most so often

    def fill(self, canvas: Canvas, *, seed: int, ids: Int[Tensor, " b"]) -> Iterator[Step]:
        return fill(self.network(), canvas, self.policy, seed=seed, ids=ids, windows=self.windows, shape=self.shape)

    def healing(self, tokenizer: Tokenizer) -> "Method":
        """The same, told which tokens begin with a space, for a canvas where some must."""
        law = self.law + ", a blank behind a space begins with it"
        return replace(self, law=law, shape=replace(self.shape, spacers=tokenizer.spacers))


def method_for(model: Model, recipe: Recipe) -> Method:
    """The method of a recipe; a sampler that the model cannot use is refused."""
    recipe = own_way(model, recipe)
    name = recipe.sampler or OWN[model.objective]
    policy, control = policy_for(model, name, recipe.steps, recipe.control.eta), recipe.control
    # A network may have more ids than its tokenizer has tokens; these stand for no text.
    size = model.architecture.vocab if model.tokenizer is None else model.tokenizer.size
    shape = recipe.shape(tuple(id for id in range(size, model.architecture.vocab) if id != model.mask))
    if model.tokenizer is not None:
        shape = replace(shape, repeatable=tuple(sorted(model.tokenizer.specials)))
    constraint = control.constraint(model)
    kept = constraint if control.reject else None
    shape = replace(shape, hook=control.hook(model), constraint=None if control.reject else constraint)
    network: Callable[[], Network] = lambda: model.network.logits  # noqa: E731
    if model.objective == "ar":
        network = lambda: Reader(model.network)  # noqa: E731
    law = law_of(model, name, policy, recipe)
    return Method(name, law, policy, shape, recipe.windows(), network, kept, max(1, control.reject))


def policy_for(model: Model, name: str, steps: int | None, eta: float | None = None) -> Policy:
    known = [LEFT_TO_RIGHT] if model.objective == "ar" else list(SAMPLERS)
    if name not in known:
        if name in SAMPLERS or name == LEFT_TO_RIGHT:
            raise UserError(
                f"the sampler {name!r} is not for this model, whose objective is {model.objective}. "
                f"Known for it: {', '.join(known)}."
            )
        raise unknown("sampler", name, known)
    if ONLY_FOR.get(name, model.objective) != model.objective:
        raise UserError(
            f"the sampler {name!r} is the reverse process of {ONLY_FOR[name]} models and this model's objective is "
            f"{model.objective}; its own sampler is {OWN[model.objective]!r}."
        )
    if name == LEFT_TO_RIGHT:
        if steps is not None:
            raise UserError("an autoregressive model takes one call a token; leave the steps out.")
        return LeftToRight()
    policy = named(name, steps=steps, schedule=schedule_of(model))
    if eta is None:
        return policy
    if not isinstance(policy, Remask):
        remasking = ", ".join(key for key in SAMPLERS if key.startswith("remask-"))
        raise UserError(
            f"eta is the strength of remasking, and {name!r} hides nothing again. Those that do: {remasking}."
        )
    return replace(policy, eta=eta)


def schedule_of(model: Model) -> schedule.Schedule:
    """The noise schedule a model was trained with; log-linear, the paper's, where nothing is recorded."""
    objective = model.settings.get("objective")
    name = objective.get("schedule", "log-linear") if isinstance(objective, Mapping) else "log-linear"
    if name == "log-linear" and model.objective == "d3pm":
        return schedule.LogLinear(eps=0)  # its T steps end at all hidden
    return schedule.named(name)


def law_of(model: Model, name: str, policy: Policy, recipe: Recipe) -> str:
    """The policy's law, and whatever else stands between it and the model."""
    law = policy.law
    if model.objective not in ("mdlm", "ar") and name != OWN[model.objective]:
        law = f"approximate (a {model.objective} model drawn as if it were mdlm)"
    changed = [
        f"{name.replace('_', '-')} {getattr(recipe, name):g}"
        for name, plain in (("temperature", 1), ("top_p", 1), ("top_k", None), ("no_repeat", None))
        if getattr(recipe, name) != plain
    ]
    if changed:
        law += f", sharpened by {', '.join(changed)}"
    windows = recipe.windows()
    if windows is not None:
        law += f", within windows of {windows.context} tokens, {windows.stride} new in each"
    return law + recipe.control.law


def check_length(length: int) -> None:
    if not 1 <= length <= LONGEST:
        raise UserError(f"a text must have 1 to {LONGEST:,} tokens; saw {length:,}.")


def doubt(model: Model, length: int, recipe: Recipe) -> str | None:
    """A warning for a model that is shown more than it was trained on, with the way out; None when it fits."""
    trained = model.architecture.length
    check_length(length)
    seen = length if recipe.window is None else min(recipe.window, length)
    if seen <= trained:
        return None
    stride = max(1, trained // 2)
    return (
        f"the model was trained on {trained} tokens and is shown {seen}: expect poor text. Let it see {trained} at a "
        f"time: --window {trained} --stride {stride} (window={trained}, stride={stride} in Python)."
    )
