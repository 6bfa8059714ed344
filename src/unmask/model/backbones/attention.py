"""Rotary positions."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.model.passing import Pass

# Order of a head's features for the rotation: pairs (first half, second half) are adjacent, so that each pair is
# one complex number and a rotation is one multiplication. `interleave` brings weights into that order.
Turns = Float[Tensor, "*b l half 2"]  # cosine and sine of each position and pair


class Rotary(nn.Module):
    """The rotation of position p, pair i: the angle p · 10000^(−2i/e), e features in a head."""

    def __init__(self, features: int) -> None:
        super().__init__()
        exponents = torch.arange(0, features, 2, dtype=torch.float32) / features
        self.inv_freq: Tensor
        self.register_buffer("inv_freq", 1 / 10000**exponents)
        self._tables: dict[tuple[int, torch.device, torch.dtype], Tensor] = {}

    def at(self, p: Pass) -> Turns:
        """The rotations of the elements of a pass."""
        if p.position is None:
            end = p.start + p.x.shape[1]
            return self.turns(end if not p.start else 2 ** end.bit_length())[p.start : end]
        highest = int(p.position.max()) if p.position.numel() else 0
        return self.turns(2 ** highest.bit_length() + 1)[p.position]

    def turns(self, length: int) -> Turns:
        """The rotations of positions 0 .. length − 1, cached for each length and device."""
        key = (length, self.inv_freq.device, self.inv_freq.dtype)
        if key not in self._tables:
            if len(self._tables) >= 16:
                self._tables.clear()
            with torch.inference_mode(False):  # kept for training too
                positions = torch.arange(length, device=self.inv_freq.device, dtype=self.inv_freq.dtype)
                angles = positions[:, None] * self.inv_freq.detach()
                self._tables[key] = torch.stack((angles.cos(), angles.sin()), -1)
        return self._tables[key]

    def _apply(self, *arguments, **options):  # type: ignore[no-untyped-def]
        self._tables.clear()  # .to(device) and .double() move the frequencies
        return super()._apply(*arguments, **options)

    def _load_from_state_dict(self, *arguments, **options) -> None:  # type: ignore[no-untyped-def]
        self._tables.clear()
        super()._load_from_state_dict(*arguments, **options)


def interleave(weight: Float[Tensor, "d_out d_in"], heads: int) -> Float[Tensor, "d_out d_in"]:
    """Query or key weights with the two halves of every head's output interleaved."""
    rows, columns = weight.shape
    return weight.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def rotate(x: Float[Tensor, "*shape h e"], turns: Float[Tensor, "... half 2"]) -> Float[Tensor, "*shape h e"]:
    """Rotate each interleaved pair of features by its position's angle; `turns` (.. e/2 2) has no head axis."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32)).unflatten(-1, (-1, 2))
    turns = turns.unsqueeze(-3)
    if not torch.compiler.is_compiling():
        turned = torch.view_as_complex(wide) * torch.view_as_complex(turns)
        return torch.view_as_real(turned).flatten(-2).to(x.dtype)
    (a, b), (cos, sin) = wide.unbind(-1), turns.unbind(-1)  # torch.compile does not support complex numbers
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2).to(x.dtype)
