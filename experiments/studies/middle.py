"""Infilling: the middle sentence of a story, by a model that sees both sides of it and one that sees the left side.

Diffusion is told how many tokens are missing (`true length`), or chooses (`infill` ranks candidates of several
lengths); the autoregressive model writes until its sentence ends. Both begin behind an end-of-text token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from studies.results import Cell, Mean, Share, Table, against, perplexity
from studies.stories import END, Gap, Verdict, first_word, gap, read_stories, same_tokens, say, verdicts
from unmask.errors import UserError
from unmask.evaluation.quality.judges import Judge
from unmask.model.model import Model
from unmask.sampling.autoregressive import continue_text
from unmask.sampling.logits import LogitOptions
from unmask.sampling.recipe import Recipe, method_for
from unmask.sampling.tasks.infill import infill
from unmask.text.prompt.canvas import of_prompt, of_tokens

LONGEST = 40  # tokens of a sentence, written or to be guessed
UNKNOWN = "[4-27]"  # a blank of unknown length, as a template has it; four lengths of it are tried


@dataclass(frozen=True)
class Filled:
    """A sentence for a gap, and the network calls it took."""

    middle: str
    calls: int


def written(model: Model, found: Gap, *, temperature: float, seed: int) -> Filled:
    """The sentence that an autoregressive model writes behind what is before."""
    tokenizer = model.text_tokenizer()
    start = [tokenizer.bos or 0, *tokenizer.encode(found.before)]
    canvas = of_prompt(start, length=len(start) + LONGEST, mask=model.mask)
    text, calls = "", 0
    for step in continue_text(model.network, canvas, seed=seed, options=LogitOptions(temperature=temperature)):
        calls = step.call
        text = tokenizer.decode(step.canvas.tokens[0, len(start) : len(start) + calls].tolist())
        # Closed quotation marks come with a later token: the sentence has ended when something follows it.
        end = END.search(text)
        if end is not None and end.end() < len(text.rstrip()):
            return Filled(text[: end.end()], calls)
        if tokenizer.eos in step.tokens.tolist():
            return Filled(text, calls)
    return Filled(text, calls)


def guessed(model: Model, found: Gap, sampler: str, *, temperature: float, seed: int) -> Filled:
    """The sentence that diffusion puts between both sides, in as many tokens as the true one has."""
    tokenizer = model.text_tokenizer()
    before, middle, after = (tokenizer.encode(part) for part in found.parts)
    row = [tokenizer.bos or 0, *before, *[model.mask] * len(middle), *after]
    canvas = of_tokens(torch.tensor([row]), mask=model.mask)
    method = method_for(model, Recipe(sampler=sampler, temperature=temperature, plain=True))
    *_, last = method.fill(canvas, seed=seed, ids=torch.arange(1))
    place = slice(1 + len(before), 1 + len(before) + len(middle))
    return Filled(tokenizer.decode(last.canvas.tokens[0, place].tolist()), last.call)


def chosen(model: Model, found: Gap, *, seed: int) -> Filled:
    """The best of four candidates of four lengths, as `unmask.infill` ranks them, the surest position first."""
    parts = [part.replace("\\", r"\\").replace("[", r"\[").replace("_", r"\_") for part in found.parts]
    text = parts[0] + UNKNOWN + parts[2]
    best = infill(model, text, tries=4, passes=8, sampler="entropy", top_p=0.8, seed=seed, plain=True)[0]
    return Filled(best.blanks[0], best.calls)


CHOSEN = "mdlm, both sides, length chosen"
Way = Callable[[Gap, int], Filled]


def ways(mdlm: Model, ar: Model) -> dict[str, Way]:
    return {
        "the story itself": lambda found, seed: Filled(found.middle, 0),
        "ar, left side only, sampled": lambda found, seed: written(ar, found, temperature=1.0, seed=seed),
        "ar, left side only, greedy": lambda found, seed: written(ar, found, temperature=0.0, seed=seed),
        "mdlm, both sides, first-hitting, sampled": lambda found, seed: guessed(
            mdlm, found, "first-hitting", temperature=1.0, seed=seed
        ),
        "mdlm, both sides, confidence, greedy": lambda found, seed: guessed(
            mdlm, found, "confidence", temperature=0.0, seed=seed
        ),
        "mdlm, both sides, left to right, greedy": lambda found, seed: guessed(
            mdlm, found, "left-to-right", temperature=0.0, seed=seed
        ),
        CHOSEN: lambda found, seed: chosen(mdlm, found, seed=seed),
    }


def gaps(path: str, model: Model, n: int) -> list[Gap]:
    """The first `n` stories that have a gap to fill."""
    tokenizer, length = model.text_tokenizer(), model.spec.length
    found = (gap(story, tokenizer, length=length, longest=LONGEST) for story in read_stories(path))
    some = [one for one in found if one is not None][:n]
    if len(some) < 2:
        raise UserError(f"{path} has fewer than two stories of three short sentences within {length} tokens.")
    return some


def study(
    mdlm: Model, ar: Model, judges: dict[str, Judge], texts: str, *, n: int, seed: int, lengths: bool = True
) -> Table:
    """`lengths`: diffusion chooses the length of the sentence too, which takes many times as long as being told."""
    same_tokens(mdlm, ar)
    found = gaps(texts, mdlm, n)
    filled: dict[str, list[Filled]] = {}
    seconds: dict[str, float] = {}
    tried = {name: way for name, way in ways(mdlm, ar).items() if lengths or name != CHOSEN}
    for name, way in tried.items():
        began = perf_counter()
        filled[name] = [way(one, seed + number) for number, one in enumerate(found)]
        seconds[name] = perf_counter() - began
        say(f"{name}: {seconds[name]:.0f} s; {filled[name][0].middle!r}")
    paid = {
        who: {name: verdicts(judge, spelled(found, ones)) for name, ones in filled.items()}
        for who, judge in judges.items()
    }
    rows = tuple(
        (name, *first_words(found, ones), *[cell for who in judges for cell in told(paid[who], name)], calls(ones))
        for name, ones in filled.items()
    )
    of_judges = [f"{what} ({who})" for who in judges for what in ("whole ppl", "middle ppl", "whole − ar, nats")]
    head = ("method", "first word", *of_judges, "calls")
    about = {
        "n": len(found),
        "seconds": seconds,
        "judges": {who: judge.about for who, judge in judges.items()},
        "texts": [{**vars(one), **{name: filled[name][i].middle for name in filled}} for i, one in enumerate(found)],
    }
    return Table(f"The middle sentence of {len(found)} stories", head, rows, NOTES, about)


NOTES = (
    "Perplexity: exp of the judge's nats per token over all stories ± standard error over stories; of the whole "
    "text, and of the middle sentence behind what is before it.",
    "whole − ar: nats per token of the whole text less those of `ar, sampled`, story by story ± standard error: "
    "below 0, the whole is likelier than with the sentence that the autoregressive model drew.",
    "A judge that is the autoregressive model itself favours what that model writes.",
)


def spelled(found: Sequence[Gap], filled: Sequence[Filled]) -> list[tuple[str, str, str]]:
    return [(gap.before, one.middle, gap.after) for gap, one in zip(found, filled, strict=True)]


def first_words(found: Sequence[Gap], filled: Sequence[Filled]) -> tuple[Cell]:
    pairs = [(first_word(gap.middle), first_word(one.middle)) for gap, one in zip(found, filled, strict=True)]
    return (Share(sum(a == b for a, b in pairs), len(pairs)),)


def told(paid: dict[str, list[Verdict]], name: str) -> tuple[Mean, Mean, Mean]:
    """Of one judge: whole, middle, and the whole against the autoregressive model's."""
    ours, theirs = paid[name], paid["ar, left side only, sampled"]
    whole = perplexity(*zip(*[verdict.all for verdict in ours], strict=True))
    middle = perplexity([verdict.nats[1] for verdict in ours], [verdict.tokens[1] for verdict in ours])
    each = [[nats / tokens for nats, tokens in (verdict.all for verdict in some)] for some in (ours, theirs)]
    return whole, middle, against(*each)


def calls(filled: Sequence[Filled]) -> str:
    return f"{sum(one.calls for one in filled) / len(filled):.1f}"
