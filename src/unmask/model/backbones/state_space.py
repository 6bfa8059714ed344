"""The layer of Mamba: a gated selective state space between two projections. Parameters have the published names."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.model.backbone import Backbone
from unmask.model.scan.selective import CHUNK, selective_scan

DELTA_MIN, DELTA_MAX, DELTA_FLOOR = 1e-3, 0.1, 1e-4  # range of the first Δ, and its smallest value


@dataclass(frozen=True)
class Size:
    """The sizes of a layer."""

    width: int  # features per position
    state: int  # numbers that each channel remembers
    kernel: int  # positions of the convolution
    expand: int  # channels per feature
    rank: int  # features from which Δ is computed

    @property
    def channels(self) -> int:
        return self.expand * self.width

    @property
    def activations(self) -> float:
        """Floats per token that one direction keeps: nine per channel, and the states of the scan."""
        return self.channels * (9 + self.state / CHUNK)

    @property
    def flops(self) -> float:
        """FLOPs per token of one direction, without the projections in and out."""
        e, n, r = self.channels, self.state, self.rank
        return 2 * self.kernel * e + 2 * e * (r + 2 * n) + 2 * r * e + 9 * e * n

    @property
    def projection_flops(self) -> float:
        return 6 * self.width * self.channels


@dataclass(frozen=True)
class Past:
    """What a layer remembers of the tokens it has read."""

    inputs: Float[Tensor, "b k1 e"]  # the last inputs of the convolution
    state: Float[Tensor, "b e n"]

    def take(self, rows: Int[Tensor, " n"]) -> "Past":
        return Past(self.inputs[rows], self.state[rows])


class RMSNorm(nn.Module):
    """x / sqrt(mean x² + eps) · weight, in float32 or wider."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Float[Tensor, "*shape d"]) -> Float[Tensor, "*shape d"]:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return F.rms_norm(wide, self.weight.shape, self.weight.to(wide.dtype), self.eps)


class Mixer(nn.Module):
    """Convolution and scan in one direction; a layer whose projections belong to another one has none itself."""

    def __init__(self, size: Size, *, layers: int, projections: bool = True) -> None:
        super().__init__()
        e, n, r = size.channels, size.state, size.rank
        self.size = size
        self.in_proj = nn.Linear(size.width, 2 * e, bias=False) if projections else None
        self.conv1d = nn.Conv1d(e, e, size.kernel, groups=e)
        self.x_proj = nn.Linear(e, r + 2 * n, bias=False)
        self.dt_proj = nn.Linear(r, e)
        self.A_log = nn.Parameter(torch.log(torch.arange(1, n + 1, dtype=torch.float32)).repeat(e, 1))
        self.D = nn.Parameter(torch.ones(e))
        self.out_proj = nn.Linear(e, size.width, bias=False) if projections else None
        with torch.no_grad():
            self.dt_proj.weight.uniform_(-(r**-0.5), r**-0.5)
            delta = torch.exp(torch.empty(e).uniform_(math.log(DELTA_MIN), math.log(DELTA_MAX))).clamp(
                min=DELTA_FLOOR
            )
            self.dt_proj.bias.copy_(delta + torch.log(-torch.expm1(-delta)))  # the inverse of softplus
            if self.out_proj is not None:
                self.out_proj.weight /= math.sqrt(layers)

    def scanned(self, u: Float[Tensor, "b l e"], past: Past | None = None) -> tuple[Float[Tensor, "b l e"], Past]:
        """The output of every channel, before the gate; goes on after `past`."""
        size, k = self.size, self.size.kernel - 1
        before = u.new_zeros(len(u), k, size.channels) if past is None else past.inputs.to(u.dtype)
        inputs = torch.cat((before, u), 1)
        u = F.silu(self.conv1d(inputs.transpose(1, 2)).transpose(1, 2).contiguous())  # what follows reads by channels
        low, b, c = self.x_proj(u).split([size.rank, size.state, size.state], -1)
        delta = F.softplus(self.dt_proj(low))
        a = -torch.exp(self.A_log.to(torch.promote_types(self.A_log.dtype, torch.float32)))
        y, state = selective_scan(u, delta, a, b, c, None if past is None else past.state)
        return torch.addcmul(y, self.D, u.to(y.dtype)), Past(inputs[:, inputs.shape[1] - k :].detach(), state)


class MixerNetwork(Backbone):
    """A network of mixers: the small matrices around Δ are left to AdamW, the logarithms of A do not decay."""

    stacked: Mapping[str, int] = {"in_proj": 2}
    unstacked = ("x_proj", "dt_proj", "A_log", "adaLN")

    def decays(self, name: str, p: nn.Parameter) -> bool:
        return p.ndim >= 2 and not name.endswith("A_log")
