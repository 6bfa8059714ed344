"""An assessment of samples: perplexity, variety and copies, always reported together."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.evaluation.quality import perplexity as quality
from unmask.evaluation.quality import variety
from unmask.evaluation.quality.copies import WordIds, copies
from unmask.evaluation.quality.judges import Judge
from unmask.evaluation.quality.mauve import mauve
from unmask.text.corpus.corpus import Corpus
from unmask.text.corpus.documents import FileLayout, document_pieces
from unmask.text.corpus.formats import format_of
from unmask.text.corpus.manifest import MANIFEST, prepared_folder, read_manifest
from unmask.text.corpus.records import records
from unmask.text.corpus.sources import gather
from unmask.text.corpus.tokenized import default_split, of_split, whole_documents
from unmask.text.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class SampleText:
    """A sample: its documents, split at eos if its tokens are known."""

    documents: tuple[str, ...]

    @property
    def joined(self) -> str:
        return "\n".join(self.documents)


def text_of_tokens(tokens: Sequence[int], tokenizer: Tokenizer) -> SampleText:
    """The text of some ids, split at each eos; other special tokens have no text."""
    parts: list[list[int]] = [[]]
    for token in tokens:
        if token == tokenizer.eos:
            parts.append([])
        else:
            parts[-1].append(token)
    return SampleText(tuple(tokenizer.decode(part) for part in parts))


def read_samples(path: Path, *, field: str = "text", tokenizer: Tokenizer | None = None) -> list[SampleText]:
    """The samples of a .jsonl or FASTA file, or the lines of a .smi or .txt file.

    With a tokenizer they are read from their `tokens`, so that documents are split.
    """
    kind = format_of(path.name)[0]
    if kind in ("fasta", "smiles", "text"):
        if tokenizer is not None:
            raise UserError(f"{path} has texts and no tokens: leave out --tokenizer.")
        layout = FileLayout(documents="line" if kind == "text" else "auto")
        texts = whole_documents(document_pieces(path, layout))
        return [SampleText((text,)) for text in texts if text]
    samples = []
    for number, entry in enumerate(records(path, field), 1):
        if tokenizer is None:
            samples.append(SampleText((entry[field],)))
            continue
        tokens = entry.get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
            raise UserError(f"sample {number} of {path} has no list of tokens; leave out --tokenizer.")
        samples.append(text_of_tokens(tokens, tokenizer))
    return samples


def training_texts(where: str, *, split: str = "train") -> Iterator[str]:
    """The documents of a source, or of a folder that `unmask prepare` wrote."""
    if (folder := prepared_folder(where)) is not None:
        corpus, tokenizer = Corpus.open(folder, split), Tokenizer.load(folder)
        for number in range(corpus.documents):
            yield tokenizer.decode(corpus.document(number))
        return
    with gather(where) as sources:
        named = [source for source in sources if source.split == split]
        yield from whole_documents(piece for source in named or sources for piece in source.pieces(FileLayout()))


def held_out_texts(where: str, split: str | None = None) -> tuple[list[str], str | None]:
    """The documents of a split of a source or a prepared folder, by default of held-out text, and its name."""
    if (folder := prepared_folder(where)) is not None:
        split = split or default_split(read_manifest(folder / MANIFEST)["splits"])
        return list(training_texts(where, split=split)), split
    with gather(where) as sources:
        chosen, split = of_split(sources, split, where)
        return list(whole_documents(piece for source in chosen for piece in source.pieces(FileLayout()))), split


def assess(
    samples: Sequence[SampleText],
    judge: Judge | None,
    *,
    definition: str = "pooled",
    training: Sequence[str] = (),
    context: int = 0,
    most: int = 0,
    after: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Perplexity under the judge, variety and copies of samples, with error bars over samples."""
    if len(samples) < 2:
        raise UserError(f"quality needs at least 2 samples, for its error bars; saw {len(samples)}.")
    if not any(sample.joined.strip() for sample in samples):
        raise UserError(f"all {len(samples)} samples are empty.")
    result: dict[str, Any] = {}
    encode: Callable[[str], Any]
    if judge is None:
        encode = WordIds()
        rows = [encode(sample.joined) for sample in samples]
        result["cut"] = 0
    else:
        read = quality.read_by_judge(
            judge, [sample.documents for sample in samples], context=context, most=most, after=after
        )
        perplexities = quality.perplexities(read)
        chosen = quality.perplexity(read, definition)
        result |= {
            "generative_perplexity": chosen.perplexity,
            "standard_error": chosen.standard_error,
            "interval": chosen.interval,
            "definition": chosen.definition,
            "means": chosen.means,
            "definitions": {name: asdict(one) for name, one in perplexities.items()},
            "context": read.context,
            "cut": read.cut,
        }
        encode, rows = judge.encode, list(read.rows)
    various = variety.variety(rows)
    as_long = _as_long(training, rows, encode) if training else None
    real = None if as_long is None else float(np.mean([variety.row_entropy(row) for row in as_long]))
    likeness, why = mauve(judge, rows, as_long)
    result |= {
        "units": "words" if judge is None else "the judge's tokens",
        "samples": len(samples),
        "empty_samples": sum(len(row) < 2 for row in rows),
        "tokens": sum(map(len, rows)),
        **asdict(various),
        "entropy_of_training_text": real,
        "mauve": likeness,
        "mauve_is": why,
        "warning": variety.collapse_warning(various.entropy.value, rows, real),
        "copies": asdict(copies([sample.joined for sample in samples], training)) if training else None,
    }
    return result


def _as_long(
    texts: Iterable[str], rows: Sequence[np.ndarray], encode: Callable[[str], Any]
) -> list[np.ndarray] | None:
    """Real text cut into rows of the same lengths; None if there is too little."""
    stream: list[int] = []
    needed, documents = sum(map(len, rows)), iter(texts)
    while len(stream) < needed:
        text = next(documents, None)
        if text is None:
            return None
        stream += [int(id) for id in encode(text)] if text else []
    ids = np.array(stream, np.int64)
    return [ids[a:b] for a, b in pairwise(np.cumsum([0, *map(len, rows)]))]


def texts_fingerprint(samples: Sequence[SampleText]) -> str:
    """sha256 over the texts."""
    digest = sha256()
    for sample in samples:
        for text in (*sample.documents, ""):
            raw = text.encode("utf-8", "surrogatepass")
            digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()
