"""Stretch: documents one after another, with the bytes and words of each token, to be cut into rows."""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

import numpy as np

from unmask.text.row import Role, Row


class Document(NamedTuple):
    tokens: np.ndarray
    bytes: int  # of its text in UTF-8
    words: int = 0  # of its text, between white space; 0: not counted
    given: int = 0  # its first tokens that are given: what the rest answers, with marks; not part of its sizes

    @classmethod
    def of(cls, text: str, tokens: np.ndarray, given: int = 0) -> "Document":
        """A text with its sizes; `given` tokens stand before it."""
        return cls(tokens, len(text.encode()), len(text.split()), given)


class Stretch(NamedTuple):
    """Tokens, their bytes and words, and where the documents in it end."""

    tokens: np.ndarray  # (n)
    sizes: np.ndarray  # (n, 2): bytes and words of each token
    ends: np.ndarray
    first: int  # the number of its first document

    def after(self, mark: int) -> "Stretch":
        """The same after one more token, which has no bytes."""
        sizes = np.vstack((np.zeros(2), self.sizes))
        return Stretch(np.append(mark, self.tokens), sizes, self.ends + 1, self.first)

    def rows(self, length: int, *, stride: int, context: int = 0) -> Iterator[Row]:
        """Rows that overlap, or do not; the first `context` tokens of the stretch and each overlap are given."""
        before = np.vstack((np.zeros(2), np.cumsum(self.sizes, 0)))
        for start, given, stop in windows(len(self.tokens), length=length, stride=stride, given=context):
            size, words = (before[stop] - before[start + given]).tolist()
            goes_on = context > 0 and start > 0 and given == 1
            row = Row.after(given, self.tokens[start:stop], bytes=size, words=words)
            yield Row(row.tokens, row.roles, size, words, self.document_at(start + given), goes_on)

    def document_at(self, place: int) -> int:
        return self.first + int(np.searchsorted(self.ends, place, "right"))

    def between(self, start: int, stop: int, before: Sequence[int], after: Sequence[int], role: Role) -> Row:
        """Some of its tokens, free, between marks with a role."""
        tokens = np.array([*before, *self.tokens[start:stop], *after], np.int64)
        roles = np.full(len(tokens), Role.FREE, np.int8)
        roles[: len(before)] = role
        roles[len(tokens) - len(after) :] = role
        size, words = self.sizes[start:stop].sum(0).tolist()
        return Row(tokens, roles, size, words, self.document_at(start))


def join_documents(
    documents: Sequence[Document],
    *,
    end: int | None,
    unscored: Sequence[int] = (),
    first: int = 0,
    empty: bool = False,
) -> Stretch:
    """Documents as one stretch, each with an `end` token; an empty one has an end only with `empty`.

    `unscored` ids have no bytes and no words.
    """
    tokens, sizes, lengths = [np.zeros(0, np.int64)], [np.zeros((0, 2))], []
    for document in documents:
        size = len(document.tokens)
        mark = [end] if end is not None and (size or empty) else []
        tokens += [np.asarray(document.tokens, np.int64), np.array(mark, np.int64)]
        each = np.array([document.bytes, document.words]) / max(size, 1)
        sizes += [np.tile(each, (size, 1)), np.zeros((len(mark), 2))]
        lengths.append(size + len(mark))
    stream, weights = np.concatenate(tokens), np.concatenate(sizes)
    weights[np.isin(stream, unscored)] = 0.0
    return Stretch(stream, weights, np.cumsum(lengths), first)


def windows(total: int, *, length: int, stride: int, given: int = 0) -> Iterator[tuple[int, int, int]]:
    """(start, given, stop) of windows over a text: each token that is not given is scored once.

    >>> list(windows(7, length=4, stride=2))
    [(0, 0, 4), (2, 2, 6), (4, 2, 7)]
    """
    start, reached = 0, given
    while reached < total:
        stop = min(start + length, total)
        yield start, reached - start, stop
        start, reached = start + stride, stop


def tokens_fingerprint(rows: Iterable[Document | Row]) -> str:
    """sha256 over the tokens of documents or rows, each with its length."""
    digest = sha256()
    for row in rows:
        digest.update(len(row.tokens).to_bytes(8, "little"))
        digest.update(np.asarray(row.tokens, "<i4").tobytes())
    return digest.hexdigest()
