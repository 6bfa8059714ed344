"""Samples for judging: texts drawn from a model, and what drawing them cost."""

import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

from rich.console import Console
from rich.status import Status

from unmask.errors import UserError
from unmask.evaluation.quality.assessment import SampleText, text_of_tokens
from unmask.model.model import Model
from unmask.sampling.recipe import Recipe
from unmask.sampling.tasks.continuation import Continue, Sample, draw_continuations, generate
from unmask.text.corpus.turns import Exchange


def drawn_texts(
    model: Model, recipe: Recipe, *, n: int, length: int | None = None, document: bool | None = None
) -> tuple[list[SampleText], dict[str, Any]]:
    """Texts, and their sampler, law, forward passes per batch and seconds per sample."""
    events = generate(model, recipe, n=n, length=length, document=document)
    samples = counted_samples(events, n)
    return [text_of_tokens(sample.tokens, model.text_tokenizer()) for sample in samples], cost_of(samples, recipe)


def drawn_answers(
    model: Model, recipe: Recipe, entries: Sequence[Exchange], *, length: int | None = None
) -> tuple[list[str], dict[str, Any]]:
    """The answers of a model of pairs to prompts, and what drawing them cost."""
    if not model.layout.answers:
        raise UserError("this model was not trained on pairs: train one with `unmask train --given FIELD`.")
    tokenizer = model.text_tokenizer()
    tasks = [Continue(model.layout.conversation(tokenizer, one.given), length) for one in entries]
    samples = counted_samples(draw_continuations(model, recipe, tasks), len(tasks))
    return [sample.text for sample in samples], cost_of(samples, recipe)


def counted_samples(events: Iterable[Any], total: int) -> list[Sample]:
    """The samples among the events; a terminal shows meanwhile how many there are."""
    console, samples = Console(file=sys.stderr), list[Sample]()
    with Status(f"drawn 0 of {total} samples", console=console) if console.is_terminal else nullcontext() as status:
        for event in events:
            if isinstance(event, Sample):
                samples.append(event)
                if status is not None:
                    status.update(f"drawn {len(samples)} of {total} samples")
    return samples


def cost_of(samples: Sequence[Sample], recipe: Recipe) -> dict[str, Any]:
    batches = [samples[i : i + recipe.batch] for i in range(0, len(samples), recipe.batch)]
    return {
        "sampler": samples[0].sampler,
        "law": samples[0].law,
        "calls": sum(max(sample.calls for sample in batch) for batch in batches) / len(batches),
        "seconds_per_sample": sum(batch[0].seconds for batch in batches) / len(samples),
    }
