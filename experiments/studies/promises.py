"""Stories that keep a promise: two words that come in this order, or so many sentences in so many tokens.

Free draws show how often a model does it by itself. With the constraint every draw must; whether it does is checked
with `re` on the finished text, not with the automaton that drew it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from studies.results import Cell, Share, Table, mean, perplexity
from studies.stories import same_tokens, say, verdicts
from unmask.evaluation.quality.judges import Judge
from unmask.evaluation.quality.variety import row_entropy
from unmask.model.model import Model
from unmask.sampling.control import Control
from unmask.sampling.tasks.continuation import Sample, sample
from unmask.text.tokens.vocabulary import END

PAIRS = (("dog", "ball"), ("cat", "tree"), ("bird", "sky"), ("boy", "boat"), ("girl", "flower"), ("mom", "cake"))
PROMPT = "Once upon a time"
LENGTH = 64  # tokens of a story, the end-of-text token before it and the prompt included
SENTENCES = 5
ORDER = "entropy"  # in which diffusion draws: the surest position first
TOP_P = 0.9  # for both models
ANY, NO_LETTER = r"(?:.|\n)*", r"[^A-Za-z]"


@dataclass(frozen=True)
class Promise:
    """`pattern` is for what is drawn behind the prompt, `check` for the whole text; `exact`: of all its tokens."""

    name: str
    pattern: str
    check: str
    exact: bool = False
    together: str = ""  # what a text holds that keeps the promise by the letter only: the words side by side

    def kept(self, drawn: Sample) -> bool:
        whole = not self.exact or len(drawn.tokens) == LENGTH
        return whole and re.fullmatch(self.check, drawn.text, re.DOTALL) is not None


def with_words(first: str, second: str) -> Promise:
    gap = f"(?:{ANY}{NO_LETTER})?"
    pattern = f"{NO_LETTER}{gap}{first}{NO_LETTER}{gap}{second}{NO_LETTER}{ANY}"
    alone = [f"(?<![A-Za-z]){word}(?![A-Za-z])" for word in (first, second)]
    together = f"{alone[0]}{NO_LETTER}{{1,2}}{alone[1]}"
    return Promise("two words in order", pattern, f".*{alone[0]}.*{alone[1]}.*", together=together)


def of_sentences(count: int) -> Promise:
    """The marks . ! ? end a sentence, and none stands within one."""
    pattern = f"(?:[^.!?]+[.!?]){{{count}}}"
    return Promise(f"{count} sentences in {LENGTH} tokens", pattern, pattern, exact=True)


def promises() -> dict[str, list[Promise]]:
    """What is promised, by name; where there are several, the draws are shared out among them."""
    words, length = [with_words(*pair) for pair in PAIRS], [of_sentences(SENTENCES)]
    return {some[0].name: some for some in (words, length)}


def stories(model: Model, promise: Promise | None, *, n: int, seed: int) -> list[Sample]:
    """Draws of a model, free or with a promise. Free ones end where the model ends them."""
    prompt = model.text_tokenizer().encode(PROMPT)
    if not model.objective.facts.causal:  # an autoregressive model gets its own
        prompt = [model.text_tokenizer().bos or 0, *prompt]
    control = Control() if promise is None else Control(pattern=promise.pattern, exact_length=True)
    until = END if promise is None else None
    way = None if model.objective.facts.causal else ORDER
    how = {"sampler": way, "top_p": TOP_P, "seed": seed, "plain": True}
    return sample(model, n=n, length=LENGTH, prompt=prompt, until=until, control=control, **how)


def shared_out(
    model: Model, some: Sequence[Promise], *, n: int, seed: int, held: bool
) -> list[tuple[Promise, Sample]]:
    """n draws, each with the promise whose turn it is; `held`: drawn so that it is kept."""
    if not held:
        drawn = stories(model, None, n=n, seed=seed)
        return [(some[i % len(some)], one) for i, one in enumerate(drawn)]
    counts = [len(range(i, n, len(some))) for i in range(len(some))]
    return [
        (promise, one)
        for number, (promise, count) in enumerate(zip(some, counts, strict=True))
        if count
        for one in stories(model, promise, n=count, seed=seed + number)
    ]


def study(mdlm: Model, ar: Model, judges: dict[str, Judge], *, n: int, seed: int) -> Table:
    same_tokens(mdlm, ar)
    rows: list[tuple[Cell, ...]] = []
    texts: list[dict[str, Any]] = []
    for name, some in promises().items():
        for model in (mdlm, ar):
            for held in (False, True):
                began = perf_counter()
                found = shared_out(model, some, n=n, seed=seed, held=held)
                method = f"{model.objective.name}, {'constraint' if held else 'free'}"
                rows.append((name, method, *measured(found, judges, free=not held)))
                texts += [{"promise": p.pattern, "method": method, "text": one.text} for p, one in found]
                say(f"{' | '.join(map(str, rows[-1]))} ({perf_counter() - began:.0f} s)")
    head = (
        "promise",
        "method",
        "kept",
        "words side by side",
        *[f"ppl ({who})" for who in judges],
        "entropy",
        "calls",
        "calls by rejection",
    )
    about = {"n": n, "judges": {who: judge.about for who, judge in judges.items()}, "texts": texts}
    return Table(f"Stories of {LENGTH} tokens that keep a promise", head, tuple(rows), NOTES, about)


def measured(found: Sequence[tuple[Promise, Sample]], judges: dict[str, Judge], *, free: bool) -> tuple[Cell, ...]:
    """Promises kept, what the judges say, the entropy of the tokens, calls, and calls a story by rejection."""
    good = sum(promise.kept(one) for promise, one in found)
    paid = [verdicts(judge, [[one.text] for _, one in found]) for judge in judges.values()]
    said = [perplexity(*zip(*[verdict.all for verdict in some], strict=True)) for some in paid]
    calls = float(np.mean([one.calls for _, one in found]))
    again = "-" if not free else f"{calls * len(found) / good:.0f}" if good else f"> {calls * len(found):.0f}"
    richness = mean([row_entropy(np.array(one.tokens)) for _, one in found])
    return Share(good, len(found)), side_by_side(found), *said, richness, f"{calls:.1f}", again


def side_by_side(found: Sequence[tuple[Promise, Sample]]) -> Share | None:
    """Of the stories that keep a promise of words, those that put them next to each other."""
    kept = [(promise, one.text) for promise, one in found if promise.together and promise.kept(one)]
    return Share(sum(re.search(p.together, text) is not None for p, text in kept), len(kept)) if kept else None


NOTES = (
    "Kept: checked with `re` on the text; 95 % by Wilson. Perplexity ± standard error over stories; entropy of a "
    "story's own tokens, in nats.",
    f"Both are drawn with top-p {TOP_P:g}, diffusion in the order of {ORDER}, the other from left to right.",
    "Calls by rejection: what a free model needs for one story that keeps the promise, calls / share, as measured.",
)
