"""Visible tokens: passes of networks in which a masked position is a key for nobody but itself.

Nobody sees a mask that is not asked for, so a pass without it gives the same states. A question at a few positions
then costs the visible and the asked ones: half of the arithmetic over a whole text, next to nothing at its start.
A token that is drawn changes the states of all others, so nothing can be remembered from call to call exactly.
"""

from dataclasses import replace

from unmask.model.passing import Pass

WORTH = 0.9  # share of the elements above which leaving the others out saves less than it costs


def without_masks(p: Pass, mask: int) -> Pass:
    """The pass without masks that are not wanted, and without padding; its states are the same."""
    l = p.x.shape[1]
    if p.wanted is None or not l:
        return p
    row, column = p.wanted // l, p.wanted % l
    x = p.x if p.lengths is None else p.x.where(p.positions < p.lengths[:, None], mask)
    needed = x != mask
    needed[row, column] = True
    m = int(needed.sum(1).max())
    if m > WORTH * l:
        return p
    # Rows with fewer elements are filled up with masks: these are seen by nobody.
    order = (~needed).int().argsort(dim=1, stable=True)[:, :m]
    sigma = p.sigma.gather(1, order) if p.sigma is not None and p.sigma.dim() == 2 else p.sigma
    place = needed.cumsum(1) - 1
    wanted = row * m + place[row, column]
    return replace(p, x=x.gather(1, order), position=order, sigma=sigma, lengths=None, wanted=wanted)
