"""Which token: an exact draw by inverse CDF in float64, on the rows about to be revealed and no others.

The usual Gumbel draw in float32 over {tokens, mask} cuts off rare tokens, the harder the more steps are used: its
uniforms are multiples of 2^-24. Here it is already settled that the position is revealed, and the sums are float64.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.errors import UserError


def inverse_cdf(logits: Float[Tensor, "n v"], u: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """The first token whose cumulated probability exceeds u; one with logit −∞ is never drawn."""
    top = logits.amax(-1, keepdim=True).double()
    if not bool(torch.isfinite(top).all()):
        raise UserError("no token can stand at a position: every one is banned, or the network gave NaN.")
    cdf = (logits.double() - top).exp_().cumsum_(-1)
    total = cdf[:, -1:].contiguous()
    token = torch.searchsorted(cdf, u.double()[:, None] * total, right=True)
    # u·total may round up to the total itself: the last token with any mass, not one past it.
    return torch.minimum(token, torch.searchsorted(cdf, total)).squeeze(-1)


def greedy(logits: Float[Tensor, "n v"]) -> Int[Tensor, " n"]:
    """The most likely token: the draw at temperature 0."""
    return logits.argmax(-1)
