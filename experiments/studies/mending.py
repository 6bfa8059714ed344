"""Remasking: what judges think of samples, with tokens hidden again and without, at about as many network calls."""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from studies.results import Cell, Mean, Table, mean
from studies.stories import say
from unmask.evaluation.quality.assessment import text_of_tokens
from unmask.evaluation.quality.judges import Judge
from unmask.evaluation.quality.perplexity import perplexity, read_by_judge
from unmask.evaluation.quality.variety import row_entropy
from unmask.model.model import Model
from unmask.sampling.tasks.continuation import sample

SAMPLERS = {
    "without (ancestral)": "ancestral",
    "rescale, η 0.05": "remask-rescale:eta=0.05",
    "conf, η 0.05": "remask-conf:eta=0.05",
    "cap, η 0.02": "remask-cap:eta=0.02",
    "loop, η 0.02": "remask-loop:eta=0.02",
}
BUDGETS = (16, 32, 64, 128)


def study(
    model: Model, judges: dict[str, Judge], *, n: int, seed: int, budgets: Sequence[int] = BUDGETS, top_p: float = 0.9
) -> Table:
    rows: list[tuple[Cell, ...]] = []
    texts: list[dict[str, Any]] = []
    for steps in budgets:
        for name, sampler in SAMPLERS.items():
            began = perf_counter()
            drawn = sample(model, n=n, sampler=sampler, steps=steps, top_p=top_p, seed=seed, plain=True)
            documents = [text_of_tokens(one.tokens, model.text_tokenizer()).documents for one in drawn]
            said = [judged(judge, documents) for judge in judges.values()]
            rich = mean([row_entropy(np.array(one.tokens)) for one in drawn])
            calls = max(one.calls for one in drawn)
            rows.append((steps, name, calls, *said, rich))
            texts += [{"steps": steps, "method": name, "text": one.text} for one in drawn]
            say(f"{' | '.join(map(str, rows[-1]))} ({perf_counter() - began:.0f} s)")
    head = ("steps", "remasking", "calls", *[f"ppl ({who})" for who in judges], "entropy")
    about = {"n": n, "top_p": top_p, "judges": {who: judge.about for who, judge in judges.items()}, "texts": texts}
    length = model.spec.length
    return Table(f"Remasking: {n} samples of {length} tokens, top-p {top_p:g}", head, tuple(rows), NOTES, about)


def judged(judge: Judge, samples: Sequence[Sequence[str]]) -> Mean:
    found = perplexity(read_by_judge(judge, samples), "pooled")
    return Mean(found.perplexity, found.standard_error)


NOTES = (
    "Perplexity (pooled, as `unmask quality` has it) ± standard error over samples; entropy of a sample's own "
    "tokens, in nats: lower perplexity at lower entropy is duller text, not better text. Rows share their seed.",
)
