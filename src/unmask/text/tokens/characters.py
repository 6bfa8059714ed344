"""Letters: a table for vocabularies without merges; it gives the library's ids many times faster.

The library is called once for each character; encoding a text is then one gather from the table.
"""

from collections.abc import Callable

import numpy as np

CODES = 0x110000  # Unicode's code points
UNSEEN = -1


class Letters:
    """The ids of each character: `flat[start[c] : start[c] + count[c]]` for the character of code point c."""

    def __init__(self, ids_of: Callable[[str], list[int]]):
        self.ids_of = ids_of
        self.count = np.full(CODES, UNSEEN, np.int16)
        self.start = np.zeros(CODES, np.int32)
        self.flat = np.zeros(0, np.int32)

    def encode(self, text: str) -> np.ndarray:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
        counts = self.count[codes]
        if counts.size and counts.min() == UNSEEN:
            new, first = np.unique(codes[counts == UNSEEN], return_index=True)
            self._learn(new[np.argsort(first)])  # in their order, so that an error names the first one in the text
            counts = self.count[codes]
        starts = self.start[codes]
        if not counts.size or counts.min() == counts.max() == 1:
            return self.flat[starts]
        # The i-th id of the result is the (i - where its letter begins)-th id of that letter.
        counts = counts.astype(np.int64)
        begins = np.cumsum(counts) - counts
        return self.flat[np.repeat(starts - begins, counts) + np.arange(counts.sum())]

    def _learn(self, codes: np.ndarray) -> None:
        for code in codes.tolist():
            ids = self.ids_of(chr(code))
            self.start[code] = len(self.flat)
            self.flat = np.append(self.flat, np.array(ids, np.int32))
            self.count[code] = len(ids)
