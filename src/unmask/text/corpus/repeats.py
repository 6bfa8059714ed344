"""Repeats: sequences of FASTA files that have the name, or the letters, of an earlier one.

Counted while the files are read once more, by hashes of eight bytes: a genome takes no memory, and a file of many
sequences sixteen bytes for each.
"""

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import groupby
from typing import NamedTuple

import numpy as np

from unmask.text.corpus.documents import named_pieces
from unmask.text.corpus.formats import format_of
from unmask.text.corpus.sources import Source

MOST = 1 << 24  # sequences that are compared


class Repeats(NamedTuple):
    """How many sequences have what an earlier one has."""

    sequences: int
    names: int
    letters: int

    def lines(self) -> Iterator[str]:
        """What there is to say of it."""
        if self.names:
            yield f"{self.names:,} of {self.sequences:,} sequences have the name of an earlier one"
        if self.letters:
            yield (
                f"{self.letters:,} of {self.sequences:,} sequences have the letters of an earlier one: they "
                "count more than once, and may be on both sides of a split by file or interval"
            )


def repeats(sources: Sequence[Source]) -> Repeats:
    """The repeats in the FASTA files among some sources, each file counted once."""
    names, letters = array("Q"), array("Q")
    paths = dict.fromkeys(source.path for source in sources if source.path is not None)
    for path in (path for path in paths if format_of(path.name)[0] == "fasta"):
        for name, pieces in groupby(named_pieces(path), key=lambda one: one[0]):
            if len(names) == MOST:
                break
            content = blake2b(digest_size=8)
            for _, piece in pieces:
                content.update(piece.text.upper().encode())
            names.append(int.from_bytes(blake2b(name.text.encode(), digest_size=8).digest()))
            letters.append(int.from_bytes(content.digest()))
    return Repeats(len(names), *(len(some) - len(np.unique(np.array(some))) for some in (names, letters)))
