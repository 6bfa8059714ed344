"""Whole rows: passes in the direction that a network is trained for, at all positions or at those asked for.

`hidden_states` and `logits_at` build a pass, run it and apply the head: what most callers want of a network.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.model.backbone import Backbone, Spec
from unmask.model.passes.aimed import aimed_pass
from unmask.model.passes.doubled import doubled_pass
from unmask.model.passes.ordered import ordered_pass
from unmask.model.passes.visible import without_masks
from unmask.model.passing import Causal, Memory, Pass, Rule, VisibleKeys
from unmask.model.rules import visible_keys


def whole(
    spec: Spec,
    x: Int[Tensor, "b l"] | Float[Tensor, "b l d"],
    sigma: Float[Tensor, "..."] | None = None,
    *,
    rows: Int[Tensor, " n"] | None = None,
    lengths: Int[Tensor, " b"] | None = None,
    allowed: Bool[Tensor, "l l"] | None = None,
    segments: Int[Tensor, "b l"] | None = None,
) -> Pass:
    """Whole rows, with the states that predict the flat positions `rows`.

    x        tokens, or vectors in place of their embeddings
    sigma    the noise level of each row (b) or of each position (b l); ignored where `spec.shown_sigma` is False
    lengths  real positions of each row; the rest is padding at its end that no position sees
    allowed  allowed[i, j]: position i sees position j; replaces the network's own rule, but masks stay unseen

    Networks with visible keys are not shown masks that are not asked for.
    """
    wanted = rows_before(rows, x.shape[1]) if rows is not None and spec.before else rows
    sees = spec.own_rule
    if allowed is not None:
        sees = Rule(allowed & visible_keys(x, sees.mask).visible if isinstance(sees, VisibleKeys) else allowed)
    p = Pass(x, sees, sigma=sigma, lengths=lengths, segments=segments, wanted=wanted)
    return without_masks(p, sees.mask) if isinstance(sees, VisibleKeys) and not x.is_floating_point() else p


def hidden_states(
    network: Backbone,
    x: Int[Tensor, "b l"] | Float[Tensor, "b l d"],
    sigma: Float[Tensor, "..."] | None = None,
    *,
    rows: Int[Tensor, " n"] | None = None,
    lengths: Int[Tensor, " b"] | None = None,
    allowed: Bool[Tensor, "l l"] | None = None,
    segments: Int[Tensor, "b l"] | None = None,
) -> Float[Tensor, "..."]:
    """Hidden states that predict all positions (b l d), or the flat positions `rows` (n d): see `whole`."""
    p = whole(network.spec, x, sigma, rows=rows, lengths=lengths, allowed=allowed, segments=segments)
    hidden = network.run(p).hidden
    return states_before(hidden) if rows is None and network.spec.before else hidden


def logits_at(
    network: Backbone,
    x: Int[Tensor, "b l"] | Float[Tensor, "b l d"],
    sigma: Float[Tensor, "..."] | None,
    rows: Int[Tensor, " n"],
    *,
    lengths: Int[Tensor, " b"] | None = None,
    allowed: Bool[Tensor, "l l"] | None = None,
    clean: Int[Tensor, "b l"] | None = None,
    size: int = 0,
    opens: bool = False,
    rank: Int[Tensor, "b l"] | None = None,
) -> Float[Tensor, "n v"]:
    """Logits (n v) that predict the flat positions `rows` only.

    With `clean` each block of `size` tokens of x is predicted from itself and the clean text before it (`opens`: its
    first token from that text alone), or with `rank` each token of x from the clean tokens of lower rank. With `rank`
    alone x is clean, and each of its tokens is predicted from those of lower rank in one stream.
    """
    if clean is not None and rank is not None:
        p = ordered_pass(network.spec, x, clean, rank, rows=rows, lengths=lengths, allowed=allowed)
    elif rank is not None:
        p = aimed_pass(network.spec, x, rank, rows=rows, lengths=lengths, allowed=allowed)
    elif clean is None or size >= x.shape[1]:
        p = whole(network.spec, x, sigma, rows=rows, lengths=lengths, allowed=allowed)
    else:
        p = doubled_pass(network.spec, x, clean, size, rows=rows, lengths=lengths, allowed=allowed, opens=opens)
    return network.head(network.run(p).hidden)


def read_on(
    network: Backbone, tokens: Int[Tensor, "b m"], memory: Memory
) -> tuple[Float[Tensor, "b m d"], Memory | None]:
    """Read m more tokens forward; row i of the result predicts the token after token i."""
    states = network.run(Pass(tokens, Causal(), memory=memory))
    return states.hidden, states.memory


def states_before(hidden: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
    """For networks that predict position i from the state of i − 1: the states moved; the first keeps its own."""
    return torch.cat((hidden[:, :1], hidden[:, :-1]), dim=1)


def rows_before(rows: Int[Tensor, " n"], length: int) -> Int[Tensor, " n"]:
    """The flat positions whose states predict these ones, in rows of this length."""
    return torch.where(rows % length > 0, rows - 1, rows)
