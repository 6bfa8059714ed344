"""Infilling: the blanks of a template filled in several ways, best first.

For one choice of lengths candidates are ranked by log p(blanks | given). Between lengths decides

    log p(given | where the blanks are)

how well the given text fits around blanks of that size, whatever stands in them; a candidate is then as far above or
below the others of its lengths as it is likelier than they are on average. The probability of the whole text would
not do: it favours short blanks, for the many ways to fill a long one share what it has.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.errors import UserError
from unmask.model.checkpoint import Model, load
from unmask.sampling.control import Control
from unmask.sampling.recipe import Method, Recipe, check_length, method_for
from unmask.sampling.score import Estimate, check_looks, log_likelihood, nats_of
from unmask.sampling.tasks.rows import Drawn, Event, Moment, draw_rows
from unmask.text.prompt.canvas import of_tokens
from unmask.text.prompt.template import Lengths, Template, healed, parse
from unmask.text.tokens.pieces import pieces
from unmask.text.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Infilled:
    """A template with its blanks filled."""

    text: str
    blanks: tuple[str, ...]  # what came into each blank
    lengths: Lengths  # tokens of each blank
    tokens: list[int]
    log_likelihood: float  # of the blanks given the rest, in nats: a lower bound, estimated
    error: float  # the standard error of that estimate
    score: float  # what candidates are ranked by; see the head of this file
    trace: tuple[Event, ...]  # the tokens of the blanks in the order they came
    seed: int
    row: int  # its number among the candidates of these lengths
    calls: int  # network calls to draw it; scoring takes some more
    sampler: str
    law: str  # what a candidate of given lengths follows, before ranking
    seconds: float  # that drawing its batch took


def infill(
    model: Model | str | Path,
    template: str,
    *,
    n: int = 1,
    shortest: int = 1,
    longest: int = 8,
    tries: int = 16,
    looks: int = 32,
    sampler: str | None = None,
    steps: int | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int | None = None,
    no_repeat: int | None = None,
    seed: int = 0,
    batch: int = 32,
    control: Control | None = None,
) -> list[Infilled]:
    """Fill the blanks of a template and give the `n` best of what was drawn, best first.

        for found in unmask.infill("runs/stories", "The ___ sat on the [5].", n=3):
            print(found.score, found.text)

    `n` candidates are drawn for each choice of lengths; equal ones are given once.
    shortest, longest   tokens of a blank written ___
    tries               choices of lengths at most, when there are more of them
    looks               network evaluations for the score of a candidate
    The others are those of `sampling.recipe.Recipe`.
    """
    model = model if isinstance(model, Model) else load(model)
    how = (sampler, steps, temperature, top_p, top_k, no_repeat)
    recipe = Recipe(*how, seed, batch=batch, control=control or Control())
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
    nats_of(model)  # refuses a model that cannot fill blanks
    tokenizer, method = model.text_tokenizer(), method_for(model, recipe)
    if not recipe.control.constrains:  # a pattern is for what stands in the blank, not for the space before it
        template = healed(template, tokenizer)
        method = method.healing(tokenizer) if template.heals else method
    choices = possible(model, method, template, tries)
    found: dict[tuple[int, ...], Infilled] = {}
    for lengths in choices:
        check_length(sum(lengths))
        start = torch.tensor(template.tokens(tokenizer, lengths)).to(model.network.vocab_embed.embedding.device)
        some: list[Infilled] = []
        spaced = torch.tensor(template.spaced(tokenizer, lengths), device=start.device)
        for event in draw_rows(method, start, n=n, recipe=recipe, mask=model.mask, spaced=spaced):
            if isinstance(event, Moment):
                yield event
            elif tuple(event.tokens) not in found:
                scored = score(model, start, event, looks=looks, seed=recipe.seed)
                blanks = filled(tokenizer, start.tolist(), event.tokens, template, lengths)
                some.append(finished(tokenizer, event, method, recipe, lengths, blanks, scored))
                found[tuple(event.tokens)] = some[-1]
        if len(choices) > 1 and some:
            fit = given(model, start, looks=looks, seed=recipe.seed)
            usual = sum(one.score for one in some) / len(some)
            found |= {tuple(one.tokens): replace(one, score=fit + one.score - usual) for one in some}
    yield from sorted(found.values(), key=lambda one: -one.score)[:n]


def possible(model: Model, method: Method, template: Template, tries: int) -> list[Lengths]:
    """The choices of lengths with which the constraint, if there is one, can be satisfied; at least one."""
    choices, constraint = template.lengths(tries), method.shape.constraint or method.kept
    if constraint is None:
        return choices
    kept: list[Lengths] = []
    refusal: UserError | None = None
    for lengths in choices:
        start = torch.tensor([template.tokens(model.text_tokenizer(), lengths)])
        try:
            constraint.check(of_tokens(start, mask=model.mask))
            kept.append(lengths)
        except UserError as error:
            refusal = error
    if refusal is not None and not kept:
        raise refusal
    return kept


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
    """log p(given | where the blanks are): the network never sees what is in them."""
    blank = start == model.mask
    some = start.masked_fill(blank, 0 if model.mask else 1)  # any token but the mask: nobody looks at it
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
    trained, tokenizer = model.architecture.length, model.text_tokenizer()
    longest = template.lengths(tries)[-1]
    check_length(sum(longest))
    length = len(template.tokens(tokenizer, longest))
    if length <= trained:
        return None
    return (
        f"the text has {length} tokens with its blanks and the model was trained on {trained}: expect poor text. "
        "Leave out what is far from the blanks."
    )
