"""Infilling: different texts for the blanks of a template, best first.

The lengths of the blanks follow their posterior given the text around them (`lengths.py`): the first candidate has
the most probable lengths, and further ones share the lengths in proportion. Candidates with equal lengths are
compared by log p(blanks | given). The score of a candidate is a sum of logarithms, in nats:

    log p(its lengths | given)  +  log p(blanks | given) − the same for the best candidate with these lengths

0 would be a certain length and its best candidate. log p(blanks | given) itself does not compare lengths: the many
fillings of a long blank share its probability.
"""

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.errors import UserError
from unmask.model.checkpoint import load
from unmask.model.model import Model
from unmask.sampling.patterns.constraint import Constraint
from unmask.sampling.recipe import Method, Recipe, check_length, check_number, method_for
from unmask.sampling.score import Estimate, check_passes, log_likelihoods, scored_by
from unmask.sampling.tasks.lengths import Posterior, found_posterior, plausibility, weigh
from unmask.sampling.tasks.rows import Drawn, Event, Moment, TaskRow, canvas_of, draw_rows
from unmask.text.prompt.template import Lengths, Template, heal_spaces, parse
from unmask.text.row import Role
from unmask.text.tokens.pieces import pieces
from unmask.text.tokens.tokenizer import Tokenizer

PATIENCE = 16  # draws without a new text after which a choice of lengths is given up
DRAWS = 8  # the limit on draws, in multiples of the number of candidates


@dataclass(frozen=True)
class Infill:
    """Fill the blanks of a template: the task of Python, the command line and the server."""

    model: Model
    given: Template
    constrained: bool = False  # a pattern applies to the text in a blank, so a space before it stays
    prompt: str = ""  # for a model of pairs: the given text that the template answers

    @cached_property
    def asked(self) -> list[int]:
        """The ids of the given text before the template."""
        if self.prompt and not self.model.layout.answers:
            raise UserError("this model was not trained on pairs: put the given text into the template itself.")
        return self.model.layout.asked(self.model.layout.question(self.model.text_tokenizer(), self.prompt))

    @cached_property
    def template(self) -> Template:
        return self.given if self.constrained else heal_spaces(self.given, self.model.text_tokenizer())

    def row(self, lengths: Lengths) -> TaskRow:
        """The row to be filled, with blanks of these lengths."""
        laid = list(self.template.laid(self.model.text_tokenizer(), lengths))
        ids, layout = [id for id, _ in laid], self.model.layout
        row = layout.filled([*self.asked, *ids], mask=self.model.mask, length=self.model.spec.length)
        if self.model.objective.leads and row.tokens[0] == self.model.mask:
            raise UserError("this model's tokenizer has no token for a text to begin with: begin with given text.")
        spaced, first = [False] * len(row.tokens), self.first
        spaced[first : first + len(laid)] = [spaced for _, spaced in laid]
        return TaskRow.of(row, spaced=spaced if self.template.heals else [], healed=self.template.heals)

    @property
    def first(self) -> int:
        """The position of the template in the row."""
        return len(self.model.layout.before_template) + len(self.asked)

    def size(self, lengths: Lengths) -> int:
        """The tokens that a row with blanks of these lengths needs at least."""
        layout = self.model.layout
        marks = len(layout.before_template) + len(layout.closing())
        return len(self.asked) + len(self.template.tokens(self.model.text_tokenizer(), lengths)) + marks

    def choices(
        self, tries: int, *, constraint: Constraint | None = None, longest: int | None = None
    ) -> list[Lengths]:
        """Possible lengths of the blanks, as far as the text fits and the constraint can be satisfied."""
        choices_of_template = self.template.lengths(tries)
        if longest is not None:
            given = self.size((0,) * len(self.template.blanks))
            choices_of_template = [lengths for lengths in choices_of_template if given + sum(lengths) <= longest]
        if constraint is None:
            return choices_of_template
        fitting: list[Lengths] = []
        refusal: UserError | None = None
        for lengths in choices_of_template:
            try:
                constraint.check(canvas_of([self.row(lengths)], mask=self.model.mask, device=self.model.device))
                fitting.append(lengths)
            except UserError as error:
                refusal = error
        if refusal is not None and not fitting:
            raise refusal
        return fitting

    def weigh(self, choices: Sequence[Lengths], *, passes: int, seed: int) -> Iterator[Posterior | None]:
        """None after every batch of forward passes, and last the posterior of these lengths."""
        marks = [torch.tensor([role == Role.MARK for role in self.row(one).roles]) for one in choices]
        return weigh(self.model, choices, [self.start(one) for one in choices], marks, passes=passes, seed=seed)

    def start(self, lengths: Lengths) -> Int[Tensor, " l"]:
        return torch.tensor(self.row(lengths).tokens, device=self.model.device)

    def blanks(self, lengths: Lengths, tokens: list[int]) -> tuple[str, ...]:
        """The text of each blank of a filled row, without the space that the template gave."""
        return blank_texts(self.model.text_tokenizer(), self.row(lengths).tokens, tokens, self.template, lengths)

    def text(self, lengths: Lengths, tokens: list[int]) -> str:
        """A filled row as text. What was given stays as it was written, even if the vocabulary has no capitals."""
        tokenizer = self.model.text_tokenizer()
        given = [part for part in self.template.parts if isinstance(part, str)]
        if all(tokenizer.decode(tokenizer.encode(part)) == part for part in given):
            return tokenizer.decode(tokens[self.first :])
        text, blanks = "", iter(self.blanks(lengths, tokens))
        for part in self.given.parts:
            piece = part if isinstance(part, str) else next(blanks)
            text += piece if isinstance(part, str) or text[-1:].isalnum() else piece.removeprefix(" ")
        return text


@dataclass(frozen=True)
class Infilled:
    """A template with its blanks filled."""

    text: str
    blanks: tuple[str, ...]  # the text of each blank
    lengths: Lengths  # tokens of each blank
    tokens: list[int]
    score: float  # candidates are ranked by it; see the top of this file
    log_likelihood: float  # log p(blanks | given) in nats: an estimated lower bound
    error: float  # the standard error of that estimate
    length_probability: float  # p(lengths | given)
    length_error: float  # standard error of its logarithm, relative to the most probable lengths
    note: str  # what to know about these results: lengths that fit equally well, fewer texts than asked for; or empty
    trace: tuple[Event, ...]  # the tokens of the blanks in the order they were drawn
    seed: int
    row: int  # its number among the draws with these lengths
    calls: int  # network calls to draw it, without scoring
    sampler: str
    law: str  # the distribution of a candidate, given its lengths
    seconds: float  # time to draw its batch


def infill(
    model: Model | str | Path,
    template: str,
    *,
    n: int = 1,
    shortest: int = 1,
    longest: int = 8,
    tries: int = 16,
    passes: int = 32,
    given: str = "",
    recipe: Recipe | None = None,
    **options: Any,
) -> list[Infilled]:
    """Fill the blanks of a template in `n` different ways, best first.

        for found in unmask.infill("runs/stories", "The ___ sat on the [5].", n=3):
            print(found.score, found.text)

    The first has the most probable lengths; the others share the lengths in proportion to their probability. If fewer
    than `n` different texts are found, their `note` says so.
    shortest, longest   tokens of a blank written ___
    tries               the most choices of lengths to compare
    passes              forward passes at most for the score of a candidate, and 32 times as many to compare lengths
    given               for a model of pairs: the text that the template answers
    recipe, options     how to sample, as for `unmask.sample`
    """
    model = model if isinstance(model, Model) else load(model)
    recipe = (recipe or Recipe()).changed(**options)
    parsed = parse(template, least=shortest, most=longest)
    warning = too_long(model, parsed, tries)
    if warning is not None:
        warnings.warn(warning, stacklevel=2)
    events = candidates(model, parsed, recipe, n=n, tries=tries, passes=passes, given=given)
    return [event for event in events if isinstance(event, Infilled)]


def candidates(
    model: Model,
    template: Template,
    recipe: Recipe,
    *,
    n: int = 1,
    tries: int = 16,
    passes: int = 32,
    given: str = "",
) -> Iterator[Moment | Infilled]:
    """A `Moment` after every network call of the draws, then `n` different candidates, best first."""
    check_passes(passes)
    scored_by(model)  # refuses a model that cannot fill blanks
    check_number(n, of="candidates")
    task = Infill(model, template, recipe.control.constrains, given)
    method = method_for(model, recipe, healed=task.template.heals)
    choices = task.choices(tries, constraint=method.constraint)
    for lengths in choices:
        check_length(sum(lengths))
    posterior = found_posterior(task.weigh(choices, passes=passes, seed=recipe.seed))
    drawn: dict[str, tuple[int, Drawn]] = {}
    tried: Counter[int] = Counter()
    for event in different(task, method, recipe, posterior, n, tried):
        if isinstance(event, Moment):
            yield event
        else:
            drawn[model.text_tokenizer().decode(event[1].tokens)] = event
    note = " ".join(filter(None, [posterior.note, fewer(len(drawn), n, tried.total())]))
    which, rows = [i for i, _ in drawn.values()], [row for _, row in drawn.values()]
    likely = estimates(task, posterior, which, rows, passes=passes, seed=recipe.seed)
    scores = plausibility(which, [posterior.chance[i] for i in which], [one.nats for one in likely])
    filled_texts = [
        infilled_of(task, method, recipe, posterior, i, row, bound, score_, note)
        for i, row, bound, score_ in zip(which, rows, likely, scores, strict=True)
    ]
    yield from sorted(filled_texts, key=lambda one: -one.score)


def different(
    task: Infill, method: Method, recipe: Recipe, posterior: Posterior, n: int, tried: Counter[int]
) -> Iterator[Moment | tuple[int, Drawn]]:
    """Up to `n` rows with different texts, each with the number of its choice; `tried` counts the draws of a choice.

    A choice whose draws bring nothing new any more leaves its turns to the others.
    """
    seen: set[str] = set()
    dry: set[int] = set()
    turns: Counter[int] = Counter()
    while len(seen) < n and tried.total() < DRAWS * n + PATIENCE:
        wanted = Counter(islice(posterior.turns(turns, frozenset(dry)), n - len(seen)))
        if not wanted:
            return
        for i, count in sorted(wanted.items()):
            new, more = 0, max(count, PATIENCE) if tried[i] else count
            row = task.row(posterior.choices[i])
            events = draw_rows(
                method, [row] * more, start=tried[i], recipe=recipe, mask=task.model.mask, device=task.model.device
            )
            for event in events:
                if isinstance(event, Moment):
                    yield event
                    continue
                text = task.model.text_tokenizer().decode(event.tokens)
                if text not in seen and new < count:
                    new += 1
                    seen.add(text)
                    yield i, event
            tried[i] += more
            if not new and more >= PATIENCE:
                dry.add(i)


def fewer(count: int, n: int, draws: int) -> str:
    """Why there are fewer candidates than asked for; empty: there are as many."""
    if count == n:
        return ""
    return f"{draws} draws gave only {count} different texts, not {n}: the others were repetitions."


def infilled_of(
    task: Infill,
    method: Method,
    recipe: Recipe,
    posterior: Posterior,
    choice: int,
    drawn: Drawn,
    likely: Estimate,
    score: float,
    note: str,
) -> Infilled:
    lengths = posterior.choices[choice]
    return Infilled(
        text=task.text(lengths, drawn.tokens),
        blanks=task.blanks(lengths, drawn.tokens),
        lengths=lengths,
        tokens=drawn.tokens,
        score=score,
        log_likelihood=likely.nats,
        error=likely.error,
        length_probability=posterior.chance[choice],
        length_error=posterior.error[choice],
        note=note,
        trace=drawn.trace,
        seed=recipe.seed,
        row=drawn.row,
        calls=drawn.calls,
        sampler=method.sampler,
        law=method.law,
        seconds=drawn.seconds,
    )


def estimates(
    task: Infill, posterior: Posterior, which: Sequence[int], rows: Sequence[Drawn], *, passes: int, seed: int
) -> list[Estimate]:
    """log p(blanks | given) of each row; rows of one choice of lengths are compared with each other."""
    by_row: dict[int, Estimate] = {}
    for choice in sorted({*which}):
        start = task.start(posterior.choices[choice])
        own = [number for number, i in enumerate(which) if i == choice]
        texts = torch.tensor([rows[number].tokens for number in own]).to(start)
        likely = log_likelihoods(task.model, texts, start != task.model.mask, passes=passes, seed=seed)
        by_row |= dict(zip(own, likely, strict=True))
    return [by_row[number] for number in range(len(rows))]


def blank_texts(
    tokenizer: Tokenizer, start: list[int], tokens: list[int], template: Template, lengths: Lengths
) -> tuple[str, ...]:
    """The text of each blank, without the space that the template gave."""
    shown = [piece for piece, was in zip(pieces(tokenizer, tokens), start, strict=True) if was == tokenizer.mask]
    ends = list(accumulate(lengths))
    texts = ["".join(shown[end - length : end]) for end, length in zip(ends, lengths, strict=True)]
    both = zip(texts, template.blanks, strict=True)
    return tuple(text.removeprefix(" ") if blank.spaced else text for text, blank in both)


def too_long(model: Model, template: Template, tries: int) -> str | None:
    """A warning for a text longer than the model was trained on; None when it fits."""
    trained = model.spec.length
    longest = template.lengths(tries)[-1]
    check_length(sum(longest))
    length = Infill(model, template, constrained=True).size(longest)
    if length <= trained:
        return None
    return (
        f"the text has {length} tokens with its blanks and the model was trained on {trained}: expect poor text. "
        "Leave out what is far from the blanks."
    )
