"""Continuation: text from a model, with or without a prompt, and its trace (which token came at which call).

`sample` gives finished samples; `generate`, underneath, also yields the canvas after every network call. A `Continue`
is the task itself: Python, the command line and the server build their rows with it.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.errors import UserError
from unmask.model.checkpoint import load
from unmask.model.model import Model
from unmask.sampling.recipe import Recipe, check_length, check_number, doubt, method_for
from unmask.sampling.tasks.rows import Event, Moment, TaskRow, draw_rows, drop_unneeded_blanks
from unmask.text.prompt.canvas import Canvas
from unmask.text.prompt.stop import Until
from unmask.text.tokens.tokenizer import Tokenizer, encode_given


@dataclass(frozen=True)
class Continue:
    """Continue a prompt, up to a suffix if there is one."""

    prompt: str | Sequence[int] = ""
    length: int | None = None  # total tokens, the prompt included; None: the model's own, or its training length
    new: int | None = None  # or tokens to draw, not counting the prompt
    suffix: str = ""  # given text after the drawn text
    document: bool | None = None  # start a document, after an eos; None: if the model was trained on documents

    def begins_document(self, model: Model) -> bool:
        return model.layout.documents if self.document is None else self.document

    def ends(self, model: Model, until: str | None = None) -> bool:
        """Whether the end token may be drawn: the text ends before it, or the model has learned where texts end."""
        eos = model.text_tokenizer().eos
        if eos is not None and until == model.text_tokenizer().pieces[eos]:
            return True
        return model.layout.may_end(document=self.begins_document(model))

    def row(self, model: Model, *, constrained: bool = False) -> TaskRow:
        """The row to be filled. A pattern applies to the drawn text only, so a space before it stays."""
        tokenizer, prompt, document = model.text_tokenizer(), self.prompt, self.begins_document(model)
        healed = heals(prompt, tokenizer) and not constrained and not model.layout.answers
        if healed:
            prompt = prompt[:-1]
        before, after = model.layout.asked(prompt_ids(model, prompt)), encode_given(tokenizer, self.suffix)
        if after and not model.objective.facts.infills:
            raise UserError(
                f"a model of the objective {model.objective.name} cannot fill in before given text: leave the suffix "
                "out."
            )
        given = len(before) + len(model.layout.opening(document=document))
        if model.objective.leads and not given:
            raise UserError("this model's tokenizer has no token for a text to begin with: give a prompt.")
        rest = len(after) + len(model.layout.closing())
        new = model.new if self.length is None and self.new is None else self.new
        total = model.spec.length if self.length is None else self.length
        total = total if new is None else given + new + rest
        check_length(total)
        blanks = total - given - rest
        if blanks < 1:
            raise UserError(
                f"the prompt has {given + rest} tokens and the canvas {total}: nothing is left to fill. "
                "Shorten the prompt or ask for a greater length."
            )
        row = model.layout.prompt(before, blanks, after, mask=model.mask, document=document)
        spaced = [i == given for i in range(total)] if healed else []
        return TaskRow.of(row, start=given, spaced=spaced, healed=healed)


@dataclass(frozen=True)
class Sample:
    """A text and its trace."""

    text: str  # with the prompt, but for a model of pairs: there it is the answer alone
    tokens: list[int]
    trace: tuple[Event, ...]  # the drawn tokens in order, without the prompt
    seed: int
    row: int  # its number: seed and row reproduce this sample, whatever else is drawn
    calls: int  # network calls until its last token, waiting for its batch included
    sampler: str
    law: str  # the distribution of the samples: exact, grid-T, or approximate and why
    seconds: float  # time of its batch


def sample(
    model: Model | str | Path,
    *,
    n: int = 1,
    length: int | None = None,
    prompt: str | Sequence[int] = "",
    until: str | None = None,
    document: bool | None = None,
    recipe: Recipe | None = None,
    **options: Any,
) -> list[Sample]:
    """Draw `n` texts of `length` tokens, the prompt included; by default the training length, and of a published
    decoder as many after the prompt as its authors draw.

        for sample in unmask.sample("stories", n=3, prompt="Once upon a time", seed=1):
            print(sample.text, sample.law)

    until    end the text before this text or special token ("<|endoftext|>"), if it occurs; the end tokens of a
             published model end it in any case
    document the text begins and ends with a document; None: if the model was trained on documents (packed as
             `stream` or `rows`), otherwise rows begin and end anywhere
    recipe   how to sample; `options` change it: sampler=, steps=, temperature=, top_p=, seed=, pattern=, ...
    The options are those of `sampling.recipe.Recipe` and `Control`, which `unmask sample --help` explains. `sampler`
    is a name or a policy of your own (docs/how/extend.md); what is not given is the model's default.
    """
    model = model if isinstance(model, Model) else load(model)
    recipe = (recipe or Recipe()).changed(**options)
    warning = doubt(model, length or model.spec.length, recipe)
    if warning is not None:
        warnings.warn(warning, stacklevel=2)
    events = generate(model, recipe, n=n, length=length, prompt=prompt, until=until, document=document)
    return [event for event in events if isinstance(event, Sample)]


def generate(
    model: Model,
    recipe: Recipe,
    *,
    n: int = 1,
    length: int | None = None,
    prompt: str | Sequence[int] = "",
    until: str | None = None,
    document: bool | None = None,
    share: tuple[int, int] = (0, 1),
) -> Iterator[Moment | Sample]:
    """Draw `n` texts, a batch at a time: a `Moment` after every network call, then the batch's samples.

    `share` is (rank, world) if several processes draw: this one draws every world-th batch.
    """
    check_number(n, of="samples")
    return draw_continuations(
        model, recipe, [Continue(prompt, length, document=document)] * n, until=until, share=share
    )


def draw_continuations(
    model: Model,
    recipe: Recipe,
    tasks: Sequence[Continue],
    *,
    until: str | None = None,
    share: tuple[int, int] = (0, 1),
) -> Iterator[Moment | Sample]:
    """Draw a text for each task, a batch at a time; the tasks have one length and differ in their prompts."""
    tokenizer, task = model.text_tokenizer(), tasks[0]
    made: dict[int, TaskRow] = {}  # equal tasks have one row
    for one in tasks:
        if id(one) not in made:
            made[id(one)] = one.row(model, constrained=recipe.control.constrains)
    healed = any(row.heals for row in made.values())
    method = method_for(model, recipe, healed=healed, ends=task.ends(model, until))
    for number, row in made.items():
        made[number] = drop_unneeded_blanks(row, method.constraint, mask=model.mask, device=model.device)
        if recipe.control.guidance != 1 and row.start <= row.closing:
            raise UserError("guidance compares the model with and without the given text: give a prompt.")
    rows = [made[id(one)] for one in tasks]
    ids = model.ends
    if until is None and task.begins_document(model):
        ids |= frozenset(model.layout.end_ids)
    end = Until(until, ids) if until is not None or ids else None

    def enough(canvas: Canvas, some: Sequence[TaskRow]) -> bool:
        return end is not None and all_ended(canvas, end, tokenizer, [row.start for row in some])

    events = draw_rows(method, rows, recipe=recipe, mask=model.mask, device=model.device, enough=enough, share=share)
    for event in events:
        if isinstance(event, Moment):
            yield event
            continue
        tokens, start = event.tokens, rows[event.row].start
        given = start if model.layout.answers else 0
        if end is None:
            text = tokenizer.decode(tokens[given:])
        else:
            tokens, text = end.cut(tokenizer, tokens, start, shown=given)
        trace = tuple(came for came in event.trace if came.position < len(tokens))
        yield Sample(
            text, tokens, trace, recipe.seed, event.row, event.calls, method.sampler, method.law, event.seconds
        )


def heals(prompt: str | Sequence[int], tokenizer: Tokenizer) -> bool:
    """Whether a prompt ends in a space that the next token must contain (token healing, as in `text.template`)."""
    return isinstance(prompt, str) and len(prompt) > 1 and prompt.endswith(" ") and bool(tokenizer.spacers)


def prompt_ids(model: Model, prompt: str | Sequence[int]) -> list[int]:
    tokenizer = model.text_tokenizer()
    ids = model.layout.question(tokenizer, prompt) if isinstance(prompt, str) else list(prompt)
    wrong = [id for id in ids if not 0 <= id < model.spec.vocab or id == model.mask]
    if wrong:
        raise UserError(f"a prompt's ids must be tokens of the vocabulary, not the mask; saw {wrong[0]}.")
    return ids


def all_ended(canvas: Canvas, end: Until, tokenizer: Tokenizer, starts: Sequence[int]) -> bool:
    """Whether every row ends before its first mask: what is still hidden will be cut off."""
    for row, start in zip(canvas.tokens.tolist(), starts, strict=True):
        known = row.index(canvas.mask) if canvas.mask in row else len(row)
        if known <= start or end.end(tokenizer, row[:known], start) is None:
            return False
    return True
