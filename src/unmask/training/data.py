"""The data of a run: prepared tokens; raw text is tokenized first."""

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from unmask.errors import UserError
from unmask.model import checkpoint
from unmask.model.backbone import Spec
from unmask.text.corpus.batches import Batches, Lanes, in_order
from unmask.text.corpus.corpus import Corpus, splits
from unmask.text.corpus.documents import FileLayout
from unmask.text.corpus.formats import COMPRESSIONS
from unmask.text.corpus.intervals import read_bed
from unmask.text.corpus.manifest import MANIFEST, loss_lines, prepared_folder, read_manifest
from unmask.text.corpus.mixture import Mixture
from unmask.text.corpus.packed import Packed
from unmask.text.corpus.prepare import choose, prepare
from unmask.text.corpus.repeats import repeats
from unmask.text.corpus.shards import Division
from unmask.text.corpus.sources import Source, gather, weighted_places
from unmask.text.layout import Marks, training_layout
from unmask.text.row import Role, Rows
from unmask.text.tokens import bases
from unmask.text.tokens.tokenizer import Tokenizer
from unmask.training.settings import Train
from unmask.training.sizes import packed_for, vocabulary_for

SQUEEZED = 3  # bytes of text per byte of a compressed file
SHORT = 0.1  # share of the rows that --text.lengths random cuts
COUNTED = 1 << 24  # tokens counted at once
A_WORKER = 32 << 20  # bytes of text per worker process


@dataclass(frozen=True)
class Data:
    """Training rows and validation rows."""

    tokenizer: Tokenizer
    batches: Batches | Lanes | Mixture
    held_out: Packed | None
    held_parts: tuple[Packed, ...] = ()  # of each text of a mixture

    @property
    def rows(self) -> int:
        return len(self.batches.packed)

    @property
    def warning(self) -> str:
        """What to say of documents that are in no row; empty: there are none."""
        return self.batches.packed.spans.left_out

    @property
    def prompt(self) -> list[int]:
        """What is given in the first held-out pair, or training pair; empty: the data are no pairs."""
        packed = self.held_out or self.batches.packed
        if not packed.layout.answers:
            return []
        tokens, roles, _ = packed.rows([0])
        before = packed.layout.before
        return tokens[0, before:][roles[0, before:] < Role.FREE].tolist()

    def counts(self) -> Int[Tensor, " v"]:
        """How often each id occurs in the training text."""
        corpus, counts = self.batches.packed.corpus, np.zeros(self.tokenizer.size, np.int64)
        for start in range(0, corpus.tokens, COUNTED):
            counts += np.bincount(corpus.read(start, min(start + COUNTED, corpus.tokens)), minlength=len(counts))
        return torch.from_numpy(counts)

    def valid(self, rows: int) -> Sequence[Rows]:
        """About the first `rows` held-out rows, in batches; in lanes, if the training rows are."""
        if self.held_out is None or not rows:
            return []
        size = min(self.batches.size, rows)
        if isinstance(self.batches, Mixture):
            return self.valid_parts(self.batches.shares * rows)
        if isinstance(self.batches, Lanes):
            whole = (self.held_out.corpus.tokens - 1) // (self.held_out.length - 1)
            lanes = Lanes(self.held_out, min(size, whole))
            return [lanes.at(step) for step in range(min(lanes.rows, -(-rows // lanes.size)))]
        return list(islice(in_order(self.held_out, size), -(-rows // size)))

    def valid_parts(self, rows: np.ndarray) -> Sequence[Rows]:
        """The first held-out rows of each text of a mixture, about so many, at least one."""
        return [
            part.rows(range(first, min(first + self.batches.size, most)))
            for part, wanted in zip(self.held_parts, rows.tolist(), strict=True)
            for most in (min(len(part), max(1, round(wanted))),)
            for first in range(0, most, self.batches.size)
        ]

    def lines(self, steps: int) -> list[str]:
        """What to say of a mixture."""
        return self.batches.lines(steps) if isinstance(self.batches, Mixture) else []


def open_data(asked: Train, folder: str | Path) -> Data:
    length, share = asked.text.length, asked.text.valid
    spec, tokenizer = starting_spec(asked), Tokenizer.load(folder)
    layout = training_layout(packing(asked, folder), Marks.of(tokenizer), framed=spec.framed)
    layout = layout.with_template(asked.text.template, tokenizer)
    least = 0 if not share else 1 if layout.whole else length

    def halves(mix: int = 0) -> tuple[Packed, Packed | None]:
        """The rows to learn from and those held out, of all texts or of one of a mixture."""
        train, held_out = splits(folder, valid=share, least=least, mix=mix)
        if layout.whole and train.stop is not None:  # no document was held out, and a part of one would not do
            train, held_out = Corpus.open(folder, mix=mix), train.divide(0)[1]
        return Packed(train, length, layout), Packed(held_out, length, layout) if held_out.tokens else None

    strands, places = strands_of(tokenizer, asked), weighted_places(asked.data)
    if places:
        return mix_data(asked, tokenizer, places, [halves(mix) for mix in range(1 + len(places))], strands)
    rows, held_out = halves()
    return Data(
        tokenizer,
        lanes_for(spec, rows, asked) if spec.carries else batches_for(rows, asked, strands),
        held_out,
    )


def mix_data(
    asked: Train,
    tokenizer: Tokenizer,
    places: Sequence[tuple[str, float]],
    halves: Sequence[tuple[Packed, Packed | None]],
    strands: np.ndarray | None,
) -> Data:
    """The data of a mixture; the first halves are those of all its texts."""
    if starting_spec(asked).carries:
        raise UserError("a network that carries a memory from row to row reads one text: give --data one place.")
    (rows, held_out), *parts = halves
    batches = tuple(batches_for(part, asked, strands) for part, _ in parts)
    names, weights = zip(*places, strict=True)
    held = tuple(part for _, part in parts if part is not None)
    return Data(
        tokenizer, Mixture(rows, batches, weights, names), held_out if len(held) == len(parts) else None, held
    )


def batches_for(rows: Packed, asked: Train, strands: np.ndarray | None) -> Batches:
    short = SHORT if asked.text.lengths == "random" else 0.0
    return Batches(rows, asked.optim.batch, asked.seed, cut=short, complement=strands)


def strands_of(tokenizer: Tokenizer, asked: Train) -> np.ndarray | None:
    """The complement of each id, if training rows are read from either strand of DNA."""
    if not asked.text.reverse_complement:
        return None
    complement = bases.complement(tokenizer)
    if complement is None:
        raise UserError(
            "text.reverse_complement reads the other strand of DNA, and this vocabulary is not one of DNA: use the "
            "tokenizer dna or caduceus, or leave it out."
        )
    if asked.model.carries:
        raise UserError(
            f"text.reverse_complement turns rows round, and {asked.model.name!r} remembers the row before."
        )
    return complement


def lanes_for(spec: Spec, rows: Packed, asked: Train) -> Lanes:
    """The batches of a network that carries a memory from row to row."""
    if asked.text.lengths != "whole":
        raise UserError("a network that carries a memory from row to row needs whole rows: use --text.lengths whole.")
    lanes = Lanes(rows, asked.optim.batch)
    spec.check_lane(lanes.tokens)
    return lanes


def packing(asked: Train, folder: str | Path) -> str:
    """The packing of a run: `auto` is `rows` for documents that fit into a row, else `stream`."""
    if not asked.text.chooses_pack:
        return asked.text.pack
    framed, regions, pairs = starting_spec(asked).framed, has_regions(folder), has_pairs(folder)
    return packed_for(asked, document_lengths(folder), framed=framed, regions=regions, pairs=pairs).text.pack


def has_pairs(folder: str | Path) -> bool:
    """Whether the documents are answers with what is given."""
    return Corpus.open(folder).has_roles


def has_regions(folder: str | Path) -> bool:
    """Whether the documents are regions of sequences, from a file of intervals."""
    return bool(read_manifest(Path(folder) / MANIFEST)["layout"].get("intervals"))


def starting_spec(asked: Train) -> Spec:
    """The spec of the network that a run starts from: that of --init, or a new one; if it has begun, its own."""
    if not asked.init:
        return asked.model
    begun = Path(asked.out) / "last"
    return checkpoint.spec_in(begun) if begun.exists() else checkpoint.spec_in(asked.init, asked.dialect)


def with_dialect(asked: Train) -> Train:
    """The settings with the dialect of --init: the autoregressive one, where its files may be of several families."""
    if asked.dialect or not asked.init or (Path(asked.out) / "last").exists():
        return asked
    return replace(asked, dialect=checkpoint.assumed_dialect(asked.init))


def within_positions(asked: Train, given: Collection[str]) -> Train:
    """The settings with rows that the network of --init can read; rows that are too long on purpose are refused."""
    limit = starting_spec(asked).limit if asked.init else None
    if limit is None or asked.text.length <= limit:
        return asked
    if "text.length" in given:
        raise UserError(
            f"the network has {limit} positions, and a row has {asked.text.length}: shorten the rows "
            f"(--length {limit})."
        )
    return replace(asked, text=replace(asked.text, length=limit))


def with_chat_template(asked: Train) -> Train:
    """The settings with the text of the chat template: that of --template, of prepared data, or of --init."""
    text, folder = asked.text, prepared_folder(asked.data) if asked.data else None
    chat = text.layout.chat
    if folder is not None:
        stored = read_manifest(folder / MANIFEST)["layout"].get("template", "")
        if chat is not None and chat.text != stored:
            raise UserError(f"{folder} was prepared with another chat template: leave --template out.")
        return replace(asked, text=replace(text, template=stored))
    if chat is None and text.layout.pairs and asked.init:
        chat = checkpoint.template_in(asked.init, asked.dialect)
    return asked if chat is None else replace(asked, text=replace(text, template=chat.text))


def document_lengths(folder: str | Path) -> np.ndarray | None:
    """The tokens of each training document; None: the tokenizer has no marks for a document in a row of its own."""
    train = Corpus.open(folder)
    return None if None in (train.tokenizer["bos"], train.tokenizer["eos"]) else train.lengths()


def data_folder(asked: Train, out: Path, say: Callable[[str], None], *, replace: bool = False) -> Path:
    """The folder of a run's tokens: --data itself if it was prepared, else `out`/data, written if need be.

    `replace`: other data in `out`/data is that of a run that never began.
    """
    if (there := prepared_folder(asked.data)) is not None:
        return there
    folder = out / "data"
    if not (folder / MANIFEST).is_file() or not (out / "settings.toml").is_file():
        write_data(asked, folder, say, replace=replace)
    return folder


def write_data(asked: Train, folder: Path, say: Callable[[str], None], *, replace: bool = False) -> None:
    """Tokenize the text of a run into a folder; with `replace`, in the place of other data."""
    text = asked.text
    layout = text.layout
    with gather(asked.data, layout) as sources:
        if text.intervals:
            check_intervals_train(sources, text.intervals)
        for line in repeats(sources).lines():
            say(f"warning: {line}")
        tokenizer = chosen_tokenizer(asked, sources, layout, say)
        size = sum(source.bytes for source in sources)
        workers = max(1, min(os.cpu_count() or 1, size // A_WORKER))
        division = Division(text.valid)
        steps = prepare(
            sources, tokenizer, folder, layout=layout, division=division, workers=workers, replace=replace
        )
        for done in steps:
            say(f"tokenizing: {done.line}")
    for line in loss_lines(read_manifest(folder / MANIFEST)):
        say(f"warning: {line}")


def check_intervals_train(sources: Sequence[Source], bed: str) -> None:
    """Refuse a file of intervals that has splits and none to train on."""
    if any(source.split in (None, "train") for source in sources):
        return
    seen = Counter(one.split for one in read_bed(Path(bed)))
    raise UserError(
        f"{bed} lists no interval to train on, only {shown_splits(seen)}: give some intervals the split train in the "
        "fourth column, or leave that column out."
    )


def check_trainable(folder: str | Path) -> None:
    """Refuse prepared data without a training split."""
    manifest = read_manifest(Path(folder) / MANIFEST)
    if "train" not in manifest["splits"]:
        seen = {name: totals["documents"] for name, totals in manifest["splits"].items()}
        made = ", ".join(source["name"] for source in manifest["sources"][:3])
        raise UserError(
            f"{folder} has no documents to train on, only {shown_splits(seen)}; it was made from {made}. Give more "
            "text, a smaller --valid, or a split train to some of it."
        )


def shown_splits(counts: Mapping[str | None, int]) -> str:
    """Splits with their sizes, in words."""
    return " and ".join(f"{count:,} of {split}" for split, count in counts.items())


def chosen_tokenizer(
    asked: Train, sources: Sequence[Source], layout: FileLayout, say: Callable[[str], None]
) -> Tokenizer:
    """The tokenizer of a run: the named one, or that of the --init checkpoint, or a new bpe."""
    text, init, name = asked.text, asked.init, asked.text.tokenizer
    if name == "auto" and init:
        tokenizer = checkpoint.tokenizer_in(init, asked.dialect)
        if tokenizer is None:
            raise UserError(f"{init} has no tokenizer: give the one it was trained with as --tokenizer PATH.")
        return tokenizer
    name = "bpe" if name == "auto" else str(checkpoint.in_run(Path(name)))
    if name in ("bpe", "character"):
        say(f"building a {name} vocabulary")
    return choose(name, list(sources), layout=layout, size=text.vocab or vocabulary_for(text_bytes(sources)))


def text_bytes(sources: Sequence[Source]) -> int:
    """About the bytes of text in the sources; 0 if one of them has no size."""
    packed = ("parquet", *COMPRESSIONS)
    sizes = [source.bytes * (SQUEEZED if source.name.lower().endswith(packed) else 1) for source in sources]
    return sum(sizes) if all(sizes) else 0
