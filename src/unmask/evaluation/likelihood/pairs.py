"""Minimal pairs: how often a model prefers the good sentence to the bad one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.text.corpus.passages import Passage, framed
from unmask.text.tokens.alphabets import unscored
from unmask.text.tokens.frame import Frame
from unmask.text.tokens.tokenizer import Tokenizer

FIELDS = ("sentence_good", "sentence_bad")


@dataclass(frozen=True)
class Accuracy:
    """The share of pairs in which the good sentence has fewer nats; a tie counts half."""

    name: str
    pairs: int
    accuracy: float
    standard_error: float  # over pairs


def passages(
    records: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, *, lead: int | None, frame: Frame | None = None
) -> list[Passage]:
    """The sentences of pairs, good and bad in turn; `lead` and `frame` are put around each and not scored."""
    if not records:
        raise UserError("there are no pairs to compare.")
    texts = [record[field] for record in records for field in FIELDS]
    front = [] if lead is None else [lead]
    found = []
    for number, (text, ids) in enumerate(zip(texts, tokenizer.encode_batch(texts), strict=True)):
        if len(ids) + len(front) < 2:
            raise UserError(f"pair {number // 2 + 1}: the sentence {text!r} has too few tokens to be scored.")
        row = Passage(
            np.array([*front, *ids], np.int64),
            len(front),
            len(text.encode()),
            number // 2,
            words=len(text.split()),
            unscored=unscored(tokenizer),
        )
        if row.scored < 1:
            raise UserError(f"pair {number // 2 + 1}: {text!r} has no letter that is scored.")
        found.append(framed(row, frame))
    return found


def accuracy(nats: np.ndarray, *, name: str = "all") -> Accuracy:
    """The accuracy for nats (pairs, 2), the good sentence first."""
    wins = (nats[:, 0] < nats[:, 1]) + 0.5 * (nats[:, 0] == nats[:, 1])
    share = float(wins.mean())
    spread = float(wins.std(ddof=1) / np.sqrt(len(wins))) if len(wins) > 1 else float("inf")
    return Accuracy(name, len(wins), share, spread)


def accuracies(nats: np.ndarray, groups: Iterable[str] | None) -> list[Accuracy]:
    """All pairs, then each group of them, in the order in which the groups appear."""
    found = [accuracy(nats)]
    if groups is not None:
        labels = list(groups)
        for label in dict.fromkeys(labels):
            found.append(accuracy(nats[[other == label for other in labels]], name=label))
    return found
