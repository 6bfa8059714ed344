"""Block diffusion: masked diffusion within blocks of S tokens, each given the clean text before it. [BD3-LM]

    −log p(x) ≤ Σ_b E[ n/k · Σ_{i hidden in b} −log p(x_i | x_t^b, x^{<b}) ],  k masks among the n free tokens of b

One block is MDLM, blocks of one token are autoregression. Every block has its own number of masks. Blocks do not see
the noise of each other, so one pass over the noisy and the clean row gives the losses of all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.diffusion import mdlm
from unmask.diffusion.block_exact import ExactBound, ExactLikelihood
from unmask.diffusion.blocks import block_nats, check_block_size, given_tokens, in_blocks, in_rows, opening_tokens
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.corruption import hide, hide_count
from unmask.diffusion.objective import OBJECTIVES, Facts, Nats, Objective
from unmask.diffusion.times import Count, Stratified, Times
from unmask.errors import UserError
from unmask.shapes import Network, RowLogits, Tokens

GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, are spread evenly


def block_times(t: Float[Tensor, " b"], blocks: int) -> Float[Tensor, "b blocks"]:
    """A uniform number for each block, from one for each row: shifted from block to block, so that a row's blocks are
    spread evenly over [0, 1) and neighbours differ."""
    shift = torch.arange(blocks, device=t.device, dtype=torch.float64) * GOLDEN % 1
    return ((t.double()[:, None] + shift) % 1).to(t.dtype)


def block_counts(u: Float[Tensor, " n"], free: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """A number of masks for each block: uniform over 1..free; 0 if nothing is free."""
    return torch.minimum((u * free).long() + 1, free)


@OBJECTIVES.register("block", "block diffusion: masked diffusion within blocks, each given the text before it")
@dataclass(frozen=True)
class BlockDiffusion(Objective):
    """Block diffusion. A row whose length is no multiple of the size ends with a shorter block."""

    facts: ClassVar[Facts] = Facts(gives=frozenset({"masks", "conditionals", "blocks"}), optimizer="muon", asked=0.6)
    advice: ClassVar[Mapping[str, Any]] = {"weight": "flat"}

    size: int = 4  # S, tokens per block: 1 is autoregressive, the length of a row is mdlm
    times: Times = Count()  # count (number of masks), clipped:low=0.45,high=0.95,floor=0.1, stratified:low=0
    weight: Literal["bound", "flat"] = "bound"  # flat: train with plain cross-entropy and report the bound

    given_first: bool = False  # the first token of a row is given and never predicted, as in the published models
    opens: bool = field(
        default=False, metadata={"hidden": True}
    )  # the first token of a block comes before the others

    def __post_init__(self) -> None:
        check_block_size(self.size)
        if self.opens and not self.given_first:
            raise UserError("blocks that open with a token predicted from the one before need objective.given-first.")

    @property
    def means(self) -> str:
        low = self.times.low if isinstance(self.times, Stratified) else 0.0
        bound = "upper bound on -log p" if not low else f"a bound on -log p less the times below {low:g}"
        how = "by the number of masks" if self.times.by_count else "by t"
        return f"{bound}, blocks of {self.size}, continuous time, {how}"

    @property
    def block(self) -> int:  # type: ignore[override]
        return self.size

    @property
    def leads(self) -> bool:
        return self.given_first

    def estimators(self) -> Mapping[str, Objective]:
        exact = (kind(self.size, self.given_first, self.opens) for kind in (ExactBound, ExactLikelihood))
        return {self.name: replace(self, times=Count()), **{one.name: one for one in exact}}

    def seen(self, frozen: Bool[Tensor, " l"]) -> Bool[Tensor, " l"]:
        """Without text after the block of the first blank: how likely it is depends on what fills the blank."""
        number = torch.arange(len(frozen), device=frozen.device) // self.size
        return frozen & (number <= number[~frozen].amin()) if bool((~frozen).any()) else frozen

    def context(self, x0: Int[Tensor, "b l"]) -> Mapping[str, Any]:
        return {"clean": x0, "size": self.size, **({"opens": True} if self.opens else {})}

    def remark(self, length: int) -> str:
        if self.size > length:
            raise UserError(
                f"a block of {self.size} tokens does not fit into rows of {length}: choose an objective.size up to "
                f"{length} (with {length} it is mdlm), or a greater --length."
            )
        rest = length % self.size
        return f"blocks of {self.size}: rows of {length} tokens end with a block of {rest}" if rest else ""

    def nats(self, network: Network, clean: CleanRows) -> Nats:
        """Nats per token. The loss is weighted without the density of clipped times, which the bound is divided by:
        the loss is then biased on purpose, and the bound is still a bound."""
        x0, noise, mask = clean.x0, clean.noise, clean.mask
        size = min(self.size, x0.shape[1])
        given = given_tokens(clean, first=self.given_first)
        opening = opening_tokens(given, size) if self.opens else None
        given = given if opening is None else given | opening
        x, u, frozen = in_blocks(x0, size, 0), in_blocks(noise.u, size, 1.0), in_blocks(given, size, True)
        when = self.times.at(block_times(noise.t, len(x) // len(x0)).flatten())
        free = (~frozen).sum(1)
        if self.times.by_count:
            k = block_counts(when.t, free)
            x_t, weight = hide_count(x, k, u, mask=mask, frozen=frozen), free.to(u.dtype) / k.clamp(min=1)
        else:
            x_t, weight = hide(x, when.t, u, mask=mask, frozen=frozen), 1 / when.t.clamp(min=1e-12)
        ce = block_nats(network, x0, in_rows(x_t, x0).contiguous(), size=size, mask=mask, opening=opening)
        bound = in_rows((weight / when.density)[:, None].expand_as(u), x0) * ce
        # As many nats as the bound on average: k is (n + 1)/2, so that one token alone has weight 1.
        even = 2 * free.to(u.dtype) / (free + 1)
        loss = in_rows((weight if self.weight == "bound" else even)[:, None].expand_as(u), x0) * ce
        if opening is None:
            return Nats(loss, bound)
        return Nats(torch.where(opening, ce, loss), torch.where(opening, ce, bound))

    def log_probs(self, logits: RowLogits, x_t: Tokens, *, mask: int) -> RowLogits:
        return mdlm.log_probs(logits, x_t, mask=mask)
