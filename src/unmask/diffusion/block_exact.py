"""The exact bound and the exact likelihood of block diffusion, for small blocks: 2^S − 1 passes, no random numbers.

Blocks do not see the noise of each other, so one pass hides the same positions in every block. All sets of hidden
positions together hold p(x_i | H, x^{<b}) for every set H of hidden tokens of a block and every i in H:

    bound        Σ_H (k − 1)! (n − k)!/n! Σ_{i∈H} −log p(x_i | H),  k = |H|: the mean over orders of −log
    likelihood   −log g(all),  g(∅) = 1,  g(H) = mean_{i∈H} p(x_i | H) g(H∖i): −log of the mean over orders

The second is −log p of what first-hitting draws. It is at most the bound, and equal if the network is consistent.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import comb, inf, log
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.diffusion import mdlm
from unmask.diffusion.blocks import block_nats, check_block_size, given_tokens, in_blocks, in_rows, opening_tokens
from unmask.diffusion.bound import every_mask
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.objective import Facts, Nats, Objective
from unmask.errors import UserError
from unmask.shapes import Network, RowLogits, Tokens

LARGEST = 8  # tokens of a block: 255 passes are the most that is done


def nats_by_set(
    network: Network, x0: Int[Tensor, "b l"], frozen: Bool[Tensor, "b l"], *, size: int, mask: int
) -> Iterator[tuple[Bool[Tensor, " s"], Float[Tensor, "blocks s"]]]:
    """Each set of hidden columns, fewest first, with −log p of every hidden token in every block."""
    if size > LARGEST:
        raise UserError(
            f"the exact numbers of blocks of {size} tokens take 2^{size} - 1 = {2**size - 1:,} forward passes for "
            f"each text; at most {2**LARGEST - 1} (blocks of {LARGEST}) are done. Use the estimator 'block', a bound "
            "with error bars."
        )
    length = x0.shape[1]
    for columns in every_mask(size).to(x0.device):
        hidden = columns.repeat(-(-length // size))[:length] & ~frozen
        nats = block_nats(network, x0, torch.where(hidden, mask, x0), size=size, mask=mask)
        yield columns, in_blocks(nats.double(), size, 0.0)


def bound_by_sets(
    network: Network, x0: Int[Tensor, "b l"], frozen: Bool[Tensor, "b l"], *, size: int, mask: int
) -> Float[Tensor, "b l"]:
    """The bound of each token: a set counts for the blocks whose free tokens hold it."""
    free = ~in_blocks(frozen, size, True)
    n = free.sum(1)
    by_count = [[1 / (k * comb(m, k)) if k <= m else 0.0 for k in range(1, size + 1)] for m in range(size + 1)]
    share = torch.tensor(by_count, dtype=torch.float64, device=x0.device)
    total = torch.zeros(free.shape, dtype=torch.float64, device=x0.device)
    for columns, nats in nats_by_set(network, x0, frozen, size=size, mask=mask):
        fits = ~(columns & ~free).any(1)
        total += torch.where(fits, share[n, int(columns.sum()) - 1], 0.0)[:, None] * nats
    return in_rows(total, x0)


def likelihood_by_sets(
    network: Network, x0: Int[Tensor, "b l"], frozen: Bool[Tensor, "b l"], *, size: int, mask: int
) -> Float[Tensor, "b l"]:
    """−log p of each block, divided evenly among its free tokens."""
    free = ~in_blocks(frozen, size, True)
    place = 2 ** torch.arange(size, device=x0.device)
    log_g = torch.full((len(free), 2**size), -inf, dtype=torch.float64, device=x0.device)
    log_g[:, 0] = 0.0
    for columns, nats in nats_by_set(network, x0, frozen, size=size, mask=mask):
        number, members = int((columns * place).sum()), columns.nonzero().squeeze(1)
        rest = torch.stack([log_g[:, number - 2 ** int(i)] - nats[:, i] for i in members])
        log_g[:, number] = rest.logsumexp(0) - log(len(members))
    nats = -log_g.gather(1, (free * place).sum(1, keepdim=True))
    return in_rows(torch.where(free, nats / free.sum(1, keepdim=True).clamp(min=1), 0.0), x0)


@dataclass(frozen=True)
class ExactBound(Objective):
    """The bound of a block model without Monte Carlo error."""

    name: ClassVar[str] = "exact-bound"
    facts: ClassVar[Facts] = Facts(gives=frozenset({"masks", "blocks"}), noisy=False)
    size: int = 4
    given_first: bool = False  # the first token of a row is given
    opens: bool = False  # the first token of a block comes before the others

    def __post_init__(self) -> None:
        check_block_size(self.size)

    @property
    def means(self) -> str:
        return f"upper bound on -log p, blocks of {self.size}, no Monte Carlo error"

    def nats(self, network: Network, clean: CleanRows) -> Nats:
        """Nats per token, whatever the noise."""
        given, x0, mask = given_tokens(clean, first=self.given_first), clean.x0, clean.mask
        size = min(self.size, given.shape[1])
        if not self.opens:
            nats = self.by_sets(network, x0, given, size=size, mask=mask)
            return Nats(nats, nats)
        opening = opening_tokens(given, size)
        nats = self.by_sets(partial(network, opens=True), x0, given | opening, size=size, mask=mask)
        nats = nats + block_nats(network, x0, x0, size=size, mask=mask, opening=opening)
        return Nats(nats, nats)

    by_sets = staticmethod(bound_by_sets)

    def log_probs(self, logits: RowLogits, x_t: Tokens, *, mask: int) -> RowLogits:
        return mdlm.log_probs(logits, x_t, mask=mask)


@dataclass(frozen=True)
class ExactLikelihood(ExactBound):
    """−log p of a text under first-hitting generation, block by block."""

    name: ClassVar[str] = "likelihood"
    facts: ClassVar[Facts] = Facts(gives=frozenset({"masks", "blocks"}), noisy=False, exact=True)

    @property
    def means(self) -> str:
        return f"exact: -log p of first-hitting generation in blocks of {self.size}, the mean over all orders"

    by_sets = staticmethod(likelihood_by_sets)
