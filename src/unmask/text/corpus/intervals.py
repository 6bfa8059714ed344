"""Intervals: regions of the sequences in FASTA files, listed in a BED file, each a document in its own split.

    chr20   8000000   9000000   valid         0-based, the end not included; with a sixth column "-" the other strand

Regions end where the file says, so no base is in two splits, and rows (`--pack windows`) are cut within them. The
loader of Caduceus stretches each region instead, to 2^20 bases from its start, which reaches into regions of other
splits: `stretch` does the same, window by window, and says so.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from unmask.errors import UserError, unknown
from unmask.text.corpus.decompress import lines
from unmask.text.corpus.documents import FileLayout, Piece, cut_up, named_pieces
from unmask.text.tokens.bases import reverse_complement

SPLITS = {
    "train": "train",
    "training": "train",
    "valid": "valid",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
    "test": "test",
}
log = logging.getLogger("unmask.data")  # without a handler of yours, it writes to standard error


class Interval(NamedTuple):
    name: str  # of the sequence
    start: int
    end: int
    split: str | None  # train, valid, test; None: the file has no column of splits
    reverse: bool = False  # the other strand
    where: str = ""  # its line and file, for error messages

    @property
    def text(self) -> str:
        return f"{self.where}: {self.name}:{self.start}-{self.end}"


def read_bed(path: Path) -> list[Interval]:
    """The intervals of a BED file; comments, `track` and `browser` lines are skipped."""
    if not path.is_file():
        raise UserError(f"there is no file {path} with intervals.")
    intervals = []
    for number, (line, _) in enumerate(lines(path), 1):
        cells = line.split("\t") if "\t" in line else line.split()
        if not line.strip() or line.startswith(("#", "track ", "browser ")):
            continue
        where = f"line {number} of {path}"
        if len(cells) < 3 or not all(re.fullmatch("[0-9]{1,15}", cell.strip()) for cell in cells[1:3]):
            raise UserError(
                f"{where} is not BED: {line[:60]!r}. It needs a sequence, a start and an end, and a split after them."
            )
        start, end = int(cells[1]), int(cells[2])
        if start >= end:
            raise UserError(
                f"{where}: the interval {cells[0]}:{start}-{end} is empty; its end must be after its start."
            )
        split = cells[3].strip().lower() if len(cells) > 3 else None
        if split is not None and split not in SPLITS:
            raise UserError(f"{where}: the fourth column must be a split. {unknown('split', split, SPLITS)}")
        reverse = len(cells) > 5 and cells[5].strip() == "-"
        intervals.append(Interval(cells[0].strip(), start, end, SPLITS[split] if split else None, reverse, where))
    if not intervals:
        raise UserError(f"{path} lists no interval.")
    if len({one.split is None for one in intervals}) > 1:
        lacking = next(one for one in intervals if one.split is None)
        raise UserError(f"{lacking.text} has no split, and others have: complete the fourth column, or leave it out.")
    return sorted(intervals, key=lambda one: (one.name, one.start, one.end))


class SequencePlace(NamedTuple):
    path: Path  # of the file
    length: int  # of the sequence


def sequence_places(paths: Sequence[Path]) -> dict[str, SequencePlace]:
    """Where each sequence of some FASTA files is, and its length; an error if two have one name."""
    places: dict[str, SequencePlace] = {}
    for path in paths:
        for name, pieces in groupby(named_pieces(path), key=lambda one: one[0]):
            if name.text in places:
                raise UserError(
                    f"two sequences are called {name.text!r} (the second in {path}), so it is not clear which one an "
                    "interval means: rename or remove one."
                )
            places[name.text] = SequencePlace(path, sum(len(piece.text) for _, piece in pieces))
    return places


def check_intervals(intervals: Sequence[Interval], places: Mapping[str, SequencePlace], layout: FileLayout) -> None:
    """Refuse intervals outside their sequences and bases in two splits; warn of what stretched intervals share."""
    for one in intervals:
        if one.name not in places:
            raise UserError(f"{one.text}: {unknown('sequence', one.name, places)}")
        length = places[one.name].length
        if one.end > length:
            raise UserError(
                f"{one.text} ends after the end of {one.name}, which has {length:,} bases. Is the FASTA file cut "
                "short, or of another assembly?"
            )
        if layout.window > length:
            raise UserError(
                f"{one.text}: a window of {layout.window:,} bases is longer than {one.name}, which has {length:,}."
            )
    shared = overlaps(intervals)
    if shared:
        one, other = shared[0]
        raise UserError(
            f"{one.text} ({one.split}) and {other.text} ({other.split}) overlap, so {len(shared)} pairs of intervals "
            "put the same bases into two splits. Make them disjoint."
        )
    if layout.stretch:
        wide = [one._replace(end=min(one.start + layout.stretch, places[one.name].length)) for one in intervals]
        shared = overlaps(wide)
        log.warning(
            "unmask: warning: intervals stretched to %s bases leak: %s pairs of them share bases and are in "
            "different splits. Numbers on valid and test are not those of unseen text.",
            f"{layout.stretch:,}",
            f"{len(shared):,}",
        )


def overlaps(intervals: Sequence[Interval]) -> list[tuple[Interval, Interval]]:
    """Pairs of intervals with common bases and different splits; the intervals are sorted by name and start."""
    pairs: list[tuple[Interval, Interval]] = []
    for _, some in groupby(intervals, key=lambda one: one.name):
        reaching: dict[str | None, Interval] = {}  # of each split, the interval that ends last
        for one in some:
            pairs += [
                (other, one) for split, other in reaching.items() if split != one.split and other.end > one.start
            ]
            last = reaching.get(one.split)
            reaching[one.split] = one if last is None or one.end > last.end else last
    return pairs


def region_pieces(path: Path, intervals: Sequence[Interval], layout: FileLayout) -> Iterator[Piece]:
    """The documents of some intervals of a FASTA file: their regions, or with `stretch` the windows of each."""
    of_name = {name: list(some) for name, some in groupby(intervals, key=lambda one: one.name)}
    for name, pieces in groupby(named_pieces(path), key=lambda one: one[0]):
        if name.text not in of_name:
            continue
        texts, at = [], 0
        for _, piece in pieces:
            texts.append(piece.text)
            at = piece.at
        whole = "".join(texts)
        for one in of_name[name.text]:
            for start, end in interval_windows(one, len(whole), layout) if layout.stretch else [(one.start, one.end)]:
                text = whole[start:end]
                yield from cut_up(reverse_complement(text) if one.reverse else text, at)


def interval_windows(one: Interval, length: int, layout: FileLayout) -> Iterator[tuple[int, int]]:
    """Windows side by side over `stretch` bases; one that would pass the end of the sequence ends there instead."""
    for number in range(layout.stretch // layout.window):
        start = min(one.start + number * layout.window, length - layout.window)
        yield start, start + layout.window


def fingerprint_of(path: Path) -> str:
    """A short hash of a BED file, for the names of sources."""
    return sha256(path.read_bytes()).hexdigest()[:8]
