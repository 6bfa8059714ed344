"""Rules: who sees whom in a pass, as a mask over its elements and over what is remembered."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.errors import UserError
from unmask.model.key_values import Writing
from unmask.model.passing import Blocks, Causal, Full, Pass, Rule, Sees, Within


def rule_of(sees: Sees, p: Pass, writing: Writing | None) -> Bool[Tensor, "*_ m keys"] | None:
    """Who sees whom among the elements and the slots of the memory; None: everybody everything."""
    m, device = p.x.shape[1], p.x.device
    if writing is None or (not writing.columns and writing.slots is None):
        return elements_rule(sees, p)
    if isinstance(sees, Rule) and sees.visible.shape[-1] > m:
        return sees.visible
    before, old = writing.before, writing.before.seen
    own, past = elements_rule(sees, p), None
    local = isinstance(sees, Blocks | Within)  # by position, so it also says who sees which slots of the memory
    if writing.slots is None and own is None and not local and old is None:
        return None
    places = torch.arange(before.low, before.low + writing.columns, device=device)
    if local:
        past = by_position(sees, p.positions, places)
    if own is None:
        own = torch.ones(m, m, dtype=torch.bool, device=device)
    if past is None:
        past = torch.ones(m, len(places), dtype=torch.bool, device=device)
    if old is not None or writing.slots is not None:
        b = len(old) if old is not None else len(p.positions) if p.positions.dim() == 2 else 1
        there = torch.zeros(b, len(places), dtype=torch.bool, device=device)
        there[:, : before.end - before.low] = True if old is None else old
        past = past & there[:, None]
    if writing.slots is None:
        shape = past.shape if past.dim() >= own.dim() else (*own.shape[:-1], past.shape[-1])
        return torch.cat((past.expand(shape), own.expand(*shape[:-1], m)), -1)
    return placed_rule(past, own, writing)


def placed_rule(past: Bool[Tensor, "_ m slots"], own: Bool[Tensor, "*_ m m"], writing: Writing) -> Tensor:
    """The rule of elements, of which the remembered ones are in slots among those of the memory."""
    assert writing.slots is not None
    b, keep, m = len(writing.slots), writing.keep, writing.size
    rule = torch.cat((past.expand(b, -1, -1), past.new_zeros(b, m, m - keep)), -1)
    rest = torch.arange(writing.columns, writing.columns + m - keep, device=past.device).expand(b, -1)
    columns = torch.cat((writing.slots - writing.before.low, rest), -1)
    return rule.scatter(2, columns[:, None].expand(b, m, m), own.expand(b, m, m))


def elements_rule(sees: Sees, p: Pass) -> Tensor | None:
    """Who sees whom among the elements of a pass; None: everybody all."""
    match sees:
        case Full():
            return None
        case Causal():
            m = p.x.shape[1]
            return None if m == 1 else forward_rule(m, p.x.device)
        case Rule(visible):
            return visible
    return by_position(sees, p.positions, p.positions)


def forward_rule(m: int, device: torch.device) -> Bool[Tensor, "m m"]:
    """Each of m elements sees itself and those before it."""
    return torch.ones(m, m, dtype=torch.bool, device=device).tril()


def by_position(sees: Sees, position: Int[Tensor, "*b m"], keys: Int[Tensor, "... k"]) -> Bool[Tensor, "... m k"]:
    query, key = position[..., :, None], keys[..., None, :]
    match sees:
        case Blocks(size):
            return query // size >= key // size
        case Within(n):
            return (query - key).abs() <= n
    raise TypeError(f"{sees} is no rule of positions")


def visible_keys(x: Tensor, mask: int) -> Rule:
    """Who sees whom where a masked element is a key for itself alone."""
    if x.is_floating_point():
        raise UserError(
            "this network hides masks from each other (model.visible_keys), so it reads tokens: it cannot be given "
            "vectors in their place, as embedding diffusion and guidance by a classifier's gradient do."
        )
    return Rule((x != mask)[:, None, :] | torch.eye(x.shape[1], dtype=torch.bool, device=x.device))


def both_rules(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Both attention rules combined, if there are two."""
    if a is None or b is None:
        return a if b is None else b
    return a & b
