"""Infilling: candidates for the blanks of a template, best first.

For one choice of lengths candidates are ranked by log p(blanks | given). Different lengths are compared by

    log p(given | where the blanks are)

which measures how well the given text fits around blanks of that size, whatever fills them. The score of a candidate
is this number plus its advantage in log p(blanks | given) over the mean of the same lengths. The probability of the
whole text would favour short blanks, because the many fillings of a long blank share its probability.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.errors import UserError
from unmask.model.checkpoint import load
from unmask.model.model import Model
from unmask.sampling.patterns.constraint import Constraint
from unmask.sampling.recipe import Method, Recipe, check_length, method_for
from unmask.sampling.score import Estimate, check_looks, log_likelihood, scored_by
from unmask.sampling.tasks.rows import Drawn, Event, Moment, Row, canvas_of, draw_rows
from unmask.text.prompt.template import Lengths, Template, healed, parse
from unmask.text.tokens.pieces import pieces
from unmask.text.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Infill:
    """Fill the blanks of a template: the task of Python, the command line and the server."""

    model: Model
    given: Template
    constrained: bool = False  # a pattern applies to the text in a blank, so a space before it stays

    @cached_property
    def template(self) -> Template:
        return self.given if self.constrained else healed(self.given, self.model.text_tokenizer())

    def row(self, lengths: Lengths) -> Row:
        """The row to be filled, with blanks of these lengths."""
        laid = list(self.template.laid(self.model.text_tokenizer(), lengths))
        spaced = [spaced for _, spaced in laid] if self.template.heals else []
        return Row([id for id, _ in laid], 0, spaced, self.template.heals)

    def choices(
        self, tries: int, *, constraint: Constraint | None = None, longest: int | None = None
    ) -> list[Lengths]:
        """Possible lengths of the blanks, as far as the text fits and the constraint can be satisfied."""
        found = self.template.lengths(tries)
        if longest is not None:
            given = len(self.row((0,) * len(self.template.blanks)).tokens)
            found = [lengths for lengths in found if given + sum(lengths) <= longest]
        if constraint is None:
            return found
        kept: list[Lengths] = []
        refusal: UserError | None = None
        for lengths in found:
            try:
                constraint.check(canvas_of([self.row(lengths)], mask=self.model.mask, device=self.model.device))
                kept.append(lengths)
            except UserError as error:
                refusal = error
        if refusal is not None and not kept:
            raise refusal
        return kept

    def fit(self, lengths: Lengths, *, looks: int, seed: int) -> float:
        """log p(given text | blanks of these lengths), in nats: the network never sees the text in them."""
        return given(self.model, self.start(lengths), looks=looks, seed=seed)

    def start(self, lengths: Lengths) -> Int[Tensor, " l"]:
        return torch.tensor(self.row(lengths).tokens, device=self.model.device)


@dataclass(frozen=True)
class Infilled:
    """A template with its blanks filled."""

    text: str
    blanks: tuple[str, ...]  # the text of each blank
    lengths: Lengths  # tokens of each blank
    tokens: list[int]
    log_likelihood: float  # log p(blanks | given) in nats: an estimated lower bound
    error: float  # the standard error of that estimate
    score: float  # candidates are ranked by it; see the top of this file
    trace: tuple[Event, ...]  # the tokens of the blanks in the order they were drawn
    seed: int
    row: int  # its number among the candidates of these lengths
    calls: int  # network calls to draw it, without scoring
    sampler: str
    law: str  # the distribution of a candidate of given lengths, before ranking
    seconds: float  # time to draw its batch


def infill(
    model: Model | str | Path,
    template: str,
    *,
    n: int = 1,
    shortest: int = 1,
    longest: int = 8,
    tries: int = 16,
    looks: int = 32,
    recipe: Recipe | None = None,
    **options: Any,
) -> list[Infilled]:
    """Fill the blanks of a template and return the `n` best candidates, best first.

        for found in unmask.infill("runs/stories", "The ___ sat on the [5].", n=3):
            print(found.score, found.text)

    `n` candidates are drawn for each choice of lengths; duplicates are removed.
    shortest, longest   tokens of a blank written ___
    tries               the most choices of lengths to try
    looks               forward passes for the score of a candidate
    recipe, options     how to sample, as for `unmask.sample`
    """
    model = model if isinstance(model, Model) else load(model)
    recipe = (recipe or Recipe()).changed(**options)
    parsed = parse(template, least=shortest, most=longest)
    told = too_long(model, parsed, tries)
    if told is not None:
        warnings.warn(told, stacklevel=2)
    events = candidates(model, parsed, recipe, n=n, tries=tries, looks=looks)
    return [event for event in events if isinstance(event, Infilled)]


def candidates(
    model: Model, template: Template, recipe: Recipe, *, n: int = 1, tries: int = 16, looks: int = 32
) -> Iterator[Moment | Infilled]:
    """A `Moment` after every network call, then the `n` best candidates, best first."""
    check_looks(looks)
    scored_by(model)  # refuses a model that cannot fill blanks
    task = Infill(model, template, recipe.control.constrains)
    tokenizer, method = model.text_tokenizer(), method_for(model, recipe, healed=task.template.heals)
    choices = task.choices(tries, constraint=method.constraint)
    found: dict[tuple[int, ...], Infilled] = {}
    for lengths in choices:
        check_length(sum(lengths))
        row = task.row(lengths)
        start = torch.tensor(row.tokens, device=model.device)
        some: list[Infilled] = []
        for event in draw_rows(method, row, n=n, recipe=recipe, mask=model.mask, device=model.device):
            if isinstance(event, Moment):
                yield event
            elif tuple(event.tokens) not in found:
                scored = score(model, start, event, looks=looks, seed=recipe.seed)
                blanks = filled(tokenizer, row.tokens, event.tokens, task.template, lengths)
                some.append(finished(tokenizer, event, method, recipe, lengths, blanks, scored))
                found[tuple(event.tokens)] = some[-1]
        if len(choices) > 1 and some:
            fit = task.fit(lengths, looks=looks, seed=recipe.seed)
            usual = sum(one.score for one in some) / len(some)
            found |= {tuple(one.tokens): replace(one, score=fit + one.score - usual) for one in some}
    yield from sorted(found.values(), key=lambda one: -one.score)[:n]


def finished(
    tokenizer: Tokenizer,
    drawn: Drawn,
    method: Method,
    recipe: Recipe,
    lengths: Lengths,
    blanks: tuple[str, ...],
    likely: Estimate,
) -> Infilled:
    return Infilled(
        text=tokenizer.decode(drawn.tokens),
        blanks=blanks,
        lengths=lengths,
        tokens=drawn.tokens,
        log_likelihood=likely.nats,
        error=likely.error,
        score=likely.nats,
        trace=drawn.trace,
        seed=recipe.seed,
        row=drawn.row,
        calls=drawn.calls,
        sampler=method.sampler,
        law=method.law,
        seconds=drawn.seconds,
    )


def score(model: Model, start: Int[Tensor, " l"], drawn: Drawn, *, looks: int, seed: int) -> Estimate:
    """log p(blanks | given)."""
    return log_likelihood(model, torch.tensor(drawn.tokens).to(start), start != model.mask, looks=looks, seed=seed)


def given(model: Model, start: Int[Tensor, " l"], *, looks: int, seed: int) -> float:
    """log p(given | where the blanks are): the network never sees the text in them."""
    blank = start == model.mask
    some = start.masked_fill(blank, 0 if model.mask else 1)  # any token but the mask: it is never used
    return log_likelihood(model, some, blank, unseen=blank, looks=2 * looks, seed=seed).nats


def filled(
    tokenizer: Tokenizer, start: list[int], tokens: list[int], template: Template, lengths: Lengths
) -> tuple[str, ...]:
    """The text of each blank, without the space that the template gave."""
    shown = [piece for piece, was in zip(pieces(tokenizer, tokens), start, strict=True) if was == tokenizer.mask]
    ends = list(accumulate(lengths))
    texts = ["".join(shown[end - length : end]) for end, length in zip(ends, lengths, strict=True)]
    return tuple(text[blank.spaced :] for text, blank in zip(texts, template.blanks, strict=True))


def too_long(model: Model, template: Template, tries: int) -> str | None:
    """A warning for a text longer than the model was trained on; None when it fits."""
    trained, tokenizer = model.spec.length, model.text_tokenizer()
    longest = template.lengths(tries)[-1]
    check_length(sum(longest))
    length = len(template.tokens(tokenizer, longest))
    if length <= trained:
        return None
    return (
        f"the text has {length} tokens with its blanks and the model was trained on {trained}: expect poor text. "
        "Leave out what is far from the blanks."
    )
