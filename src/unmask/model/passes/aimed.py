"""Aimed rows: tokens read in any order in one stream, each with the place of the next one, which it predicts. [σ-GPT]

An element is a token at its own place. It sees itself and the tokens that are read before it, from the place of the
one that is read after it: its queries are rotated as if it stood there, its keys are not. From left to right, in a
network that predicts position i from the state of i − 1, this is an autoregressive network, number for number: so the
weights of one are a start that loses nothing.

A token is remembered with the aim that it was read with. Several questions at once read the last token again.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.errors import UserError
from unmask.model.backbone import Spec
from unmask.model.passing import Causal, Pass, Rule


def aimed_pass(
    spec: Spec,
    clean: Int[Tensor, "b l"],
    rank: Int[Tensor, "b l"],
    *,
    rows: Int[Tensor, " n"],
    lengths: Int[Tensor, " b"] | None = None,
    allowed: Bool[Tensor, "l l"] | None = None,
) -> Pass:
    """The pass whose states predict flat positions, each from the clean tokens of lower rank.

    The first token of the order is given: a question about it is answered by a state that has seen it.
    """
    check_aimed(spec)
    l = clean.shape[1]
    place = torch.arange(l, device=clean.device)
    padding = torch.zeros_like(rank) if lengths is None else (place >= lengths[:, None]) * l
    order = (rank + padding).argsort(1)  # padding is read last, so that no text sees it
    rank = order.argsort(1)
    wanted = rows // l * l + (rank.flatten()[rows] - 1).clamp(min=0)
    ends = torch.cat([order[:, 1:], order[:, -1:]], 1)
    sees = (
        Causal()
        if allowed is None
        else Rule(torch.ones_like(allowed).tril() & allowed[order[:, :, None], order[:, None]])
    )
    return Pass(clean.gather(1, order), sees, order, aim=aim_at(spec, ends), wanted=wanted)


def aim_at(spec: Spec, target: Int[Tensor, "*b m"]) -> Int[Tensor, "*b m"]:
    """From where a token looks that predicts the one at `target`."""
    return (target - int(spec.before)).clamp(min=0)


def check_aimed(spec: Spec) -> None:
    """Refuse a network that cannot read in any order in one stream."""
    if not (spec.blockwise and spec.abilities.aims):
        raise UserError(
            f"this {spec.name} cannot read in any order in one stream: the objective one-stream needs a network with "
            "rotary positions, without time_conditioning, such as a transformer. any-order takes any attention."
        )
