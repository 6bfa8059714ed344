"""Recipe: every sampling option, declared once. Python, the command line and the server read its fields and comments.

An option that a checkpoint may store (`DEFAULTS`) is None unless it is given: `with_defaults` then takes the model's
value, or else the plain one, which changes nothing. Combined with a model, a recipe becomes a `Method`: a process,
the law of its samples, and the network.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, get_type_hints

from jaxtyping import Int
from torch import Tensor

from unmask.diffusion.times import check_total
from unmask.errors import UserError, unknown
from unmask.model.checkpoint import load
from unmask.model.model import Model
from unmask.sampling.control import Control
from unmask.sampling.drafted import with_drafter
from unmask.sampling.fitting import kind_for, process_for, samplers_for
from unmask.sampling.logits import Hook, LogitOptions
from unmask.sampling.masked import Sliding
from unmask.sampling.patterns.constraint import Constraint
from unmask.sampling.policy import POLICIES, Policy, check_sampler, fitted_policy, policy_of, sampler_name
from unmask.sampling.process import Process, Step, run
from unmask.sampling.rejection import Rejection
from unmask.sampling.stale import CACHES, with_cache
from unmask.settings import at_least, fit_type
from unmask.text.prompt.canvas import Canvas

LONGEST = 1_000_000  # tokens of a canvas: a greater length is most likely a typing error
MOST = 10_000_000  # texts of a call, in the same way


@dataclass(frozen=True)
class Recipe:
    """How to sample; what is not given is the model's default."""

    sampler: str | Policy | None = None  # NAME or NAME:FIELD=VALUE,.. such as threshold:tau=0.8
    steps: int | None = None  # steps T of a grid, or the number of forward passes, for samplers that have one
    temperature: float | None = None  # softmax temperature; 1: unchanged, 0: always the most likely token
    top_p: float | None = None  # nucleus: keep the most likely tokens that together have this probability; 1: all
    top_k: int | None = None  # keep only the k most likely tokens; 0: all
    no_repeat: int | None = None  # n-gram blocking: do not repeat N tokens in a row (a repeat loses 20 nats); 0: off
    plain: bool = False  # ignore the model's default settings: its own sampler, nothing truncated or blocked
    seed: int = 0  # seed and sample number determine a sample, whatever the batch
    window: int | None = None  # tokens the model sees at once, for text longer than it was trained on
    stride: int | None = None  # tokens added by each window after the first; none: half a window
    cache: str | None = None  # stale keys, an approximation: interval:every=8, confidence:tau=0.5, prefix or dual
    drafter: str | None = None  # model that proposes tokens to an autoregressive one: the same samples, fewer passes
    drafts: int = 4  # tokens that the drafter proposes at a time
    batch: int = 32  # samples drawn at once; changes speed and memory, never a sample
    control: Control = field(default_factory=Control)

    def __post_init__(self) -> None:
        check_total(self.steps)
        check_sampler(self.sampler)
        if self.batch < 1:
            raise UserError(f"a batch needs at least one sample; saw {self.batch}.")
        if self.window is None and self.stride is not None:
            raise UserError("a stride needs a window: give the window too.")
        if self.window is not None and self.window < 2:
            raise UserError(f"a window needs at least two tokens; saw {self.window}.")
        if self.cache is not None:
            CACHES.make(self.cache)
        at_least(1, drafts=self.drafts)
        self.logit_options(())
        self.windows()

    def logit_options(self, banned: tuple[int, ...]) -> LogitOptions:
        return LogitOptions(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=self.top_k or None,
            top_p=1.0 if self.top_p is None else self.top_p,
            banned=banned,
            no_repeat=self.no_repeat or None,
        )

    def windows(self) -> Sliding | None:
        if self.window is None:
            return None
        return Sliding.usual(self.window) if self.stride is None else Sliding(self.window, self.stride)

    def changed(self, **changes: Any) -> "Recipe":
        """The recipe with some fields replaced; fields of its control are accepted too."""
        control = {one.name for one in fields(Control)}
        known = [one.name for one in fields(Recipe)]
        for name in changes:
            if name not in known and name not in control:
                raise unknown("drawing option", name, [*known, *control])
        check_sampler(changes.get("sampler"))
        own = {name: value for name, value in changes.items() if name in known}
        asked = {name: value for name, value in changes.items() if name not in known}
        if asked:
            own["control"] = replace(own.get("control") or self.control, **asked)
        if own.get("control", self.control) is None:
            own["control"] = Control()
        return replace(self, **own)


DEFAULTS = ("sampler", "steps", "temperature", "top_p", "top_k", "no_repeat")  # settings that a checkpoint may store
PLAIN = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "no_repeat": 0}  # values that change nothing


def with_defaults(model: Model, recipe: Recipe) -> Recipe:
    """The recipe in force: what it does not give is the model's default, or else plain.

    A number of steps belongs to its sampler: the stored one does not apply to a sampler that the recipe gives.
    """
    stored = {} if recipe.plain else stored_defaults(model)
    if recipe.sampler is not None:
        stored.pop("steps", None)
    usual = {"sampler": model.objective.facts.sampler, **PLAIN, **stored}
    unset = [name for name in DEFAULTS if getattr(recipe, name) is None]
    return replace(recipe, **{name: usual[name] for name in unset if name in usual})


def stored_defaults(model: Model) -> dict[str, Any]:
    """The default sampling settings of a checkpoint, checked."""
    hints, values = get_type_hints(Recipe), dict[str, Any]()
    try:
        for name, value in model.sampling.items():
            if name not in DEFAULTS:
                raise unknown("default sampling setting", str(name), DEFAULTS)
            values[name] = value if isinstance(value, Policy) else fit_type(value, hints[name], name)
        Recipe(**values)
    except UserError as error:
        raise invalid_defaults(model, error) from None
    return values


def invalid_defaults(model: Model, error: UserError) -> UserError:
    where = "the model" if model.folder is None else str(model.folder)
    return UserError(f"the default sampling settings of {where} (in unmask.json) are not valid: {error}")


def recipe_record(model: Model, recipe: Recipe) -> dict[str, Any]:
    options = with_defaults(model, recipe)
    return asdict(replace(options, sampler=sampler_name(options.sampler or "")))


@dataclass(frozen=True)
class Method:
    """A recipe combined with one model."""

    sampler: str
    law: str  # the distribution that the samples follow
    process: Process
    network: Any  # a backbone
    policy: Policy
    options: LogitOptions
    constraint: Constraint | None = None  # every text satisfies it, by restricted draws or by rejection

    def fill(self, canvas: Canvas, *, seed: int, ids: Int[Tensor, " b"]) -> Iterator[Step]:
        return run(self.process, self.network, canvas, seed=seed, ids=ids)


def method_for(
    model: Model,
    recipe: Recipe,
    *,
    healed: bool = False,
    ends: bool = False,
    constraint: Callable[[Control], Constraint | None] | None = None,
    hook: Callable[[Control], Hook | None] | None = None,
) -> Method:
    """The method of a recipe; refuses a sampler that the model cannot use.

    healed            some blank must begin with the space before it (token healing)
    ends              the end token of an encoder or of a vocabulary of sequences may be drawn: the text stops there
    constraint, hook  compiled before, by a caller that keeps them (a server)
    """
    given, recipe = recipe, with_defaults(model, recipe)
    control = recipe.control
    policy = policy_in_force(model, given, recipe)
    text = sampler_name(recipe.sampler or "")
    # A network may have more ids than its tokenizer has tokens; the extra ids have no text.
    size = model.spec.vocab if model.tokenizer is None else model.tokenizer.size
    options = recipe.logit_options(tuple(id for id in range(size, model.spec.vocab) if id != model.mask))
    if model.tokenizer is not None:
        options = replace(options, repeatable=tuple(sorted(model.tokenizer.specials)))
        options = replace(options, spacers=model.tokenizer.spacers) if healed else options
    wanted = (control.constraint(model) if constraint is None else constraint(control)) or None
    if model.tokenizer is not None:
        silent = model.layout.undrawn(model.tokenizer, ends=ends or control.ends, constrained=wanted is not None)
        options = replace(options, banned=(*options.banned, *silent))
    options = replace(
        options,
        hook=control.hook(model) if hook is None else hook(control),
        constraint=None if control.reject else wanted,
    )
    windows = recipe.windows()
    if windows is not None and windows.stride == windows.context and model.objective.leads:
        raise UserError("this model predicts a position at the one before it: give a stride below the window.")
    kind = process_for(policy.needs, model.objective.facts.gives)
    process: Process = kind.of(policy=policy, options=options, windows=windows, model=model)
    if recipe.cache is not None:
        process = with_cache(process, recipe.cache, model.spec)
    if recipe.drafter is not None:
        process = with_drafter(process, model, load(recipe.drafter), recipe.drafts)
    law = law_of(model, text, process, recipe, healed=healed)
    if control.reject and wanted is not None:
        process = Rejection(process, wanted, control.reject)
    return Method(text, law, process, model.network, policy, options, wanted)


def policy_in_force(model: Model, given: Recipe, recipe: Recipe) -> Policy:
    """The policy of a recipe with the model's defaults; `given` is the recipe without them."""
    assert recipe.sampler is not None
    stored = given.sampler is None and not given.plain and "sampler" in model.sampling
    try:
        kind = kind_for(model.objective, recipe.sampler)
    except UserError as error:
        raise invalid_defaults(model, error) if stored else error from None
    if recipe.steps is not None and kind.budget is None:
        refusal = without_steps(model, recipe.sampler, default=given.sampler is None)
        raise refusal if given.steps is not None else invalid_defaults(model, refusal)
    return policy_for(model, recipe.sampler, recipe.steps)


def without_steps(model: Model, sampler: str | Policy, *, default: bool) -> UserError:
    """The error for a number of steps with a sampler that has none."""
    known = [name for name in samplers_for(model.objective) if POLICIES[name].budget]
    if not known:
        return UserError("an autoregressive model takes one forward pass per token; leave the steps out.")
    name, whose = sampler_name(sampler).partition(":")[0], ", this model's default," if default else ""
    return UserError(
        f"the sampler {name!r}{whose} has no number of steps. Leave the steps out, or name a sampler that has one "
        f"(--sampler {'groups' if 'groups' in known else known[0]}): {', '.join(known)}."
    )


def policy_for(model: Model, sampler: str | Policy, steps: int | None) -> Policy:
    """The policy of a sampler, with the model's schedule or kernel and, for its own reverse process, its T."""
    objective, kind = model.objective, kind_for(model.objective, sampler)
    process = {"schedule": objective.schedule, "kernel": objective.kernel(model.parts)}
    given = {name: value for name, value in process.items() if value is not None}
    if not isinstance(sampler, str):
        return fitted_policy(sampler, steps=steps, **given)
    if steps is None and kind is POLICIES[objective.facts.sampler] and kind.budget is not None:
        steps = objective.steps
    return policy_of(sampler, steps=steps, **given)


def preview_recipe(model: Model, *, most: int, seed: int) -> Recipe:
    """The model's default settings, with at most `most` steps if they name a number of steps."""
    policy = method_for(model, Recipe()).policy
    steps = None if policy.budget is None else getattr(policy, policy.budget)
    return Recipe(seed=seed, steps=None if steps is None else min(steps, most))


def law_of(model: Model, text: str, process: Process, recipe: Recipe, *, healed: bool = False) -> str:
    """The process's law, with everything else that changes the distribution of the samples."""
    law, objective = process.law, model.objective
    if not objective.facts.conditionals and text.partition(":")[0] != objective.facts.sampler:
        law = f"approximate (a {objective.name} model drawn as if it were mdlm)"
    changed = [
        f"{name.replace('_', '-')} {getattr(recipe, name):g}"
        for name, plain in PLAIN.items()
        if getattr(recipe, name) != plain
    ]
    if changed:
        law += f", with {', '.join(changed)}"
    return law + process.scope + recipe.control.law + (", a blank after a space begins with it" if healed else "")


def untuned_warning(model: Model) -> str:
    """A warning for a masked language model that was never tuned to write a text from nothing."""
    return (
        "this model was trained as a masked language model, which hides a small share of a text, and never to write "
        "whole texts: expect poor ones. In the MDLM paper tuning took the perplexity bound of such a model from 78 "
        f"to 35. Tune it: unmask train --init {model.folder or 'FOLDER'} --data TEXT --out FOLDER"
    )


def unlike_masked_lm(model: Model, sampler: str) -> str:
    """A warning for Gibbs sampling with a network that has seldom seen a text with a single blank."""
    return (
        f"this model was not trained as a masked language model but with {model.objective.name}; {sampler} redraws "
        f"one token given all others, over and over. Its own sampler is {model.objective.facts.sampler}."
    )


def check_length(length: object) -> None:
    if not isinstance(length, int) or isinstance(length, bool):
        raise UserError(f"a length is a whole number of tokens; saw {length!r}.")
    if not 1 <= length <= LONGEST:
        raise UserError(f"a text must have 1 to {LONGEST:,} tokens; saw {length:,}.")


def check_number(n: int, *, of: str) -> None:
    if not 1 <= n <= MOST:
        raise UserError(f"the number of {of} must lie between 1 and {MOST:,}; saw {n:,}.")


def doubt(model: Model, length: int, recipe: Recipe) -> str | None:
    """A warning for what the model was not trained for, with a remedy; None when all is well."""
    trained = model.spec.length
    check_length(length)
    seen = length if recipe.window is None else min(recipe.window, length)
    facts, policy = model.objective.facts, policy_in_force(model, recipe, with_defaults(model, recipe))
    for_masked_lm = policy.of_masked_lm
    if for_masked_lm and facts.likelihood:
        return unlike_masked_lm(model, policy.name)
    goes_on = facts.any_length or model.spec.carries
    if seen <= trained or (goes_on and recipe.window is None):
        return None if facts.likelihood or for_masked_lm else untuned_warning(model)
    stride = max(1, trained // 2)
    return (
        f"the model was trained on {trained} tokens and is shown {seen}: expect poor text. Show it {trained} at a "
        f"time: --window {trained} --stride {stride} (window={trained}, stride={stride} in Python)."
    )
