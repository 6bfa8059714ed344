"""Samples for judging: texts drawn from a model, and what drawing them cost."""

from typing import Any

from unmask.evaluation.quality.assessment import SampleText, text_of_tokens
from unmask.model.model import Model
from unmask.sampling.recipe import Recipe
from unmask.sampling.tasks.continuation import Sample, generate


def drawn_texts(
    model: Model, recipe: Recipe, *, n: int, length: int | None = None, document: bool | None = None
) -> tuple[list[SampleText], dict[str, Any]]:
    """Texts, and their sampler, law, forward passes per batch and seconds per sample."""
    events = generate(model, recipe, n=n, length=length, document=document)
    samples = [event for event in events if isinstance(event, Sample)]
    batches = [samples[i : i + recipe.batch] for i in range(0, len(samples), recipe.batch)]
    cost = {
        "sampler": samples[0].sampler,
        "law": samples[0].law,
        "calls": sum(max(sample.calls for sample in batch) for batch in batches) / len(batches),
        "seconds_per_sample": sum(batch[0].seconds for batch in batches) / len(samples),
    }
    return [text_of_tokens(sample.tokens, model.text_tokenizer()) for sample in samples], cost
