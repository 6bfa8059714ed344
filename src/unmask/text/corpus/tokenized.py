"""Read text for evaluation: any source, or a prepared folder, as documents of tokens."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from unmask.errors import UserError, unknown
from unmask.text.corpus.corpus import Corpus
from unmask.text.corpus.documents import FileLayout, Piece
from unmask.text.corpus.manifest import MANIFEST, losses, prepared_folder, read_manifest
from unmask.text.corpus.sources import Source, gather
from unmask.text.row import is_predicted
from unmask.text.stretch import Document, tokens_fingerprint
from unmask.text.tokens.tokenizer import NoToken, Tokenizer

TOGETHER = 256  # documents tokenized at once


@dataclass(frozen=True)
class TokenizedText:
    """Documents, their origin and their fingerprint."""

    name: str
    documents: list[Document]
    sha256: str  # of the tokens: equal for equal text and tokenizer
    split: str | None = None
    bytes_are: str = "of the text"  # and words; or of the decoded tokens, if the text itself is not stored
    replaced: Mapping[str, int] = field(default_factory=dict)  # letters that became another token, such as "R as N"


def read_documents(
    where: str | Path,
    tokenizer: Tokenizer,
    *,
    layout: FileLayout | None = None,
    split: str | None = None,
    detokenize: Callable[[str], str] = str,
    limit: int | None = None,
) -> TokenizedText:
    """The documents of a source (see sources.py), or of a folder that `unmask prepare` wrote.

    In prepared folders, and if file names contain splits, the default of `split` is valid, else test, else train.
    """
    if (folder := prepared_folder(where)) is not None:
        return replace(_prepare_text(folder, tokenizer, split, limit), name=str(where))
    with gather(where, layout) as sources:
        sources, chosen = of_split(sources, split, str(where))
        pieces = (piece for source in sources for piece in source.pieces(layout or FileLayout()))
        return tokenize(str(where), map(detokenize, whole_documents(pieces)), tokenizer, split=chosen, limit=limit)


def tokenize(
    name: str, texts: Iterable[str], tokenizer: Tokenizer, *, split: str | None = None, limit: int | None = None
) -> TokenizedText:
    """Texts as documents of tokens, at most `limit` of them."""
    documents: list[Document] = []
    replaced = Counter[str]()
    for some in _batches(texts, limit):
        try:
            encoded = tokenizer.encode_batch(some)
            replaced.update(tokenizer.replaced(some))
        except NoToken as error:
            first = len(documents) + 1
            raise error.locate((f"{name}, document {i}", text) for i, text in enumerate(some, first)) from None
        for text, ids in zip(some, encoded, strict=True):
            documents.append(Document.of(text, np.array(ids, np.int32)))
    return TokenizedText(name, documents, tokens_fingerprint(documents), split, replaced=dict(replaced))


def whole_documents(pieces: Iterable[Piece]) -> Iterator[str]:
    """The documents that the pieces make up."""
    held: list[str] = []
    for piece in pieces:
        held.append(piece.text)
        if piece.last:
            yield "".join(held)
            held = []


def _batches(texts: Iterable[str], limit: int | None) -> Iterator[list[str]]:
    held: list[str] = []
    for number, text in enumerate(texts):
        if limit is not None and number >= limit:
            break
        held.append(text)
        if len(held) == TOGETHER:
            yield held
            held = []
    if held:
        yield held


def of_split(sources: list[Source], split: str | None, where: str) -> tuple[list[Source], str | None]:
    """The sources of a split, by default of held-out text, and its name; None: file names contain no splits."""
    known = sorted({source.split for source in sources if source.split is not None})
    if not known:
        if split is not None:
            raise UserError(f"the file names at {where} contain no splits; leave out --split.")
        return sources, None
    split = split or default_split(known)
    if split not in known:
        raise unknown(f"split of {where}", split, known)
    return [source for source in sources if source.split == split], split


def default_split(known: Iterable[str]) -> str:
    """The default split: held-out text, if there is any."""
    return next((name for name in ("valid", "test") if name in known), "train")


def _prepare_text(folder: Path, tokenizer: Tokenizer, split: str | None, limit: int | None) -> TokenizedText:
    split = split or default_split(read_manifest(folder / MANIFEST)["splits"])
    corpus = Corpus.open(folder, split)
    corpus.require(tokenizer)
    count = corpus.documents if limit is None else min(limit, corpus.documents)
    documents = [prepared_document(corpus, number, tokenizer) for number in range(count)]
    replaced = losses(corpus.shards)["replaced"]
    sha256, decoded = tokens_fingerprint(documents), "of the tokens, decoded"
    return TokenizedText(str(folder), documents, sha256, split, decoded, replaced)


def prepared_document(corpus: Corpus, number: int, tokenizer: Tokenizer) -> Document:
    """A document of prepared data; of a pair only the answer is decoded."""
    ids, given = corpus.document(number), 0
    if corpus.has_roles:
        given = int((~is_predicted(corpus.roles(*corpus.span(number)))).sum())
    return Document.of(tokenizer.decode(ids[given:]), ids, given)
