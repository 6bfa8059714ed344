"""The transformer: tokens and a noise level in, logits at the positions that are asked for out.

One network serves all objectives. With `cond > 0` each block is modulated by the noise level (adaLN); when
`time_conditioning` is off the network is always told σ = 0, the modulation is a constant, and it is multiplied
into the weights: once a step in training, once for ever after `freeze()`. With `cond = 0` there is no modulation.
`causal` turns it into the autoregressive network. Parameters bear the names of the published checkpoints.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from unmask.errors import UserError
from unmask.model.backbones.attention import Cache, Rotary, ask
from unmask.model.backbones.block import Block, Norm, Sight, modulation, normed

SINUSOID = 256  # features of the noise level before the small network that reads them


@dataclass(frozen=True)
class Architecture:
    """The shape of a network."""

    vocab: int  # ids, the mask included
    length: int = 128  # positions of a training row; rotary positions let other lengths run
    width: int = 256  # features of a position
    blocks: int = 6
    heads: int = 4
    cond: int = 0  # features of the noise level that modulate each block; 0: no modulation
    dropout: float = 0.0  # on both branches of a block, in training
    tied: bool = False  # the head reuses the embedding
    time_conditioning: bool = False  # tell the network the noise level; needs cond
    causal: bool = False  # a position sees only itself and what is before it
    reads_before: bool = False  # position i is predicted from the hidden state of i − 1

    def __post_init__(self) -> None:
        for name in ("vocab", "length", "width", "blocks", "heads"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if self.width % (2 * self.heads):
            raise UserError(
                f"width {self.width} cannot be cut into {self.heads} heads of an even number of features: "
                f"make it a multiple of {2 * self.heads}, or change heads."
            )
        if self.cond < 0:
            raise UserError(f"cond must be 0 (no modulation) or more, not {self.cond}.")
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout must be in [0, 1), not {self.dropout}.")
        if self.time_conditioning and not self.cond:
            raise UserError("time_conditioning needs a place to put the noise level: set cond (128 is usual).")


class Embedding(nn.Module):
    """A vector for every id."""

    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(vocab, width).uniform_(-1, 1) / math.sqrt(width))

    def forward(self, tokens: Int[Tensor, "b l"]) -> Float[Tensor, "b l d"]:
        return F.embedding(tokens, self.embedding)


class NoiseLevel(nn.Module):
    """σ as a vector: cosines and sines of it at 128 frequencies, then a small network."""

    def __init__(self, cond: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(SINUSOID, cond), nn.SiLU(), nn.Linear(cond, cond))

    def forward(self, sigma: Float[Tensor, " b"]) -> Float[Tensor, "b c"]:
        half = torch.arange(SINUSOID // 2, dtype=torch.float32, device=sigma.device)
        frequencies = torch.exp(-math.log(10000) * half / (SINUSOID // 2))
        angles = (sigma[:, None] * frequencies).to(next(self.parameters()).dtype)
        return F.silu(self.mlp(torch.cat((angles.cos(), angles.sin()), dim=-1)))


class Output(nn.Module):
    """The last norm and the head; a tied head has no weight of its own."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.norm_final = Norm(a.width)
        self.linear = nn.Linear(a.width, a.vocab)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        if a.tied:
            self.linear.register_parameter("weight", None)
        self.adaLN_modulation = modulation(2, a.cond, a.width)

    def forward(
        self, x: Float[Tensor, "*shape d"], c: Float[Tensor, "bc c"] | None, batch: Int[Tensor, " n"] | None
    ) -> Float[Tensor, "*shape d"]:
        """The normed hidden states: of all positions, or of rows that belong to the sequences `batch`."""
        if self.adaLN_modulation is None or c is None:
            return normed(x, self.norm_final.weight)
        shift, scale = self.adaLN_modulation(c).chunk(2, dim=-1)
        if len(c) == 1:
            return normed(x, self.norm_final.weight * (1 + scale[0]), shift[0])
        if batch is None:
            return normed(x, self.norm_final.weight, None, shift[:, None], scale[:, None])
        return normed(x, self.norm_final.weight, None, shift[batch], scale[batch])


class Transformer(nn.Module):
    """The network of every objective: `trunk` gives hidden states, `head` turns rows of them into logits."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        a = self.architecture = architecture
        self.vocab_embed = Embedding(a.vocab, a.width)
        self.sigma_map = NoiseLevel(a.cond) if a.cond else None
        self.rotary_emb = Rotary(a.width // a.heads)
        self.blocks = nn.ModuleList(
            Block(width=a.width, heads=a.heads, cond=a.cond, constant=not a.time_conditioning, dropout=a.dropout)
            for _ in range(a.blocks)
        )
        self.output_layer = Output(a)
        self.recompute = False  # forget what a block computed, and compute it again in the backward pass

    def trunk(
        self,
        tokens: Int[Tensor, "b l"],
        sigma: Float[Tensor, " b"] | None = None,
        *,
        rows: Int[Tensor, " n"] | None = None,
        lengths: Int[Tensor, " b"] | None = None,
        allowed: Bool[Tensor, "l l"] | None = None,
    ) -> Float[Tensor, "b l d"] | Float[Tensor, "n d"]:
        """Hidden states from which all positions (b l d), or the flat positions `rows` (n d), are predicted.

        `lengths` says how many positions of each sequence are real; the rest is padding that nobody sees.
        `allowed[i, j]` lets position i see position j, in place of the architecture's own rule.
        """
        sight = self.sight(tokens, rows, lengths, allowed)
        hidden = self.run(tokens, sigma, sight)
        if rows is None and self.architecture.reads_before:
            hidden = torch.cat((hidden[:, :1], hidden[:, :-1]), dim=1)
        return hidden

    def head(self, hidden: Float[Tensor, "*shape d"]) -> Float[Tensor, "*shape v"]:
        """Logits (.. v) of hidden states (.. d), in float32 or wider."""
        linear = self.output_layer.linear
        weight = self.vocab_embed.embedding if linear.weight is None else linear.weight
        with precision(hidden.device):
            logits = F.linear(hidden, weight, linear.bias)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def logits(
        self,
        tokens: Int[Tensor, "b l"],
        sigma: Float[Tensor, " b"],
        rows: Int[Tensor, " n"],
        *,
        lengths: Int[Tensor, " b"] | None = None,
        allowed: Bool[Tensor, "l l"] | None = None,
    ) -> Float[Tensor, "n v"]:
        """Logits (n v) that predict the flat positions `rows`, and no others: a `shapes.Network`."""
        return self.head(self.trunk(tokens, sigma, rows=rows, lengths=lengths, allowed=allowed))

    forward = logits

    def extend(self, tokens: Int[Tensor, "b m"], cache: Cache) -> Float[Tensor, "b m d"]:
        """Read m more tokens behind those in the cache; row i of the result predicts the token after token i."""
        if not self.architecture.causal:
            raise ValueError("only a causal network can read token by token: others look ahead")
        start, m = cache.filled, tokens.shape[1]
        visible = None
        if start and m > 1:
            visible = torch.ones(m, start + m, dtype=torch.bool, device=tokens.device).tril(start)
        turns = self.rotary_emb.turns(cache.capacity)[start : start + m]
        sight = Sight(turns, visible, causal=start == 0, cache=cache)
        hidden = self.run(tokens, None, sight)
        cache.filled = start + m
        return hidden

    def run(
        self, tokens: Int[Tensor, "b l"], sigma: Float[Tensor, " b"] | None, sight: Sight
    ) -> Float[Tensor, "b l d"] | Float[Tensor, "n d"]:
        """Embedding, blocks and last norm."""
        return self.through(self.vocab_embed(tokens), sigma, sight)

    def through(
        self, x: Float[Tensor, "b l d"], sigma: Float[Tensor, " b"] | None, sight: Sight
    ) -> Float[Tensor, "b l d"] | Float[Tensor, "n d"]:
        """Blocks and last norm, from embeddings on: a classifier's gradient ends there."""
        c = self.condition(sigma)
        with precision(x.device):
            for i, block in enumerate(self.blocks):
                given = (x, c, sight, i, i == len(self.blocks) - 1)
                again = self.recompute and torch.is_grad_enabled()
                x = checkpoint(block, *given, use_reentrant=False) if again else block(*given)
            return self.output_layer(x, c, None if sight.asked is None else sight.asked.batch)

    def condition(self, sigma: Float[Tensor, " b"] | None) -> Float[Tensor, "bc c"] | None:
        """The noise level as vectors: one a sequence, or a single one for σ = 0 without time conditioning."""
        if self.sigma_map is None:
            return None
        if not self.architecture.time_conditioning:
            return self.sigma_map(torch.zeros(1, device=self.vocab_embed.embedding.device))
        if sigma is None:
            raise ValueError("this network is conditioned on the noise level: give sigma, one number a sequence")
        return self.sigma_map(sigma)

    def sight(
        self,
        tokens: Int[Tensor, "b l"],
        rows: Int[Tensor, " n"] | None,
        lengths: Int[Tensor, " b"] | None,
        allowed: Bool[Tensor, "l l"] | None,
    ) -> Sight:
        """Who sees whom in this pass, and which rows are wanted of it."""
        b, l = tokens.shape
        turns = self.rotary_emb.turns(l)
        causal = self.architecture.causal and allowed is None
        # Padding is behind the real positions, where a causal network does not look anyway.
        real = None
        if lengths is not None and not causal and bool((lengths < l).any()):
            real = (torch.arange(l, device=tokens.device) < lengths[:, None])[:, None, None]  # (b 1 1 l)
        visible = together(allowed, real)
        if rows is None:
            return Sight(turns, visible, causal)
        if self.architecture.reads_before:
            rows = torch.where(rows % l > 0, rows - 1, rows)
        asked = ask(rows, sequences=b, length=l)
        if causal:
            allowed = torch.ones(l, l, dtype=torch.bool, device=tokens.device).tril()
        asked_visible = together(None if allowed is None else asked.visible(allowed), real)
        return Sight(turns, visible, causal, asked, asked_visible)

    def freeze(self) -> "Transformer":
        """Make it fast for inference: no gradients, no dropout, a constant modulation multiplied in for good.

        Call it again after the weights were changed. `requires_grad_(True)` undoes it.
        """
        self.eval().requires_grad_(False)
        for block in self.modules():
            if isinstance(block, Block):
                block.keep, block.kept = True, None
        return self


def together(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Both rules of who sees whom, where there are two."""
    if a is None or b is None:
        return a if b is None else b
    return a & b


@contextmanager
def precision(device: torch.device) -> Iterator[None]:
    """bf16 autocast on CUDA; elsewhere the parameters' own type, for bf16 on some CPUs kills the process."""
    if device.type == "cuda":
        with torch.autocast("cuda", dtype=torch.bfloat16):
            yield
    else:
        yield
