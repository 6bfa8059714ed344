"""Token shards: documents as ids on disk, written once, then memory-mapped.

    folder/
      tokenizer.json, tokenizer_config.json
      shards/train-00000-00000.bin    the ends of D documents (uint32), then T tokens (uint16 or uint32)
      shards/train-00000-00000.roles  what each of the T tokens is for (int8, text/row.py); absent: the layout says
      part-1-of-1.json                the description of the job, while it runs
      manifest.json                   written last: its presence means that the data is complete

The division into groups of text depends on the sources alone, and a worker does one group at a time, so the files
do not depend on the number of workers. A file gets its name only when it is complete.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b, sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np

from unmask.errors import UserError
from unmask.files import write_whole
from unmask.text.corpus.chat_template import ChatTemplate
from unmask.text.corpus.documents import FileLayout
from unmask.text.corpus.sources import Source
from unmask.text.corpus.turns import Turn
from unmask.text.row import Role
from unmask.text.tokens.tokenizer import Tokenizer

FORMAT = 1  # version of the files; readers refuse any other
SHARDS = "shards"
BUNDLE = 8 << 20  # bytes on disk: smaller files are bundled up to this size


@dataclass(frozen=True)
class Division:
    """Which documents are held out, and how much text is in a shard."""

    valid: float = 0.01  # share of documents held out for validation, if file names do not name splits
    seed: int = 0  # random seed that chooses the held-out documents
    characters: int = 0  # characters of text per shard; 0: chosen by the size of the sources

    def __post_init__(self) -> None:
        if not 0 <= self.valid < 1:
            raise UserError(f"the share of documents held out must be in [0, 1), not {self.valid}")
        if not 0 <= self.characters <= 1 << 28:
            raise UserError(f"a shard holds between 1 and {1 << 28} characters of text, not {self.characters}")

    def sized(self, sources: Sequence[Source]) -> "Division":
        """The same with a shard size: enough shards for many workers, each of 1M to 16M characters."""
        total = sum(source.bytes for source in sources)
        chosen = min(max(total // 128, 1 << 20), 16 << 20) if total else 16 << 20
        return replace(self, characters=self.characters or chosen)

    def split(self, text: str) -> str:
        """The split of a document, by a hash of its (first) piece: equal documents are in the same split."""
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, key=str(self.seed).encode())
        return "valid" if int.from_bytes(digest.digest()) < self.valid * 2**64 else "train"


class TextGroup(NamedTuple):
    """Text for one worker: pieces of documents, in order."""

    name: str  # "00000-00000": bundle and group
    texts: list[str]
    lasts: list[bool]  # whether a document ends with the piece
    splits: list[str]  # "train", "valid", "test"
    goes_on: bool  # whether the first piece continues a document of the previous group
    at: int  # bytes of the sources read so far
    speakers: list[str]  # who says a given text, which is not learned; empty: a piece is learned
    mix: int = 0  # the text of a mixture
    chat: ChatTemplate | None = None  # how the texts of a conversation are written; None: an eos ends each of them


class Shard(NamedTuple):
    """The entry of one file in a manifest."""

    name: str
    split: str
    documents: int  # number of documents that end in it
    tokens: int
    sha256: str
    replaced: Mapping[str, int] = {}  # letters that became another token, such as "R as N"
    empty: int = 0  # documents without a token, which are left out
    roles: str = ""  # sha256 of the file of roles; empty: there is none
    mix: int = 0  # the text of a mixture that it belongs to, from 1; 0: there is no mixture

    @property
    def roles_name(self) -> str:
        return f"{self.name.removesuffix('.bin')}.roles"

    def files(self, size: int) -> Iterator[tuple[str, int, str]]:
        """Its files for a vocabulary of `size` ids: name, bytes and sha256."""
        yield self.name, 4 * self.documents + token_type(size).itemsize * self.tokens, self.sha256
        if self.roles:
            yield self.roles_name, self.tokens, self.roles


def token_type(size: int) -> np.dtype:
    """The smallest type that holds every id."""
    return np.dtype("<u2") if size <= 1 << 16 else np.dtype("<u4")


def bundles(sources: Sequence[Source]) -> list[list[Source]]:
    """Sources that are cut into shards together: neighbours, small, of one split and one text of a mixture."""
    bundled: list[list[Source]] = []
    for source in sources:
        room = bundled and sum(other.bytes for other in bundled[-1]) + source.bytes <= BUNDLE
        alike = bundled and (bundled[-1][0].split, bundled[-1][0].mix) == (source.split, source.mix)
        if room and alike and source.path is not None:
            bundled[-1].append(source)
        else:
            bundled.append([source])
    return bundled


def text_groups(
    sources: Sequence[Source], layout: FileLayout, division: Division, *, part: tuple[int, int]
) -> Iterator[TextGroup]:
    """The groups of one part of the work, in order; part (1, 1) is all of it."""
    mine, parts = part[0] - 1, part[1]
    whole = _by_bundle(sources, parts)
    before = 0
    for number, bundle in enumerate(bundles(sources)):
        if whole and number % parts != mine:
            continue
        for index, group in enumerate(cut_groups(bundle, layout, division)):
            if whole or index % parts == mine:
                yield group._replace(name=f"{number:06d}-{index:06d}", at=before + group.at, mix=bundle[0].mix)
        before += sum(source.bytes for source in bundle)


def sources_of(sources: Sequence[Source], *, part: tuple[int, int]) -> list[Source]:
    """The sources that a part reads."""
    cut = bundles(sources)
    if _by_bundle(sources, part[1]):
        cut = cut[part[0] - 1 :: part[1]]
    return [source for bundle in cut for source in bundle]


def _by_bundle(sources: Sequence[Source], parts: int) -> bool:
    """With many bundles a part reads some of them; with few, it reads all and takes every n-th group."""
    return len(bundles(sources)) >= 4 * parts


def cut_groups(bundle: list[Source], layout: FileLayout, division: Division) -> Iterator[TextGroup]:
    group = TextGroup("", [], [], [], False, 0, [], chat=layout.chat)
    size = before = 0
    side: str | None = None  # split of the current document, once it has begun
    for source in bundle:
        for text, last, at, speaker in source.pieces(layout):
            side = side or source.split or division.split(text)
            group.texts.append(text)
            group.lasts.append(last)
            group.splits.append(side)
            group.speakers.append(speaker)
            side = None if last else side
            size += len(text)
            if size >= division.characters and (last or not layout.pairs):  # an answer stays with what is given
                yield group._replace(at=before + at)
                group, size = TextGroup("", [], [], [], not last, 0, [], chat=layout.chat), 0
        before += source.bytes
    if group.texts:
        yield group._replace(at=before)


def write_group(group: TextGroup, tokenizer: Tokenizer, folder: Path) -> list[Shard]:
    """Tokenize a group and write its shards, one per split; documents without a token are left out."""
    dtype = token_type(tokenizer.size)
    written = []
    for split in sorted(set(group.splits)):
        mine = [i for i, side in enumerate(group.splits) if side == split]
        goes_on = group.goes_on and mine[0] == 0
        if group.chat is None:
            tokens, ends, empty, roles = _tokens(group, mine, tokenizer, dtype, goes_on=goes_on)
        else:
            tokens, ends, empty, roles = _conversations(group, mine, tokenizer, group.chat, dtype)
        if len(ends) or len(tokens):
            replaced = tokenizer.replaced(group.texts[i] for i in mine)
            stored = roles if any(group.speakers) else None
            shard = write_shard(folder, f"{split}-{group.name}.bin", split, ends, tokens, stored)
            written.append(shard._replace(replaced=replaced, empty=empty, mix=group.mix))
    write_whole(folder / SHARDS / f"{group.name}.json", json.dumps(written))
    return written


def write_shard(
    folder: Path, name: str, split: str, ends: np.ndarray, tokens: np.ndarray, roles: np.ndarray | None = None
) -> Shard:
    """Write the tokens of documents, and their roles if they do not follow from the layout."""
    data = ends.astype("<u4").tobytes() + tokens.tobytes()
    write_whole(folder / SHARDS / name, data)
    shard = Shard(name, split, len(ends), len(tokens), sha256(data).hexdigest())
    if roles is None:
        return shard
    assert len(roles) == len(tokens)
    write_whole(folder / SHARDS / shard.roles_name, roles.astype(np.int8).tobytes())
    return shard._replace(roles=sha256(roles.astype(np.int8).tobytes()).hexdigest())


def _tokens(
    group: TextGroup, mine: list[int], tokenizer: Tokenizer, dtype: np.dtype, *, goes_on: bool
) -> tuple[np.ndarray, np.ndarray, int, np.ndarray]:
    """The tokens of some pieces, an eos after each document and each given text; where documents end, how many have
    no token, and what each token is for."""
    eos = np.array([] if tokenizer.eos is None else [tokenizer.eos], dtype)
    parts, roles = [np.zeros(0, dtype)], [np.zeros(0, np.int8)]
    ends: list[int] = []
    total = empty = 0
    begun = goes_on  # whether the current document has a token
    for start in range(0, len(mine), 256):  # in batches, because the library's results are large
        some = mine[start : start + 256]
        for i, ids in zip(some, tokenizer.encode_batch([group.texts[i] for i in some]), strict=True):
            given = bool(group.speakers[i])
            begun = begun or len(ids) > 0
            empty += group.lasts[i] and not begun
            ended = eos if begun and (given or group.lasts[i]) else eos[:0]
            parts += [ids.astype(dtype), ended]
            roles.append(np.full(len(ids), Role.GIVEN if given else Role.FREE, np.int8))
            roles.append(np.full(len(ended), Role.MARK if given else Role.FREE, np.int8))
            total += len(ids) + len(ended)
            if begun and group.lasts[i]:
                ends.append(total)
                begun = False
    return np.concatenate(parts), np.array(ends, "<u4"), empty, np.concatenate(roles)


def _conversations(
    group: TextGroup, mine: list[int], tokenizer: Tokenizer, chat: ChatTemplate, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray, int, np.ndarray]:
    """The same of answers, each after what a template writes before it, and with the end that it has there."""
    end = chat.end(tokenizer)
    parts, roles, turns = [np.zeros(0, dtype)], [np.zeros(0, np.int8)], list[Turn]()
    ends: list[int] = []
    for i in mine:
        if group.speakers[i]:
            turns.append(Turn(group.speakers[i], group.texts[i]))
            continue
        given, answer = chat.prompt(tokenizer, turns), [*tokenizer.encode(group.texts[i]), end]
        turns = []
        parts.append(np.array([*given, *answer], dtype))
        roles.append(np.repeat(np.array([Role.GIVEN, Role.FREE], np.int8), [len(given), len(answer)]))
        ends.append(len(parts[-1]) + (ends[-1] if ends else 0))
    return np.concatenate(parts), np.array(ends, "<u4"), 0, np.concatenate(roles)
