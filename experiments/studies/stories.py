"""Stories: texts cut into sentences, what judges think of parts of them, and models that write."""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from unmask.errors import UserError
from unmask.evaluation.quality.judges import Judge, judge, judged_nats
from unmask.model.checkpoint import load
from unmask.model.model import Model
from unmask.text.tokens.tokenizer import Tokenizer

SEPARATOR = "<|endoftext|>"
# A sentence ends at . ! or ?, quotation marks and brackets behind it included, where a space or the end follows.
END = re.compile(r"[.!?]+[\"'”’)]*(?=\s|$)")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def sentences(text: str) -> list[str]:
    """The sentences of a text, each with the space before it: joined, they are the text again.

    >>> sentences('Tom ran. "Stop!" said Mum.')
    ['Tom ran.', ' "Stop!"', ' said Mum.']
    """
    ends = [match.end() for match in END.finditer(text)]
    cuts = [0, *[end for end in ends if end < len(text.rstrip())], len(text)]
    return [text[a:b] for a, b in pairwise(cuts) if text[a:b]]


def read_stories(path: str | Path) -> list[str]:
    """The stories of a text file, an end-of-text mark between them."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no file of stories at {str(path)!r}: give one with --texts.")
    found = [story.strip() for story in path.read_text(encoding="utf-8").split(SEPARATOR)]
    if not any(found):
        raise UserError(f"{path} holds no stories.")
    return [story for story in found if story]


@dataclass(frozen=True)
class Gap:
    """The beginning of a story with a sentence in its middle to be guessed."""

    before: str
    middle: str
    after: str

    @property
    def parts(self) -> tuple[str, str, str]:
        return self.before, self.middle, self.after


def gap(story: str, tokenizer: Tokenizer, *, length: int, longest: int) -> Gap | None:
    """The most sentences, an odd number, that fit into `length` tokens with one before; the middle one is the gap.

    None where fewer than three fit, or where the middle one has more than `longest` tokens.
    """
    parts = sentences(story)
    for count in range(len(parts) - (len(parts) + 1) % 2, 2, -2):
        half = count // 2
        found = Gap("".join(parts[:half]), parts[half], "".join(parts[half + 1 : count]))
        if sum(len(tokenizer.encode(part)) for part in found.parts) < length:
            return found if len(tokenizer.encode(found.middle)) <= longest else None
    return None


def first_word(text: str) -> str:
    found = re.search(r"[\w'’-]*\w", text)
    return found[0] if found else ""


@dataclass(frozen=True)
class Verdict:
    """What a judge paid for each part of a text."""

    nats: tuple[float, ...]
    tokens: tuple[int, ...]

    @property
    def all(self) -> tuple[float, int]:
        return sum(self.nats), sum(self.tokens)


def verdicts(judge: Judge, texts: Sequence[Sequence[str]]) -> list[Verdict]:
    """What a judge pays for texts given in parts. Each is read behind an eos, so that its first token counts too."""
    spelled = [[judge.encode(part) if part else [] for part in text] for text in texts]
    start = [] if judge.eos is None else [judge.eos]
    rows = [np.array([*start, *[id for part in parts for id in part]], np.int64) for parts in spelled]
    paid = judged_nats(judge, rows)
    return [_verdict(nats, [len(start), *map(len, parts)]) for nats, parts in zip(paid, spelled, strict=True)]


def _verdict(nats: np.ndarray, sizes: list[int]) -> Verdict:
    ends = np.cumsum(sizes)
    spans = [slice(a, b) for a, b in pairwise(ends)]
    # Without an eos nothing stands before the first token, which then is not scored.
    counted = [np.arange(len(nats))[span] > 0 for span in spans]
    return Verdict(
        tuple(float(nats[span][kept].sum()) for span, kept in zip(spans, counted, strict=True)),
        tuple(int(kept.sum()) for kept in counted),
    )


def judges(places: Sequence[str]) -> Iterator[tuple[str, Judge]]:
    """Judges under short names."""
    if not places:
        raise UserError("a judge is needed: give --judge, an autoregressive run, a .gguf file or a hub name.")
    for place in places:
        yield re.sub(r"\.[^.]*gguf$", "", Path(place).name), judge(place)


def writer(place: str, flag: str, *objectives: str) -> Model:
    """A model that writes stories; the wrong kind is refused."""
    wanted = " or ".join(objectives)
    if not place:
        raise UserError(f"this study needs a trained {wanted} model: give --{flag} RUN.")
    model = load(place)
    if model.objective.name not in objectives:
        raise UserError(f"--{flag} wants a model trained with {wanted}, and {place} was with {model.objective.name}.")
    return model


def same_tokens(a: Model, b: Model) -> None:
    if a.text_tokenizer().fingerprint != b.text_tokenizer().fingerprint:
        raise UserError("the two models read other tokens: train both with one tokenizer, or lengths mean nothing.")
