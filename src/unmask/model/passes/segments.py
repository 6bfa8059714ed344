"""Segments: rows that continue the rows of the step before, for networks that carry a memory through training."""

from jaxtyping import Int
from torch import Tensor

from unmask.model.passing import Causal, Pass, Segment


def segment(x: Int[Tensor, "b l"], rows: Int[Tensor, " n"], carried: Tensor | None) -> Pass:
    """The pass whose states predict flat positions, given what the step before carried.

    The next rows begin with the last token of these: it is predicted here and read there.
    """
    l = x.shape[1]
    wanted = rows // l * (l - 1) + (rows % l - 1).clamp(min=0)
    return Pass(x[:, :-1], Causal(), memory=Segment(carried), wanted=wanted)
