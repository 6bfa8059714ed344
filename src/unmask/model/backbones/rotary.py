"""Rotary positions: pairs of a head's features are rotated by an angle that grows with the position.

Files pair feature i of a head with feature i + e/2 (`halves`). The transformer brings its weights into another order
(`interleave`), in which the features of a pair are adjacent and a rotation is one complex multiplication.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.errors import UserError
from unmask.model.passing import Pass

Turns = Float[Tensor, "*b l half 2"]  # cosine and sine of each position and pair
THETA = 10_000.0  # the usual base of the angles


def frequencies(features: int, theta: float = THETA, device: torch.device | None = None) -> Float[Tensor, " half"]:
    """The angle per position of each pair i: θ^(−2i/e), e features that are rotated."""
    return 1 / theta ** (torch.arange(0, features, 2, dtype=torch.float32, device=device) / features)


def turns_at(position: Int[Tensor, "*b l"], angles: Float[Tensor, " half"]) -> Turns:
    """The rotations of positions, from the angles per position."""
    turned = position.to(angles.dtype)[..., None] * angles
    return torch.stack((turned.cos(), turned.sin()), -1)


def check_even_heads(width: int, heads: int) -> None:
    """Refuse heads that cannot be rotated pair by pair."""
    if width % (2 * heads):
        raise UserError(
            f"width {width} cannot be split into {heads} heads with an even number of features: make it a multiple "
            f"of {2 * heads}, or change heads."
        )


class Rotary(nn.Module):
    """The rotation of position p, pair i: the angle p · 10000^(−2i/e), e features in a head."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.inv_freq: Tensor
        self.register_buffer("inv_freq", frequencies(features))
        self._tables: dict[tuple[int, torch.device, torch.dtype], Tensor] = {}

    @torch.no_grad()
    def reset_constants(self) -> None:
        """The angles again, after memory for them was made elsewhere."""
        self.inv_freq.copy_(frequencies(2 * len(self.inv_freq), device=self.inv_freq.device))

    def at(self, p: Pass) -> Turns:
        if p.position is None:
            end = p.start + p.x.shape[1]
            return self.turns(end if not p.start else 2 ** end.bit_length())[p.start : end]
        return self.of(p.position)

    def aimed(self, p: Pass) -> Turns | None:
        """The rotations of queries, where elements look from other positions than their own."""
        return None if p.aim is None else self.of(p.aim)

    def of(self, position: Int[Tensor, "*b m"]) -> Turns:
        """The rotations of positions."""
        highest = int(position.max()) if position.numel() else 0
        return self.turns(2 ** highest.bit_length() + 1)[position]

    def turns(self, length: int) -> Turns:
        """The rotations of positions 0 .. length − 1, cached for each length and device."""
        angles = self.inv_freq
        key = (length, angles.device, angles.dtype)
        if key not in self._tables:
            if len(self._tables) >= 16:
                self._tables.clear()
            with torch.inference_mode(False):  # kept for training too
                self._tables[key] = turns_at(torch.arange(length, device=angles.device), angles.detach())
        return self._tables[key]

    def _apply(self, *arguments, **options):  # type: ignore[no-untyped-def]
        self._tables.clear()  # .to(device) and .double() move the frequencies
        return super()._apply(*arguments, **options)

    def _load_from_state_dict(self, *arguments, **options) -> None:  # type: ignore[no-untyped-def]
        self._tables.clear()
        super()._load_from_state_dict(*arguments, **options)


def interleave(weight: Float[Tensor, "d_out d_in"], heads: int) -> Float[Tensor, "d_out d_in"]:
    """Query or key weights with the two halves of every head's output interleaved."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def rotate(
    x: Float[Tensor, "*shape h e"], turns: Float[Tensor, "... half 2"], *, halves: bool = False
) -> Float[Tensor, "*shape h e"]:
    """Rotate each pair of features by its position's angle; `turns` (.. half 2) has no head axis.

    Pairs are adjacent, or in the two `halves`. Features beyond the 2 · half first ones stay as they are.
    """
    rotated = 2 * turns.shape[-2]
    if rotated < x.shape[-1]:
        return torch.cat((rotate(x[..., :rotated], turns, halves=halves), x[..., rotated:]), -1)
    wide, turns = x.to(torch.promote_types(x.dtype, torch.float32)), turns.unsqueeze(-3)
    if not halves and not torch.compiler.is_compiling():  # torch.compile does not support complex numbers
        turned = torch.view_as_complex(wide.unflatten(-1, (-1, 2))) * torch.view_as_complex(turns)
        return torch.view_as_real(turned).flatten(-2).to(x.dtype)
    a, b = wide.chunk(2, -1) if halves else wide.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = turns.unbind(-1)
    parts = (a * cos - b * sin, b * cos + a * sin)
    return (torch.cat(parts, -1) if halves else torch.stack(parts, -1).flatten(-2)).to(x.dtype)
