"""The transformer: from tokens and a noise level to logits at the requested positions.

One network serves all objectives. With `cond > 0` each block is modulated by the noise level (adaLN). If
`time_conditioning` is off, σ is always 0, so the modulation is constant and is multiplied into the weights: once per
step in training, once in all after `freeze()`. With `cond = 0` there is no modulation. `causal` makes it the
autoregressive network. Parameters have the names of the published checkpoints.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.errors import UserError
from unmask.model.attending import attend_in
from unmask.model.backbone import BACKBONES, Backbone, Spec, precision
from unmask.model.backbones.block import Block, BlockInputs, Norm, modulation, normalize
from unmask.model.backbones.rotary import Rotary, check_even_heads
from unmask.model.passing import ATTENTION, Abilities, Causal, Full, Pass, Sees, States, VisibleKeys
from unmask.registry import derived
from unmask.text.tokens.tokenizer import Tokenizer

COND = 128  # default features of the noise level, as in the paper
SINUSOID = 256  # sinusoidal features of the noise level, before the MLP


@BACKBONES.register("transformer", "the paper's diffusion transformer: rotary positions, optional adaLN")
@dataclass(frozen=True)
class Architecture(Spec):
    """The shape of a transformer."""

    advice: ClassVar[Mapping[str, Any]] = {"tied": True}
    abilities: ClassVar[Abilities] = Abilities(ATTENTION, memory=True, positions=True, aims=True)

    vocab: int = derived(1)  # ids, the mask included
    length: int = derived(128)  # positions of a training row; rotary positions let other lengths run
    width: int = 256  # features per position
    blocks: int = 6  # layers
    heads: int = 4  # attention heads; width must be a multiple of twice their number
    cond: int | None = None  # noise-level features that modulate blocks (adaLN); 0: none; none: by the objective
    dropout: float = 0.0  # dropout probability on both branches of a block, in training
    tied: bool = False  # the head reuses the embedding
    time_conditioning: bool = False  # give the network the noise level as input; needs cond > 0
    causal: bool = derived(False)  # a position sees only itself and what is before it
    reads_before: bool = False  # predict position i from the hidden state of i − 1; always true if causal
    visible_keys: bool = False  # a masked position is seen by itself alone: half of the arithmetic of sampling
    mask: int = derived(-1)  # the mask's id, where masks are not seen

    def __post_init__(self) -> None:
        self.check_sizes("heads")
        check_even_heads(self.width, self.heads)
        if self.cond is not None and self.cond < 0:
            raise UserError(f"cond must be 0 (no modulation) or more, not {self.cond}.")
        if self.time_conditioning and not self.cond:
            raise UserError("time_conditioning needs features for the noise level: set cond (the paper has 128).")

    @property
    def shown_sigma(self) -> bool:
        return self.time_conditioning

    @property
    def offers_sigma(self) -> bool:
        return self.cond != 0

    @property
    def warms(self) -> bool:
        return not self.cond

    @property
    def before(self) -> bool:
        return self.reads_before

    @property
    def own_rule(self) -> Sees:
        if self.visible_keys and not self.causal:
            return VisibleKeys(self.mask)
        return Causal() if self.causal else Full()  # spelled out: the compiler cannot follow super()

    def reading(self, tokenizer: Tokenizer) -> "Architecture":
        return replace(self, mask=tokenizer.mask) if self.visible_keys else self

    def sized(self, *, vocab: int, length: int, causal: bool) -> "Architecture":
        """With the sizes of the data. A network that has predicted position i at i − 1 continues to do so."""
        before = causal or self.reads_before
        return replace(self, vocab=vocab, length=length, causal=causal, reads_before=before, cond=self.cond or 0)

    def shown(self, sigma: bool) -> "Architecture":
        if sigma == self.time_conditioning and self.cond is not None:
            return self
        return replace(self, time_conditioning=sigma, cond=(self.cond or COND) if sigma else self.cond or 0)

    def from_autoregressive(self) -> "Architecture":
        if self.cond:
            raise UserError("a warm start needs a network without modulation: set model.cond = 0.")
        return replace(self, reads_before=True)

    def in_place(self) -> "Architecture":
        return replace(self, reads_before=False)

    def flops(self, *, rows: float = 1.0, length: int | None = None) -> float:
        """The last block computes keys and values at all positions, the rest (10 of 12 d²) only at the rows."""
        d, l = self.width, length or self.length
        seen = 0.5 if self.causal else 1.0
        whole = 24 * d * d + 4 * l * d * seen
        last = 4 * d * d + rows * (20 * d * d + 4 * l * d * seen)
        return (self.blocks - 1) * whole + last + rows * 2 * d * self.vocab

    @property
    def activations(self) -> float:
        """A block keeps 18 widths per token: two normed copies and their inputs, q, k, v and their rotations, the
        attention's output, and both sides of the GELU (8); dropout's masks add a quarter of a float for two."""
        return self.blocks * self.width * (18 + (0.5 if self.dropout else 0))


class Embedding(nn.Module):
    """A vector for every id."""

    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(vocab, width).uniform_(-1, 1) / math.sqrt(width))

    def forward(self, tokens: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape d"]:
        return F.embedding(tokens, self.embedding)


MOST_NOISE = 1e3  # σ beyond which networks see no difference: a token in e^1000 is visible


class NoiseLevel(nn.Module):
    """σ as a vector: its cosines and sines at 128 frequencies, then an MLP."""

    def __init__(self, cond: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(SINUSOID, cond), nn.SiLU(), nn.Linear(cond, cond))

    def forward(self, sigma: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape c"]:
        half = torch.arange(SINUSOID // 2, dtype=torch.float32, device=sigma.device)
        frequencies = torch.exp(-math.log(10000) * half / (SINUSOID // 2))
        # σ is infinite where nothing is visible: the last step of a schedule that hides everything.
        angles = (sigma.clamp(max=MOST_NOISE)[..., None] * frequencies).to(next(self.parameters()).dtype)
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
        self.adaLN_modulation = modulation(2, a.cond or 0, a.width)
        self.constant = not a.time_conditioning

    def forward(self, x: Float[Tensor, "*shape d"], reading: BlockInputs) -> Float[Tensor, "*shape d"]:
        """The normed hidden states: of all positions, or of the asked rows."""
        if self.adaLN_modulation is None or reading.c is None:
            return normalize(x, self.norm_final.weight)
        if self.constant:
            shift, scale = self.adaLN_modulation(reading.c)[0].chunk(2)
            return normalize(x, self.norm_final.weight * (1 + scale), shift)
        shift, scale = reading.modulated(self.adaLN_modulation, 2)
        if x.dim() == 2:
            shift, scale = reading.own(shift), reading.own(scale)
        return normalize(x, self.norm_final.weight, None, shift, scale)


class Transformer(Backbone):
    """The network of the paper."""

    spec: Architecture
    constants: ClassVar[frozenset[str]] = frozenset({"rotary_emb.inv_freq"})
    stacked: Mapping[str, int] = {"qkv": 3}
    unstacked = ("adaLN",)

    def __init__(self, spec: Architecture) -> None:
        super().__init__()
        a = self.spec = spec
        self.vocab_embed = Embedding(a.vocab, a.width)
        self.sigma_map = NoiseLevel(a.cond) if a.cond else None
        self.rotary_emb = Rotary(a.width // a.heads)
        self.blocks = nn.ModuleList(
            Block(width=a.width, heads=a.heads, cond=a.cond or 0, constant=not a.time_conditioning, dropout=a.dropout)
            for _ in range(a.blocks)
        )
        self.output_layer = Output(a)

    @property
    def units(self) -> list[nn.Module]:
        return list(self.blocks)

    def embed(self, tokens: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape d"]:
        return self.vocab_embed(tokens)

    def forward(self, p: Pass) -> States:
        """Embedding (of tokens), blocks and last norm."""
        x = p.x if p.x.is_floating_point() else self.embed(p.x)
        rotary = self.rotary_emb
        reading = BlockInputs(attend_in(p), rotary.at(p), self.condition(p.sigma), rotary.aimed(p))
        with precision(x.device, self.compute):
            for i, block in enumerate(self.blocks):
                x = self.run_layer(block, x, reading, i, i == len(self.blocks) - 1)
            return reading.attending.states(self.output_layer(x, reading))

    def head(self, hidden: Float[Tensor, "*shape d"]) -> Float[Tensor, "*shape v"]:
        linear = self.output_layer.linear
        weight = self.vocab_embed.embedding if linear.weight is None else linear.weight
        return self.product(hidden, weight, linear.bias)

    def condition(self, sigma: Float[Tensor, "..."] | None) -> Float[Tensor, "..."] | None:
        """The noise level as vectors: (b c) or (b l c), or a single one (1 c) for σ = 0 without time conditioning."""
        if self.sigma_map is None:
            return None
        if not self.spec.time_conditioning:
            return self.sigma_map(torch.zeros(1, device=self.vocab_embed.embedding.device))
        if sigma is None:
            raise ValueError(
                "this network is conditioned on the noise level: give sigma, one number per row or position"
            )
        return self.sigma_map(sigma)

    def freeze(self) -> "Transformer":
        """Prepare for fast inference: no gradients, no dropout, a constant modulation multiplied into the weights.

        Call it again after a change of the weights. `requires_grad_(True)` undoes it.
        """
        self.eval().requires_grad_(False)
        for block in self.modules():
            if isinstance(block, Block):
                block.keep, block.inputs_ready = True, None
        return self


Architecture.network = Transformer
