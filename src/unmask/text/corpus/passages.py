"""Passages for evaluation: the rows of tokens that are scored, cut from documents by one of four packings.

    stream   the documents one after another, an eos after each, cut every l tokens; nothing is dropped
    wrap     cut every l − 2 tokens, each row between bos and eos, incomplete rows dropped: as in the MDLM paper
    rows     one document per row, its eos included; a document longer than l becomes several rows
    windows  the same without marks: for sequences

Training (rows.py) has packings of the same names, but treats the last row differently: it drops an incomplete row of
`stream` and the end of a long document of `rows`. Here both are scored, as shorter passages. Only `wrap`, which
reproduces the paper's numbers, drops incomplete rows here too.

A model that was trained with `rows` has learned the padding after the eos, and is scored on rows like those of its
training (`padded`): a given bos, the document, eos up to the end. The nats of the padding belong to the bound of the
document; its tokens are not counted.

Rows may overlap (`stride`): the tokens that a row shares with the previous one are its context and are not scored.

The rows of an encoder (`framed`) stand between bos and eos, which are given, like the eos between two documents.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import NamedTuple

import numpy as np

from unmask.errors import UserError, unknown
from unmask.text.tokens.frame import SIZE, Frame

WAYS = ("stream", "wrap", "rows", "windows")  # rows.py has the packings of training
GROUP = 1000  # documents that the reference wraps together; the incomplete last row of a group is dropped


class Document(NamedTuple):
    tokens: np.ndarray
    bytes: int  # of its text in UTF-8
    words: int = 0  # of its text, between white space; 0: not counted

    @classmethod
    def of(cls, text: str, tokens: np.ndarray) -> "Document":
        """A text with its sizes."""
        return cls(tokens, len(text.encode()), len(text.split()))


class Passage(NamedTuple):
    tokens: np.ndarray
    given: int  # how many tokens at the start are context and not scored
    bytes: float  # of the scored text; the bytes of a document are divided evenly among its tokens
    document: int  # the document in which it begins
    padding: int = 0  # how many tokens at the end are padding: predicted, but not counted
    frame: Frame | None = None  # special tokens that are given wherever they stand
    words: float = 0.0  # of the scored text, divided among the tokens as its bytes are; 0: not counted
    continues: bool = False  # its first token is the last of the passage before
    unscored: tuple[int, ...] = ()  # other tokens that are given wherever they stand

    @property
    def frozen(self) -> np.ndarray:
        """Which tokens are given: the context, the frame, and letters that stand for no base."""
        given = np.arange(len(self.tokens)) < self.given
        if self.frame is not None:
            given |= self.frame.marks(self.tokens)
        return given | np.isin(self.tokens, self.unscored) if self.unscored else given

    @property
    def scored(self) -> int:
        return len(self.tokens) - int(self.frozen.sum()) - self.padding


@dataclass(frozen=True)
class Cut:
    """How documents become passages."""

    way: str = "stream"  # stream, wrap, rows, windows
    length: int = 128  # most tokens in a passage
    stride: int | None = None  # tokens from one passage to the next; None: no overlap
    separate: bool = True  # an eos after each document
    bos: int | None = None
    eos: int | None = None
    causal: bool = False  # whether the network needs a token before the first one it predicts
    padded: bool = False  # with `rows`: a bos before the document, and eos up to the end of the row
    frame: Frame | None = None  # of an encoder: around each row, and given
    unscored: tuple[int, ...] = ()  # ids that are given wherever they stand

    def __post_init__(self) -> None:
        if self.way not in WAYS:
            raise unknown("packing", self.way, WAYS)
        if self.padded and (self.way != "rows" or self.causal or None in (self.bos, self.eos)):
            raise ValueError("only rows between bos and eos, for a network that sees both sides, are padded")
        if self.padded and self.stride is not None:
            raise UserError("this model was trained on rows of one document each, which have no stride.")
        least = 4 if self.frame is not None else 3 if self.way == "wrap" else 2
        if self.length < least:
            raise UserError(f"rows must be at least {least} tokens long, not {self.length}.")
        if self.stride is not None and not 1 <= self.stride <= self.length - self.causal:
            most = self.length - self.causal
            raise UserError(
                f"the stride must lie between 1 and {most}, so that no token is skipped; saw {self.stride}."
            )
        if self.way == "wrap" and (self.bos is None or self.eos is None):
            raise UserError(
                "'wrap' puts rows between bos and eos, but the tokenizer lacks one of them; use 'stream'."
            )
        if self.way == "wrap" and self.stride is not None:
            raise UserError("'wrap' has no stride: its rows are cut side by side. Use 'stream' or 'rows'.")

    @property
    def lead(self) -> int | None:
        """The token that a causal network sees before the first one."""
        return None if not self.causal else self.eos if self.bos is None else self.bos


def cut(documents: Sequence[Document], how: Cut) -> tuple[list[Passage], int]:
    """The passages, and the number of tokens that are in none of them or given."""
    if how.way == "windows":
        how = replace(how, way="rows", separate=False, bos=None, eos=None)
    rows = _cut(documents, how)
    if how.unscored:
        rows = (row._replace(unscored=how.unscored) for row in rows)
    passages = [passage for passage in rows if passage.scored > 0]
    total = sum(len(document.tokens) for document in documents)
    marks = sum(len(_mark(document, how)) for document in documents)
    if not passages:
        raise UserError(
            f"the data has {total} tokens in {len(documents)} documents: not one row of {how.length} to score "
            f"({how.way}). Give more text, a shorter --length, or another packing (--pack stream)."
        )
    if how.frame is not None:
        return passages, total - sum(p.scored for p in passages)
    frame = 1 if how.causal else 2  # bos is not scored by a causal network
    scored = sum(p.scored - (frame if how.way == "wrap" else 0) for p in passages)
    return passages, total + marks - scored


def _cut(documents: Sequence[Document], how: Cut) -> Iterator[Passage]:
    cutter = {"stream": _stream, "wrap": _wrap, "rows": _rows}[how.way]
    if how.frame is None:
        return cutter(documents, how)
    if how.way == "wrap":  # its rows have bos and eos already
        return (row._replace(frame=how.frame) for row in cutter(documents, how))
    inner = replace(how, length=how.length - SIZE, separate=how.separate and how.way == "stream", frame=None)
    return (framed(row, how.frame) for row in cutter(documents, inner))


def framed(row: Passage, frame: Frame | None) -> Passage:
    """A passage between the tokens of a frame, which are given; unchanged, if there is no frame."""
    if frame is None:
        return row
    tokens = np.array(frame.around(row.tokens.tolist()), np.int64)
    return row._replace(tokens=tokens, given=row.given + 1, frame=frame)


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


def _stream(documents: Sequence[Document], how: Cut) -> Iterator[Passage]:
    yield from _windows(*_joined(documents, how), how, first=0)


def _rows(documents: Sequence[Document], how: Cut) -> Iterator[Passage]:
    for number, document in enumerate(documents):
        if len(document.tokens):
            yield from (_padded if how.padded else _windows)(*_joined([document], how), how, first=number)


def _padded(tokens: np.ndarray, weights: np.ndarray, ends: np.ndarray, how: Cut, first: int) -> Iterator[Passage]:
    """A document in rows like those of training; one that does not fit goes on in the next row."""
    inner = how.length - 1
    for start in range(0, len(tokens), inner):
        content = tokens[start : start + inner]
        padding = inner - len(content) if how.separate else 0
        row = np.array([how.bos, *content, *[how.eos] * padding], np.int64)
        size, words = weights[start : start + inner].sum(0).tolist()
        yield Passage(row, 1, size, first, padding, words=words)


def _windows(tokens: np.ndarray, weights: np.ndarray, ends: np.ndarray, how: Cut, first: int) -> Iterator[Passage]:
    given = 0
    if how.causal:
        given = 1
        if how.lead is not None:
            tokens, weights, ends = np.append(how.lead, tokens), np.vstack((np.zeros(2), weights)), ends + 1
    upto = _summed(weights)
    stride = how.length - how.causal if how.stride is None else how.stride
    for start, context, stop in windows(len(tokens), length=how.length, stride=stride, given=given):
        begins = first + int(np.searchsorted(ends, start + context, "right"))
        size, words = (upto[stop] - upto[start + context]).tolist()
        goes_on = how.causal and start > 0 and context == 1
        yield Passage(tokens[start:stop], context, size, begins, words=words, continues=goes_on)


def _summed(weights: np.ndarray) -> np.ndarray:
    """The bytes and words before each token, and in all."""
    return np.vstack((np.zeros(2), np.cumsum(weights, 0)))


def _wrap(documents: Sequence[Document], how: Cut) -> Iterator[Passage]:
    inner = how.length - 2
    for first in range(0, len(documents), GROUP):
        tokens, weights, ends = _joined(documents[first : first + GROUP], how)
        upto = _summed(weights)
        for start in range(0, len(tokens) - inner + 1, inner):
            row = np.array([how.bos, *tokens[start : start + inner], how.eos], np.int64)
            begins = first + int(np.searchsorted(ends, start, "right"))
            size, words = (upto[start + inner] - upto[start]).tolist()
            yield Passage(row, int(how.causal), size, begins, words=words)


def _joined(documents: Sequence[Document], how: Cut) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Documents in one stream: the tokens, the bytes and words of each (n, 2), and where the documents end."""
    tokens, weights = [np.zeros(0, np.int64)], [np.zeros((0, 2))]
    for document in documents:
        size, mark = len(document.tokens), _mark(document, how)
        tokens += [np.asarray(document.tokens, np.int64), np.array(mark, np.int64)]
        each = np.array([document.bytes, document.words]) / max(size, 1)
        weights += [np.tile(each, (size, 1)), np.zeros((len(mark), 2))]
    ends = np.cumsum([len(document.tokens) + len(_mark(document, how)) for document in documents])
    stream, weight = np.concatenate(tokens), np.concatenate(weights)
    if how.unscored:
        weight[np.isin(stream, how.unscored)] = 0.0
    return stream, weight, ends


def _mark(document: Document, how: Cut) -> list[int]:
    """The eos after a document; after an empty one only with `wrap`, as in the paper."""
    if how.eos is None or not how.separate or not (how.way == "wrap" or len(document.tokens)):
        return []
    return [how.eos]


def tokens_fingerprint(rows: Iterable[Document | Passage]) -> str:
    """sha256 over the tokens of documents or passages, each with its length."""
    digest = sha256()
    for row in rows:
        digest.update(len(row.tokens).to_bytes(8, "little"))
        digest.update(np.asarray(row.tokens, "<i4").tobytes())
    return digest.hexdigest()


def given_and_answer(
    given: np.ndarray,
    answer: Document,
    *,
    number: int,
    lead: int | None,
    frame: Frame | None = None,
    unscored: tuple[int, ...] = (),
) -> Passage:
    """An answer to a prompt: only the answer is scored."""
    front = [*([] if lead is None else [lead]), *given]
    row = np.array([*front, *answer.tokens], np.int64)
    passage = Passage(row, len(front), float(answer.bytes), number, words=float(answer.words), unscored=unscored)
    return framed(passage, frame)
