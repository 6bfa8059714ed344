"""Recipe: every sampling option, declared once. Python, the command line and the server read its fields and comments.

Combined with a model, a recipe becomes a `Method`: a process, the law of its samples, and the network.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

from jaxtyping import Int
from torch import Tensor

from unmask.diffusion.objective import OBJECTIVES
from unmask.diffusion.times import check_total
from unmask.errors import UserError, unknown
from unmask.model.model import Model
from unmask.sampling.control import Control
from unmask.sampling.logits import Hook, Shape
from unmask.sampling.masked import Sliding
from unmask.sampling.patterns.constraint import Constraint
from unmask.sampling.policy import POLICIES, Policy, policy_of
from unmask.sampling.process import PROCESSES, Process, Step, run
from unmask.sampling.rejection import Rejection
from unmask.text.prompt.canvas import Canvas

LONGEST = 1_000_000  # tokens of a canvas: a greater length is most likely a typing error


@dataclass(frozen=True)
class Recipe:
    """How to sample."""

    sampler: str | None = None  # NAME or NAME:FIELD=VALUE,.. such as threshold:tau=0.8; none: the model's default
    steps: int | None = None  # steps T of a grid, or the number of network calls, for samplers that have one
    temperature: float = 1.0  # softmax temperature; 0: always the most likely token
    top_p: float = 1.0  # nucleus: keep the most likely tokens that together have this probability
    top_k: int | None = None  # keep only the k most likely tokens
    no_repeat: int | None = None  # n-gram blocking: tokens that would repeat an n-gram of this size lose 20 nats
    seed: int = 0  # seed and sample number determine a sample, whatever the batch
    window: int | None = None  # tokens the model sees at once, for text longer than it was trained on
    stride: int | None = None  # tokens added by each window after the first; none: half a window
    batch: int = 32  # samples drawn at once; changes speed and memory, never a sample
    control: Control = field(default_factory=Control)

    def __post_init__(self) -> None:
        if self.steps is not None:
            check_total(self.steps)
        if self.batch < 1:
            raise UserError(f"a batch needs at least one sample; saw {self.batch}.")
        if self.window is None and self.stride is not None:
            raise UserError("a stride needs a window: give the window too.")
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

    def changed(self, **changes: Any) -> "Recipe":
        """The recipe with some fields replaced; fields of its control are accepted too."""
        control = {one.name for one in fields(Control)}
        known = [one.name for one in fields(Recipe)]
        for name in changes:
            if name not in known and name not in control:
                raise unknown("drawing option", name, [*known, *control])
        own = {name: value for name, value in changes.items() if name in known}
        asked = {name: value for name, value in changes.items() if name not in known}
        if asked:
            own["control"] = replace(own.get("control") or self.control, **asked)
        if own.get("control", self.control) is None:
            own["control"] = Control()
        return replace(self, **own)


DEFAULTS = ("sampler", "steps", "temperature", "top_p", "top_k", "no_repeat")  # settings that a checkpoint may store


def with_defaults(model: Model, recipe: Recipe) -> Recipe:
    """The recipe, with the model's default sampling settings if it sets none of `DEFAULTS` itself."""
    said, plain = model.sampling, Recipe()
    if not said or any(getattr(recipe, name) != getattr(plain, name) for name in DEFAULTS):
        return recipe
    strange = sorted(set(said) - set(DEFAULTS))
    if strange:
        raise UserError(
            f"the model's unmask.json has the unknown default sampling setting {strange[0]!r}; known: "
            f"{', '.join(DEFAULTS)}."
        )
    try:
        return replace(recipe, **said)
    except TypeError:
        raise UserError(
            f"the model's unmask.json has default sampling settings that are not numbers: {dict(said)}."
        ) from None


@dataclass(frozen=True)
class Method:
    """A recipe combined with one model."""

    sampler: str
    law: str  # the distribution that the samples follow
    process: Process
    network: Any  # a backbone
    policy: Policy
    shape: Shape
    constraint: Constraint | None = None  # every text satisfies it, by restricted draws or by rejection

    def fill(self, canvas: Canvas, *, seed: int, ids: Int[Tensor, " b"]) -> Iterator[Step]:
        return run(self.process, self.network, canvas, seed=seed, ids=ids)


def method_for(
    model: Model,
    recipe: Recipe,
    *,
    healed: bool = False,
    constraint: Callable[[Control], Constraint | None] | None = None,
    hook: Callable[[Control], Hook | None] | None = None,
) -> Method:
    """The method of a recipe; refuses a sampler that the model cannot use.

    healed            some blank must begin with the space before it (token healing)
    constraint, hook  compiled before, by a caller that keeps them (a server)
    """
    recipe = with_defaults(model, recipe)
    facts, control = model.objective.facts, recipe.control
    text = recipe.sampler or facts.sampler
    policy = policy_for(model, text, recipe.steps)
    # A network may have more ids than its tokenizer has tokens; the extra ids have no text.
    size = model.spec.vocab if model.tokenizer is None else model.tokenizer.size
    shape = recipe.shape(tuple(id for id in range(size, model.spec.vocab) if id != model.mask))
    if model.tokenizer is not None:
        shape = replace(shape, repeatable=tuple(sorted(model.tokenizer.specials)))
        shape = replace(shape, spacers=model.tokenizer.spacers) if healed else shape
    wanted = (control.constraint(model) if constraint is None else constraint(control)) or None
    shape = replace(
        shape,
        hook=control.hook(model) if hook is None else hook(control),
        constraint=None if control.reject else wanted,
    )
    kind = PROCESSES[facts.process]
    process: Process = kind.of(policy=policy, shape=shape, windows=recipe.windows(), network=model.network)
    if control.reject and wanted is not None:
        process = Rejection(process, wanted, control.reject)
    law = law_of(model, text, policy, recipe, healed=healed)
    return Method(text, law, process, model.network, policy, shape, wanted)


def samplers_for(model: Model) -> list[str]:
    """The samplers that a model can use, its own reverse process first."""
    facts = model.objective.facts
    fitting = [name for name in POLICIES if POLICIES[name].process == facts.process and not POLICIES[name].own]
    return [facts.sampler, *(name for name in fitting if name != facts.sampler)]


def policy_for(model: Model, text: str, steps: int | None) -> Policy:
    """The policy of a sampler, with the model's schedule and, for its own reverse process, the T of its training."""
    objective, name = model.objective, text.partition(":")[0]
    known = samplers_for(model)
    if name not in known:
        if name not in POLICIES:
            raise unknown("sampler", name, known)
        kind = POLICIES[name]
        if kind.own and kind.process == objective.facts.process:
            raise UserError(
                f"the sampler {name!r} is the reverse process of {owner_of(name)} models and this model's objective "
                f"is {objective.name}; its own sampler is {objective.facts.sampler!r}."
            )
        raise UserError(
            f"the sampler {name!r} is not for this model, whose objective is {objective.name}. "
            f"Known for it: {', '.join(known)}."
        )
    kind = POLICIES[name]
    if steps is not None and kind.process != "masked":
        raise UserError("an autoregressive model takes one network call per token; leave the steps out.")
    if steps is None and kind.own and kind.budget is not None:
        steps = objective.grid
    return policy_of(text, steps=steps, schedule=getattr(objective, "schedule", None))


def owner_of(sampler: str) -> str:
    """The objective that has this sampler as its reverse process."""
    return next((name for name in OBJECTIVES if OBJECTIVES[name].facts.sampler == sampler), "other")


def quick(model: Model, calls: int) -> dict[str, Any]:
    """Options for a quick sample: at most `calls` network calls, if the model's samplers allow a limit."""
    facts = model.objective.facts
    names = [facts.sampler, *(["ancestral"] if facts.conditionals else [])]
    with_steps = [name for name in names if POLICIES[name].process == facts.process and POLICIES[name].budget]
    return {"sampler": with_steps[-1], "steps": min(calls, model.spec.length)} if with_steps else {}


def law_of(model: Model, text: str, policy: Policy, recipe: Recipe, *, healed: bool = False) -> str:
    """The policy's law, with everything else that changes the distribution of the samples."""
    law, objective = policy.law, model.objective
    if not objective.facts.conditionals and text.partition(":")[0] != objective.facts.sampler:
        law = f"approximate (a {objective.name} model drawn as if it were mdlm)"
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
    return law + recipe.control.law + (", a blank after a space begins with it" if healed else "")


def check_length(length: int) -> None:
    if not 1 <= length <= LONGEST:
        raise UserError(f"a text must have 1 to {LONGEST:,} tokens; saw {length:,}.")


def doubt(model: Model, length: int, recipe: Recipe) -> str | None:
    """A warning for text longer than the training rows, with a remedy; None when it fits."""
    trained = model.spec.length
    check_length(length)
    seen = length if recipe.window is None else min(recipe.window, length)
    if seen <= trained:
        return None
    stride = max(1, trained // 2)
    return (
        f"the model was trained on {trained} tokens and is shown {seen}: expect poor text. Show it {trained} at a "
        f"time: --window {trained} --stride {stride} (window={trained}, stride={stride} in Python)."
    )
