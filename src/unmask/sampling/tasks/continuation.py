"""Samples: text out of a model, with the trace of how it came about.

`sample` gives finished samples; `generate`, underneath, also yields the canvas after every network call.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from unmask.errors import UserError
from unmask.model.checkpoint import Model, load
from unmask.sampling.control import Control
from unmask.sampling.recipe import Recipe, check_length, doubt, method_for
from unmask.sampling.tasks.rows import Event, Moment, draw_rows
from unmask.text.prompt.canvas import Canvas, blank, of_prompt
from unmask.text.prompt.stop import Until
from unmask.text.tokens.tokenizer import Tokenizer, encode_given


@dataclass(frozen=True)
class Sample:
    """A text, and how it came about."""

    text: str
    tokens: list[int]
    trace: tuple[Event, ...]  # the tokens that were drawn, in the order they came; those of a prompt are not
    seed: int
    row: int  # its number: seed and row give this sample again, whatever else is drawn
    calls: int  # network calls until its last token, those its batch waited for included
    sampler: str
    law: str  # what the samples follow: exact, grid-T, or approximate and why
    seconds: float  # that its batch took


def sample(
    model: Model | str | Path,
    *,
    n: int = 1,
    length: int | None = None,
    prompt: str | Sequence[int] = "",
    until: str | None = None,
    document: bool | None = None,
    sampler: str | None = None,
    steps: int | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int | None = None,
    no_repeat: int | None = None,
    seed: int = 0,
    window: int | None = None,
    stride: int | None = None,
    batch: int = 32,
    control: Control | None = None,
) -> list[Sample]:
    """Draw `n` texts of `length` tokens (the model's own by default), the prompt included.

        for sample in unmask.sample("runs/stories", n=3, prompt="Once upon a time", seed=1):
            print(sample.text, sample.law)

    until    the text ends before this text or special token ("<|endoftext|>"), if it comes
    document the text begins where a document begins and ends where it ends; None: if the model was trained on a
             stream of documents, whose rows else begin and end anywhere
    window   tokens the model sees at once; with it, texts may be longer than the model was trained on
    control  a pattern that every text matches, guidance, remasking: `Control(pattern="[0-9]+")`
    The others are those of `sampling.recipe.Recipe`, which `unmask sample --help` explains.
    """
    model = model if isinstance(model, Model) else load(model)
    how = (sampler, steps, temperature, top_p, top_k, no_repeat)
    recipe = Recipe(*how, seed, window, stride, batch, control or Control())
    told = doubt(model, length or model.architecture.length, recipe)
    if told is not None:
        warnings.warn(told, stacklevel=2)
    whole = writes_documents(model) if document is None else document
    events = generate(model, recipe, n=n, length=length, prompt=prompt, until=until, document=whole)
    return [event for event in events if isinstance(event, Sample)]


def generate(
    model: Model,
    recipe: Recipe,
    *,
    n: int = 1,
    length: int | None = None,
    prompt: str | Sequence[int] = "",
    until: str | None = None,
    document: bool = False,
    share: tuple[int, int] = (0, 1),
) -> Iterator[Moment | Sample]:
    """Draw `n` texts, a batch at a time: a `Moment` after every network call, then the batch's samples.

    `share` is (rank, world) where several processes draw: this one draws every world-th batch.
    """
    tokenizer, method = model.text_tokenizer(), method_for(model, recipe)
    spaced = heals(prompt, tokenizer) and not recipe.control.constrains
    if spaced:
        prompt, method = prompt[:-1], method.healing(tokenizer)
    given = beginning(model, tokenizer, prompt, document=document)
    if recipe.control.guidance != 1 and not given:
        raise UserError("guidance compares the model with and without the given text: give a prompt.")
    length = model.architecture.length if length is None else length
    check_length(length)
    start = canvas_of(given, length=length, mask=model.mask).tokens[0]
    if until is None and document and tokenizer.eos is not None:
        until = tokenizer.pieces[tokenizer.eos]
    end = None if until is None else Until(until)

    def enough(canvas: Canvas) -> bool:
        return end is not None and all_ended(canvas, end, tokenizer, len(given))

    start = start.to(model.network.vocab_embed.embedding.device)
    first = (torch.arange(length, device=start.device) == len(given)) if spaced else None
    events = draw_rows(method, start, n=n, recipe=recipe, mask=model.mask, enough=enough, share=share, spaced=first)
    for event in events:
        if isinstance(event, Moment):
            yield event
            continue
        tokens, text = event.tokens, ""
        if end is None:
            text = tokenizer.decode(tokens)
        else:
            tokens, text = end.cut(tokenizer, tokens, len(given))
        kept = tuple(came for came in event.trace if came.position < len(tokens))
        yield Sample(
            text, tokens, kept, recipe.seed, event.row, event.calls, method.sampler, method.law, event.seconds
        )


def heals(prompt: str | Sequence[int], tokenizer: Tokenizer) -> bool:
    """Whether a prompt ends in a space that the next word brings itself, as `text.template.healed` says of blanks."""
    return isinstance(prompt, str) and len(prompt) > 1 and prompt.endswith(" ") and bool(tokenizer.spacers)


def writes_documents(model: Model) -> bool:
    """Whether the model was trained on a stream of documents with an eos between them."""
    text = model.settings.get("text")
    streamed = isinstance(text, Mapping) and text.get("pack") == "stream"
    return streamed and model.tokenizer is not None and model.tokenizer.eos is not None


def beginning(
    model: Model, tokenizer: Tokenizer, prompt: str | Sequence[int], *, document: bool = False
) -> list[int]:
    """The tokens a text begins with: a document's stand behind the eos of the one before.

    An autoregressive model always needs one before the first, its bos.
    """
    ids = encode_given(tokenizer, prompt) if isinstance(prompt, str) else list(prompt)
    wrong = [id for id in ids if not 0 <= id < model.architecture.vocab or id == model.mask]
    if wrong:
        raise UserError(f"a prompt's ids must be tokens of the vocabulary, not the mask; saw {wrong[0]}.")
    if model.objective != "ar":
        if document and tokenizer.eos is None:
            raise UserError("this model's tokenizer has no eos token, so it does not know where a document begins.")
        return [tokenizer.eos, *ids] if document and tokenizer.eos is not None else ids
    if tokenizer.bos is None:
        raise UserError("this autoregressive model's tokenizer has no bos token for a text to begin with: name one.")
    return [tokenizer.bos, *ids]


def canvas_of(given: list[int], *, length: int, mask: int) -> Canvas:
    """The beginning, frozen, and masks up to `length`."""
    return of_prompt(given, length=length, mask=mask) if given else blank(1, length, mask=mask)


def all_ended(canvas: Canvas, end: Until, tokenizer: Tokenizer, start: int) -> bool:
    """Whether every row has come to its end before its first mask: what is still hidden will be cut off."""
    for row in canvas.tokens.tolist():
        known = row.index(canvas.mask) if canvas.mask in row else len(row)
        if known <= start or end.end(tokenizer, row[:known], start) is None:
            return False
    return True
