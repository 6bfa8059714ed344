"""Corpus: one split of a prepared folder, read as a single stream of tokens without loading it."""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from unmask import storage
from unmask.errors import UserError, unknown
from unmask.text.corpus.integrity import check_shards
from unmask.text.corpus.manifest import MANIFEST, read_manifest
from unmask.text.corpus.shards import FORMAT, SHARDS, Shard
from unmask.text.row import Role
from unmask.text.tokens.tokenizer import Tokenizer

Stored = np.ndarray | storage.RemoteArray


@dataclass(frozen=True)
class Corpus:
    """The documents of a split, each followed by the tokenizer's eos, one after another.

    corpus = Corpus.open("data/", "train"); corpus.read(0, 100); corpus.document(7)
    """

    folder: Path
    tokenizer: dict[str, Any]  # as in the manifest: fingerprint, size, mask, pad, bos, eos
    dtype: str
    shards: tuple[Shard, ...]
    start: int = 0  # first token of the shards' stream that belongs to this corpus
    stop: int | None = None  # the token after the last one; None: the end of the stream

    @classmethod
    def open(cls, folder: str | Path, split: str = "train", *, mix: int = 0) -> "Corpus":
        """A split of a prepared folder, or one text of a mixture; its shards are checked (see integrity.py)."""
        folder = Path(folder)
        manifest = _manifest(folder)
        if split not in manifest["splits"]:
            raise unknown(f"split of {folder}", split, manifest["splits"])
        shards = tuple(Shard(**shard) for shard in manifest["shards"] if shard["split"] == split)
        shards = tuple(shard for shard in shards if mix in (0, shard.mix))
        if check_shards(folder, shards, size=manifest["tokenizer"]["size"]):
            _map_shard.cache_clear()  # the maps of files that were replaced
        return cls(folder, manifest["tokenizer"], manifest["dtype"], shards)

    @property
    def tokens(self) -> int:
        """The length of the stream, the eos of each document included."""
        return (self._offsets[-1].item() if self.stop is None else self.stop) - self.start

    @property
    def documents(self) -> int:
        """How many documents end in the split."""
        return self._ended[-1].item()

    def read(self, start: int, stop: int) -> np.ndarray:
        """The tokens from `start` to `stop` of the stream."""
        return self._read(start, stop)

    def _read(self, start: int, stop: int, *, roles: bool = False) -> np.ndarray:
        if not 0 <= start <= stop <= self.tokens:
            raise IndexError(f"tokens {start} to {stop} of {self.tokens}")
        start, stop = start + self.start, stop + self.start
        first = int(np.searchsorted(self._offsets, start, "right")) - 1
        parts = []
        for index in range(first, len(self.shards)):
            begin = self._offsets[index].item()
            if begin >= stop:
                break
            stored = self._roles(index) if roles else self._map(index)[1]
            parts.append(np.asarray(stored[max(start - begin, 0) : stop - begin]))
        none = np.zeros(0, np.int8 if roles else self.dtype)
        return parts[0] if len(parts) == 1 else np.concatenate([none, *parts])

    @cached_property
    def has_roles(self) -> bool:
        """Whether the shards say what each token is for; if not, the layout does."""
        return any(shard.roles for shard in self.shards)

    def roles(self, start: int, stop: int) -> np.ndarray:
        """The roles of the tokens from `start` to `stop` of the stream."""
        return self._read(start, stop, roles=True)

    def document(self, index: int) -> np.ndarray:
        """The tokens of a document, its eos not included."""
        return self.read(*self.span(index))

    def span(self, index: int) -> tuple[int, int]:
        """Where a document begins and ends in the stream, its eos not included."""
        if not 0 <= index < self.documents:
            raise IndexError(f"document {index} of {self.documents}")
        return self._start(index), self._end(index) - (self.tokenizer["eos"] is not None)

    def lengths(self, most: int = 1_000_000) -> np.ndarray:
        """The tokens of each document, its eos not included; of the first `most` documents or a few more."""
        ends: list[np.ndarray] = [np.zeros(1, np.int64)]  # in the stream: a document may span several shards
        for index in range(len(self.shards)):
            ends.append(self._offsets[index] + np.asarray(self._map(index)[0]).astype(np.int64))
            if sum(map(len, ends)) > most:
                break
        return np.diff(np.concatenate(ends)) - (self.tokenizer["eos"] is not None)

    def divide(self, last: int) -> tuple["Corpus", "Corpus"]:
        """The stream without its last `last` tokens, and a corpus of these tokens."""
        if last == 0:
            return self, replace(self, start=self.start + self.tokens, stop=self.start + self.tokens)
        if last > self.tokens:
            raise UserError(f"cannot hold out {last} of the {self.tokens} tokens in {self.folder}: too little text")
        end = self.start + self.tokens
        return replace(self, stop=end - last), replace(self, start=end - last, stop=end)

    def require(self, tokenizer: Tokenizer) -> None:
        """Refuse a tokenizer that is not the one that made the shards."""
        if tokenizer.fingerprint != self.tokenizer["fingerprint"]:
            raise UserError(
                f"the data in {self.folder} was prepared with another tokenizer "
                f"({self.tokenizer['size']} ids, fingerprint {self.tokenizer['fingerprint'][:12]}) than the model's "
                f"({tokenizer.size} ids, {tokenizer.fingerprint[:12]}). Prepare it again with the model's tokenizer."
            )

    @cached_property
    def _offsets(self) -> np.ndarray:
        """Where each shard begins in the stream, and where the last one ends."""
        return np.cumsum([0, *(shard.tokens for shard in self.shards)])

    @cached_property
    def _ended(self) -> np.ndarray:
        """How many documents end before each shard, and in total."""
        return np.cumsum([0, *(shard.documents for shard in self.shards)])

    def _start(self, document: int) -> int:
        return self._end(document - 1) if document else 0

    def _end(self, document: int) -> int:
        index = int(np.searchsorted(self._ended, document, "right")) - 1
        ends, inside = self._map(index)[0], document - int(self._ended[index])
        return int(self._offsets[index]) + int(np.asarray(ends[inside : inside + 1])[0])

    def _roles(self, index: int) -> Stored:
        shard = self.shards[index]
        if not shard.roles:
            return np.full(shard.tokens, Role.FREE, np.int8)
        return storage.bytes_of(self.folder, f"{SHARDS}/{shard.roles_name}").view(np.int8)

    def _map(self, index: int) -> tuple[Stored, Stored]:
        shard = self.shards[index]
        return _map_shard(self.folder, shard.name, shard.documents, self.dtype, shard.sha256)


def verify(folder: str | Path) -> None:
    """Read every shard of a prepared folder and compare its sha256 with the manifest's."""
    manifest = _manifest(Path(folder))
    shards = [Shard(**shard) for shard in manifest["shards"]]
    check_shards(Path(folder), shards, size=manifest["tokenizer"]["size"], again=True)


def splits(folder: str | Path, *, valid: float = 0.01, least: int = 1, mix: int = 0) -> tuple[Corpus, Corpus]:
    """The training and validation parts of a prepared folder.

    If the held-out documents have fewer than `least` tokens (none, if the data is one long document), the end of
    the training stream is held out instead: the share `valid` of it, and at least `least` tokens.
    """
    train = Corpus.open(folder, "train", mix=mix)
    if "valid" in _manifest(Path(folder))["splits"]:
        held_out = Corpus.open(folder, "valid", mix=mix)
        if held_out.tokens >= least:
            return train, held_out
    return train.divide(max(round(train.tokens * valid), least))


@lru_cache(maxsize=4096)  # well below the number of maps that a process may hold
def _map_shard(folder: Path, name: str, documents: int, dtype: str, _: str) -> tuple[Stored, Stored]:
    """A shard's document ends and its tokens, mapped or elsewhere; its sha256 tells it from an earlier one."""
    data = storage.bytes_of(folder, f"{SHARDS}/{name}")
    return data[: 4 * documents].view("<u4"), data[4 * documents :].view(np.dtype(dtype).newbyteorder("<"))


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.exists():
        parts = list(folder.glob("part-*"))
        hint = (
            "its preparation is not finished: run the same `unmask prepare` again, or merge its parts"
            if parts
            else "make one with `unmask prepare`"
        )
        raise UserError(f"{folder} holds no prepared data (no {MANIFEST}); {hint}")
    manifest = read_manifest(path)
    if manifest.get("format") != FORMAT:
        raise UserError(f"{path} has format {manifest.get('format')}, not {FORMAT}. Prepare the data again.")
    return manifest
