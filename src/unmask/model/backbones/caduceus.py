"""Caduceus: Mamba layers that read a row in both directions, for DNA; with `equivariant`, both strands as well.

The reverse direction shares the projections of the forward one, so these are computed once. `equivariant` is the
published Caduceus-PS: the reverse complement of a row gives the reversed and complemented logits. A position then has
two halves: the features of the forward strand, and those of the other strand in reverse order. Inside, the strands
are one batch. Without it, the network is Caduceus-Ph; with `cond`, each layer is modulated by the noise level (the
reference's DiMamba).

On a CPU in float32 the logits of both strands are equal bit for bit where features and positions fill vector
registers: at widths that are multiples of 16, and at the width 118 with 200 positions. Elsewhere the numbers that are
left over are rounded by their place, and logits differ by less than 1e-6 of the largest one.
"""

import math
import re
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.errors import UserError
from unmask.model.backbone import BACKBONES, Spec, precision
from unmask.model.backbones.block import drop_some, modulation
from unmask.model.backbones.layers import Embeddings
from unmask.model.backbones.state_space import Mixer, MixerNetwork, RMSNorm, Size
from unmask.model.backbones.transformer import COND, NoiseLevel
from unmask.model.passing import Pass, States
from unmask.registry import derived
from unmask.text.tokens import bases
from unmask.text.tokens.tokenizer import Tokenizer

DNA = "0-3 1-2"  # A-T and C-G of the tokenizer dna


@BACKBONES.register(
    "caduceus", "Mamba layers that read both ways, for DNA; optionally equivariant to its two strands"
)
@dataclass(frozen=True)
class CaduceusSpec(Spec):
    """The shape of a Caduceus."""

    vocab: int = derived(1)  # ids, the mask included
    length: int = derived(1024)  # positions of a training row; other lengths run as well
    width: int = 128  # features per position and strand
    blocks: int = 4  # layers
    state: int = 16  # numbers that each channel remembers
    kernel: int = 4  # positions of the convolution
    expand: int = 2  # channels per feature
    rank: int = 0  # features from which the step size is computed; 0: a sixteenth of the width
    combine: Literal["add", "multiply"] = "add"  # how the outputs of the two directions are combined
    shared: bool = True  # both directions have the same projections
    equivariant: bool = False  # treat both strands of DNA alike (Caduceus-PS)
    exchange: bool = True  # if equivariant: exchange the strands before every layer, as the published weights need
    complement: str = DNA  # if equivariant: pairs of complementary ids; the default becomes the tokenizer's A-T, C-G
    tied: bool = True  # the head reuses the embedding
    cond: int = 0  # features of the noise level that modulate the layers (adaLN); 0: none
    time_conditioning: bool = False  # give the network the noise level as input; needs cond > 0
    eps: float = 1e-5  # added to the mean square in norms
    dropout: float = 0.0  # dropout probability on the output of a layer, in training
    causal: bool = derived(False)  # never: it reads both ways

    def __post_init__(self) -> None:
        self.check_sizes("state", "kernel", "expand")
        if self.causal:
            raise UserError(
                "the backbone 'caduceus' reads both ways, so it cannot predict the next token: choose the backbone "
                "'mamba', or another objective."
            )
        if self.cond < 0:
            raise UserError(f"cond must be 0 (no modulation) or more, not {self.cond}.")
        if self.time_conditioning and not self.cond:
            raise UserError(f"time_conditioning needs features for the noise level: set cond (for example {COND}).")
        if self.equivariant and self.cond:
            raise UserError("an equivariant Caduceus has no modulation by the noise level: set cond = 0.")

    @property
    def shown_sigma(self) -> bool:
        return self.time_conditioning

    @property
    def conjoins(self) -> bool:
        return not self.equivariant

    def shown(self, sigma: bool) -> "CaduceusSpec":
        if sigma == self.time_conditioning:
            return self
        if sigma and self.equivariant:
            raise UserError(
                "an equivariant Caduceus cannot take the noise level as input; choose another objective or leave "
                "equivariant out."
            )
        return replace(self, time_conditioning=sigma, cond=(self.cond or COND) if sigma else self.cond)

    def reading(self, tokenizer: Tokenizer) -> "CaduceusSpec":
        """The complement is that of the tokenizer's bases, unless another one was chosen."""
        if not self.equivariant or self.complement != DNA:
            return self
        table = bases.complement(tokenizer)
        if table is None:
            raise UserError(
                "an equivariant Caduceus needs a vocabulary of bases, and this tokenizer has another: use the "
                "tokenizer dna or caduceus, or give the pairs of complementary ids as complement."
            )
        pairs = [f"{id}-{other}" for id, other in enumerate(table.tolist()) if id < other]
        return replace(self, complement=" ".join(pairs))

    @property
    def size(self) -> Size:
        return Size(self.width, self.state, self.kernel, self.expand, self.rank or math.ceil(self.width / 16))

    @property
    def strands(self) -> int:
        return 2 if self.equivariant else 1

    @property
    def partners(self) -> dict[int, int]:
        """The complement of every id that is in a pair; all others are their own."""
        partners: dict[int, int] = {}
        for pair in self.complement.split():
            ids = re.fullmatch(r"([0-9]{1,8})-([0-9]{1,8})", pair)
            one, other = (-1, -1) if ids is None else (int(ids[1]), int(ids[2]))
            if ids is None or max(one, other) >= self.vocab:
                raise UserError(
                    f"complement has the pair {pair!r:.40}: write pairs of ids from 0 to {self.vocab - 1}, such as "
                    "'0-3 1-2'."
                )
            if {one, other} & partners.keys():
                raise UserError(f"complement is {self.complement!r:.60}: an id may be in one pair only.")
            partners |= {one: other, other: one}
        return partners

    def flops(self, *, rows: float = 1.0, length: int | None = None) -> float:
        once = self.shared and self.combine == "add"
        layer = self.size.projection_flops * (1 if once else 2) + 2 * self.size.flops
        return self.strands * (self.blocks * layer + rows * 2 * self.width * self.vocab)

    @property
    def activations(self) -> float:
        """A layer keeps three widths, the gate, and the channels of both directions."""
        layer = 3 * self.width + 2 * self.size.channels + 2 * self.size.activations
        return self.strands * self.blocks * layer


class BothWays(nn.Module):
    """Two mixers, one of which reads the row from its end."""

    def __init__(self, a: CaduceusSpec) -> None:
        super().__init__()
        self.add = a.combine == "add"
        self.mamba_fwd = Mixer(a.size, layers=a.blocks)
        self.mamba_rev = Mixer(a.size, layers=a.blocks, projections=not a.shared)

    def forward(self, x: Float[Tensor, "b l d"], back: Int[Tensor, "b l"] | None) -> Float[Tensor, "b l d"]:
        one, other = self.mamba_fwd, self.mamba_rev
        assert one.in_proj is not None
        assert one.out_proj is not None
        u, gate = one.in_proj(x).chunk(2, -1)
        # Of a strided tensor, equal numbers are rounded differently at different places: strands would not be equal.
        gate = other_gate = F.silu(gate.contiguous())
        other_u, out = u, one.out_proj
        if other.in_proj is not None and other.out_proj is not None:
            other_u, other_gate = other.in_proj(x).chunk(2, -1)
            other_gate, out = F.silu(other_gate.contiguous()), other.out_proj
        y, _ = one.scanned(u)
        other_y, _ = other.scanned(reverse(other_u, back))
        other_y = reverse(other_y, back)
        if self.add and out is one.out_proj:
            return out((y + other_y) * gate)
        first, second = one.out_proj(y * gate), out(other_y * other_gate)
        return first + second if self.add else first * second


class CaduceusBlock(nn.Module):
    """Norm, mixer and residual connection, with the noise level's modulation if there is one."""

    def __init__(self, a: CaduceusSpec) -> None:
        super().__init__()
        self.dropout = a.dropout
        self.norm = RMSNorm(a.width, a.eps)
        self.mixer = BothWays(a)
        self.adaLN_modulation = modulation(3, a.cond, a.width)

    def forward(
        self, x: Float[Tensor, "b l d"], back: Int[Tensor, "b l"] | None, c: Float[Tensor, "..."] | None
    ) -> Float[Tensor, "b l d"]:
        h, gate = self.norm(x), None
        if self.adaLN_modulation is not None and c is not None:
            shift, scale, gate = self.adaLN_modulation(c).chunk(3, -1)
            h = torch.addcmul(shift, h, 1 + scale)
        out = self.mixer(h, back)
        if self.training and self.dropout:
            out = drop_some(out, self.dropout)
        return x + out if gate is None else x + gate * out


class Caduceus(MixerNetwork):
    """The network that reads both ways. With two strands, hidden states have twice the width."""

    spec: CaduceusSpec

    def __init__(self, spec: CaduceusSpec) -> None:
        super().__init__()
        a = self.spec = spec
        self.embeddings = Embeddings(a.vocab, a.width)
        self.sigma_map = NoiseLevel(a.cond) if a.cond else None
        self.layers = nn.ModuleList(CaduceusBlock(a) for _ in range(a.blocks))
        self.norm_f = RMSNorm(a.width, a.eps)
        self.adaLN_modulation_final = modulation(2, a.cond, a.width)
        self.lm_head = None if a.tied else nn.Linear(a.width, a.vocab, bias=False)
        self.partners = a.partners if a.equivariant else {}

    @property
    def copies(self) -> dict[str, str]:
        copies = {"lm_head.weight": "embeddings.word_embeddings.weight"} if self.spec.tied else {}
        if self.spec.shared:
            for i in range(len(self.layers)):
                for name in ("in_proj", "out_proj"):
                    mixer = f"layers.{i}.mixer"
                    copies[f"{mixer}.mamba_rev.{name}.weight"] = f"{mixer}.mamba_fwd.{name}.weight"
        return copies

    def complement(self, device: torch.device) -> Int[Tensor, " v"]:
        ids = torch.arange(self.spec.vocab, device=device)
        ids[list(self.partners)] = torch.tensor(list(self.partners.values()), device=device, dtype=ids.dtype)
        return ids

    def embed(self, tokens: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape e"]:
        """The vectors of tokens; with two strands, also that of the complement, its features in reverse order."""
        table = self.embeddings.word_embeddings
        if not self.spec.equivariant:
            return table(tokens)
        return torch.cat((table(tokens), table(self.complement(tokens.device)[tokens]).flip(-1)), -1)

    def forward(self, p: Pass) -> States:
        x = p.x if p.x.is_floating_point() else self.embed(p.x)
        back, c = backwards(p.lengths, x.shape[1]), self.condition(p.sigma)
        if not self.spec.equivariant:
            return States(self.last(self.through(x, back, c), c, p.wanted))
        one, other = x.chunk(2, -1)
        twice = None if back is None else torch.cat((back, back))
        one, other = self.through(torch.cat((one, reverse(other.flip(-1), back))), twice, c).chunk(2)
        other = self.last(reverse(other, back), c, p.wanted)
        return States(torch.cat((self.last(one, c, p.wanted), other.flip(-1)), -1))

    def through(
        self, x: Float[Tensor, "b l d"], back: Int[Tensor, "b l"] | None, c: Float[Tensor, "..."] | None
    ) -> Float[Tensor, "b l d"]:
        """The residual stream after the last layer; two strands are the two halves of the batch."""
        with precision(x.device, self.compute):
            for block in self.layers:
                if self.spec.equivariant and self.spec.exchange:
                    x = reverse(x.flip(-1), back).roll(len(x) // 2, 0)
                x = self.run_layer(block, x, back, c)
        return x

    def last(
        self, x: Float[Tensor, "b l d"], c: Float[Tensor, "..."] | None, rows: Int[Tensor, " n"] | None
    ) -> Float[Tensor, "b l d"] | Float[Tensor, "n d"]:
        """The last norm, at all positions or at some rows."""
        shape = x.shape
        h = self.norm_f(x if rows is None else x.flatten(0, 1)[rows])
        if self.adaLN_modulation_final is None or c is None:
            return h
        both = self.adaLN_modulation_final(c).expand(*shape[:2], -1)
        shift, scale = (both if rows is None else both.flatten(0, 1)[rows]).chunk(2, -1)
        return torch.addcmul(shift, h, 1 + scale)

    def condition(self, sigma: Float[Tensor, "..."] | None) -> Float[Tensor, "..."] | None:
        """The noise level as vectors, (b 1 c) or (b l c), or (1 1 c) for σ = 0 without time conditioning."""
        if self.sigma_map is None:
            return None
        if not self.spec.time_conditioning:
            return self.sigma_map(torch.zeros(1, 1, device=self.device))
        if sigma is None:
            raise ValueError(
                "this network is conditioned on the noise level: give sigma, one number per row or position"
            )
        return self.sigma_map(sigma if sigma.dim() == 2 else sigma[:, None])

    def head(self, hidden: Float[Tensor, "*shape e"]) -> Float[Tensor, "*shape v"]:
        """Logits; with two strands the sum of both, where the other strand votes for the complement."""
        weight = self.embeddings.word_embeddings.weight if self.lm_head is None else self.lm_head.weight
        kind = torch.promote_types(hidden.dtype, torch.float32)
        if self.spec.equivariant:
            one, other = hidden.chunk(2, -1)
            hidden = torch.stack((one, other.flip(-1)))
            if hidden.device.type == "cpu" and self.compute in (None, torch.float32):
                # A product of matrices rounds a row by its place, and a strand has the other's rows in reverse.
                hidden, weight = hidden.double(), weight.double()
        with precision(hidden.device, self.compute):
            logits = F.linear(hidden, weight)
        logits = logits.to(kind)
        return logits[0] + logits[1][..., self.complement(logits.device)] if self.spec.equivariant else logits

    def pool(self, hidden: Float[Tensor, "b l e"], lengths: Int[Tensor, " b"] | None = None) -> Float[Tensor, "b d"]:
        """The mean over real positions, and over strands if there are two: the same for the reverse complement."""
        mean = super().pool(hidden, lengths)
        if not self.spec.equivariant:
            return mean
        one, other = mean.chunk(2, -1)
        return (one + other.flip(-1)) / 2


def backwards(lengths: Int[Tensor, " b"] | None, l: int) -> Int[Tensor, "b l"] | None:
    """The order of positions that reverses the real ones of each row and leaves padding where it is; None: all."""
    if lengths is None or bool((lengths == l).all()):
        return None
    at, end = torch.arange(l, device=lengths.device), lengths[:, None]
    return torch.where(at < end, end - 1 - at, at)


def reverse(x: Float[Tensor, "b l f"], back: Int[Tensor, "b l"] | None) -> Float[Tensor, "b l f"]:
    """Rows from their ends."""
    return x.flip(1) if back is None else x.gather(1, back[..., None].expand(-1, -1, x.shape[-1]))


CaduceusSpec.network = Caduceus
