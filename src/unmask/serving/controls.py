"""Controls: what a request asks of its text, made ready for the model, and kept for whoever asks the same.

Compiling a pattern may take seconds. Requests with equal controls share one constraint and one guidance, by which the
engine knows that they can be joined.
"""

from dataclasses import replace
from functools import lru_cache

from unmask.errors import UserError
from unmask.model.checkpoint import Model
from unmask.sampling.automaton import anything
from unmask.sampling.constraint import Constraint
from unmask.sampling.control import Control
from unmask.sampling.recipe import Method, Recipe, law_of, method_for, own_way
from unmask.sampling.shape import Hook
from unmask.serving.limits import Limits
from unmask.serving.refusal import wrong
from unmask.serving.schema import Controlled, Drawing

KEPT = 16  # constraints: one of 2000 states has 16 MB and more

Places = tuple[tuple[int, tuple[int, ...]], ...]  # positions, each with the ids that may stand there


class Controls:
    """Makes the methods of requests."""

    def __init__(self, model: Model, limits: Limits) -> None:
        self.model, self.limits = model, limits
        self.compiled = lru_cache(KEPT)(self.compile)
        self.limited = lru_cache(KEPT)(self.limit)
        self.guided = lru_cache(KEPT)(self.guide)

    def method(self, body: Drawing) -> Method:
        """How a request is drawn: what its fields mean as flags of `unmask sample`."""
        if body.steps is not None and body.steps > self.limits.steps:
            raise wrong(f"steps may be {self.limits.steps} at most; saw {body.steps}.", param="steps")
        strength = Control(eta=body.eta)
        how = (body.sampler, body.steps, body.temperature, body.top_p, body.top_k, body.no_repeat)
        recipe = Recipe(*how, control=strength)
        recipe = own_way(self.model, recipe)
        method = method_for(self.model, recipe)
        constraint, control = self.constraint(body), replace(pattern_of(body), guidance=body.guidance)
        law = law_of(self.model, method.sampler, method.policy, replace(recipe, control=control))
        if body.allowed and not control.constrains:
            law += ", each draw restricted to the allowed tokens"
        shape = replace(method.shape, hook=self.guided(body.guidance), constraint=constraint)
        return replace(method, law=law, shape=shape)

    def constraint(self, body: Controlled) -> Constraint | None:
        """What the text must satisfy. It may take seconds where the pattern is new, and does not ask the network."""
        pattern, places = pattern_of(body), places_of(body)
        try:
            if places:
                return self.limited(pattern, places)
            return self.compiled(pattern) if pattern.constrains else None
        except UserError as error:
            raise wrong(str(error), param=field_of(body)) from None

    def compile(self, pattern: Control) -> Constraint:
        found = pattern.constraint(self.model, largest=self.limits.states)
        assert found is not None
        return found

    def limit(self, pattern: Control, places: Places) -> Constraint:
        """A pattern, or none, with sets of allowed tokens."""
        if pattern.constrains:
            return replace(self.compiled(pattern), allowed=dict(places))
        free = anything(self.model.text_tokenizer().size, mask=self.model.mask)
        return Constraint(free, allowed=dict(places)).on(self.model.network.vocab_embed.embedding.device)

    def guide(self, weight: float) -> Hook | None:
        return Control(guidance=weight).hook(self.model)


def pattern_of(body: Controlled) -> Control:
    """The pattern alone: requests that differ in other things share it."""
    return Control(
        pattern=body.pattern,
        one_of=tuple(body.one_of),
        form=body.form,
        whole=body.whole,
        exact_length=body.exact_length,
    )


def places_of(body: Controlled) -> Places:
    places = {one.position: tuple(sorted(set(one.tokens))) for one in body.allowed}
    if len(places) < len(body.allowed):
        raise wrong("a position has one set of allowed tokens; saw one twice.", param="allowed")
    return tuple(sorted(places.items()))


def field_of(body: Controlled) -> str | None:
    """The field to blame when nothing can match."""
    given = {"pattern": body.pattern is not None, "one_of": body.one_of, "form": body.form is not None}
    return next((name for name, there in given.items() if there), "allowed" if body.allowed else None)
