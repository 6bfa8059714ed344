"""The letters in shapes: `Int[Tensor, "b l"]` is a batch of token rows.

    b  batch: rows of tokens           v  vocabulary, the mask id included
    l  length: positions in a row      d  width of the network
    n  some flat positions, row-major  h  heads
       over (b l): b * l of them       k  number of masks in a row

Shapes are checked in every test (jaxtyping's pytest hook with beartype) and cost nothing in production.
"""

from collections.abc import Callable

from jaxtyping import Float, Int
from torch import Tensor

# A network as the objectives call it: from noisy tokens (b l), the noise level σ (b) and flat positions (n) to the
# logits (n v) at these positions only. A network that looks block by block also takes `clean` and
# `size`, one that reads in any order `clean` and `rank`.
Network = Callable[..., Float[Tensor, "n v"]]

Tokens = Int[Tensor, "b l"]
RowLogits = Float[Tensor, "b l v"]
