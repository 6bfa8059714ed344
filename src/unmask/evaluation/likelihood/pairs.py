"""Minimal pairs: how often a model prefers the good sentence to the bad one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.model.model import Model
from unmask.text.row import Row
from unmask.text.stretch import Document

FIELDS = ("sentence_good", "sentence_bad")


@dataclass(frozen=True)
class Accuracy:
    """The share of pairs in which the good sentence has fewer nats; a tie counts half."""

    name: str
    pairs: int
    accuracy: float
    standard_error: float  # over pairs


def sentence_rows(records: Sequence[Mapping[str, Any]], model: Model) -> list[Row]:
    """The sentences of pairs, good and bad in turn, each between the marks that stand around a text."""
    if not records:
        raise UserError("there are no pairs to compare.")
    texts = [record[field] for record in records for field in FIELDS]
    rows = []
    for number, (text, ids) in enumerate(zip(texts, model.text_tokenizer().encode_batch(texts), strict=True)):
        row = model.layout.exchange((), Document.of(text, ids), length=model.spec.length, number=number // 2)
        if len(row.tokens) < 2:
            raise UserError(f"pair {number // 2 + 1}: the sentence {text!r} has too few tokens to be scored.")
        if row.scored < 1:
            raise UserError(f"pair {number // 2 + 1}: {text!r} has no letter that is scored.")
        rows.append(row)
    return rows


def pair_accuracy(nats: np.ndarray, *, name: str = "all") -> Accuracy:
    """The accuracy for nats (pairs, 2), the good sentence first."""
    wins = (nats[:, 0] < nats[:, 1]) + 0.5 * (nats[:, 0] == nats[:, 1])
    share = float(wins.mean())
    spread = float(wins.std(ddof=1) / np.sqrt(len(wins))) if len(wins) > 1 else float("inf")
    return Accuracy(name, len(wins), share, spread)


def accuracies(nats: np.ndarray, groups: Iterable[str] | None) -> list[Accuracy]:
    """All pairs, then each group of them, in the order in which the groups appear."""
    shares = [pair_accuracy(nats)]
    if groups is not None:
        labels = list(groups)
        for label in dict.fromkeys(labels):
            shares.append(pair_accuracy(nats[[other == label for other in labels]], name=label))
    return shares
