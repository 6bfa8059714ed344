"""LogitOptions: changes to the network's logits, only at the positions that the policy asks for.

First come changes of the distribution itself: hooks (guidance, constraints), banned tokens, repeated n-grams.
Policies measure confidence on this distribution; the reverse processes of D3PM and SEDD choose positions by the
network's own logits. Then come temperature, top-k and top-p, for the draw alone.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.errors import UserError
from unmask.sampling.patterns.constraint import Constraint
from unmask.sampling.process import Ask

# A function from a question and its logits to new logits: for guidance and constraints.
Hook = Callable[[Ask, Float[Tensor, "n v"]], Float[Tensor, "n v"]]


TEMPERATURES = (1e-6, 1e6)  # beyond them logits overflow, or all become equal


@dataclass(frozen=True)
class LogitOptions:
    """Settings of the draw; the default changes nothing."""

    temperature: float = 1.0  # 0: always the most likely token
    top_k: int | None = None  # keep only the k most likely tokens
    top_p: float = 1.0  # keep the most likely tokens that together have at least this probability
    keep_crossing: bool = True  # top-p keeps the token that crosses the limit; False: drops it, as ReMDM does
    banned: tuple[int, ...] = ()  # tokens that are never drawn
    spacers: tuple[int, ...] = ()  # tokens that begin with a space, for canvases with `spaced` positions
    no_repeat: int | None = None  # n-gram blocking: tokens that would repeat an n-gram of this size lose 20 nats
    repeatable: tuple[int, ...] = ()  # tokens without text: n-grams that contain one may repeat
    hook: Hook | None = None  # applied first: guidance
    constraint: Constraint | None = None  # a pattern that every finished row matches

    def __post_init__(self) -> None:
        coldest, hottest = TEMPERATURES
        if self.temperature != 0 and not coldest <= self.temperature <= hottest:
            raise UserError(
                f"temperature must be 0 (always the most likely token) or lie in {coldest:g} to {hottest:g}; "
                f"saw {self.temperature:g}."
            )
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top-k must keep at least one token; saw {self.top_k}.")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top-p must lie in (0, 1]; saw {self.top_p}.")
        if self.no_repeat is not None and self.no_repeat < 2:
            raise UserError(f"n-gram blocking needs n-grams of at least two tokens; saw {self.no_repeat}.")
        if self.constraint is not None and any(map(self.constraint.uses, self.banned)):
            raise UserError("the constraint may need a banned token: ban it in `over_tokens` instead.")

    def meaning(self, ask: Ask, logits: Float[Tensor, "n v"]) -> Float[Tensor, "n v"]:
        """The logits of the distribution, before temperature and truncation."""
        logits = logits if self.hook is None else self.hook(ask, logits)
        if self.no_repeat is not None:
            known = torch.isin(ask.tokens, ask.tokens.new_tensor([ask.view.mask, *self.repeatable]), invert=True)
            logits = without_repeats(logits, ask.tokens, ask.rows, known, self.no_repeat)
        if self.banned:
            check_banned(self.banned, logits.shape[-1])
            logits = logits.index_fill(-1, torch.tensor(self.banned, device=logits.device), -torch.inf)
        if ask.spaced is not None:
            other = torch.ones(logits.shape[-1], dtype=torch.bool, device=logits.device)
            other[list(self.spacers)] = False
            logits = logits.masked_fill(ask.spaced.flatten()[ask.rows][:, None] & other, -torch.inf)
        return logits

    def sharpen(self, logits: Float[Tensor, "n v"]) -> Float[Tensor, "n v"]:
        """The logits to draw from; at temperature 0 only the most likely token is left."""
        if self.temperature == 0:
            return keep_only(logits, logits.argmax(-1, keepdim=True))
        logits = logits if self.temperature == 1 else logits / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            logits = keep_only(logits, logits.topk(self.top_k, -1).indices)
        return logits if self.top_p == 1 else nucleus(logits, self.top_p, keep_crossing=self.keep_crossing)


def keep_only(logits: Float[Tensor, "n v"], ids: Int[Tensor, "n k"]) -> Float[Tensor, "n v"]:
    """Logits −∞ everywhere but at the kept tokens."""
    return torch.full_like(logits, -torch.inf).scatter(-1, ids, logits.gather(-1, ids))


def nucleus(logits: Float[Tensor, "n v"], mass: float, *, keep_crossing: bool = True) -> Float[Tensor, "n v"]:
    """The most likely tokens up to a total probability, at least one. `keep_crossing` keeps the one that exceeds."""
    return in_pieces(lambda some: nucleus_at_once(some, mass, keep_crossing=keep_crossing), logits)


def nucleus_at_once(logits: Float[Tensor, "n v"], mass: float, *, keep_crossing: bool) -> Float[Tensor, "n v"]:
    value, order = logits.sort(-1, descending=True)
    probs = value.double().softmax(-1)
    total = probs.cumsum(-1)
    dropped = (total - probs >= mass) if keep_crossing else (total > mass)
    dropped[:, 0] = False
    return torch.empty_like(logits).scatter(-1, order, value.masked_fill(dropped, -torch.inf))


def check_banned(ids: tuple[int, ...], size: int) -> None:
    wrong = [i for i in ids if not 0 <= i < size]
    if wrong:
        raise UserError(f"a banned token id must lie in 0..{size - 1}; saw {wrong[0]}.")


COST = 20.0  # nats: a finite penalty, so that a position where every token would repeat is no dead end


def repeats(
    tokens: Int[Tensor, "b w"], rows: Int[Tensor, " n"], known: Bool[Tensor, "b w"], size: int
) -> tuple[Int[Tensor, " k"], Int[Tensor, " k"]]:
    """Pairs (index into `rows`, token) where the token would complete an n-gram that occurs elsewhere in its row.

    An n-gram is `size` adjacent tokens, all of them known. Tokens come in any order, so the missing token may be any
    of them. Not detected: a token that completes the same n-gram twice at once, as in "a _ a".
    """
    width = tokens.shape[1]
    row, position = rows // width, rows % width
    which, token = [rows[:0]], [rows[:0]]
    if width <= size:
        return which[0], token[0]
    runs, whole = tokens.unfold(1, size, 1), known.unfold(1, size, 1)  # (b starts size)
    last = runs.shape[1] - 1
    for place in range(size):
        rest = [i for i in range(size) if i != place]
        start = position - place
        almost = (start >= 0) & (start <= last) & whole[row, start.clamp(0, last)][:, rest].all(-1)
        asked = almost.nonzero().squeeze(-1)
        own, others = runs[row[asked], start[asked]][:, rest], runs[row[asked]]
        same = (others[:, :, rest] == own[:, None]).all(-1) & whole[row[asked]].all(-1)
        one, at = same.nonzero(as_tuple=True)
        which.append(asked[one])
        token.append(others[one, at, place])
    return torch.cat(which), torch.cat(token)


def without_repeats(
    logits: Float[Tensor, "n v"],
    tokens: Int[Tensor, "b w"],
    rows: Int[Tensor, " n"],
    known: Bool[Tensor, "b w"],
    size: int,
) -> Float[Tensor, "n v"]:
    """The logits, less `COST` for tokens that would repeat an n-gram."""
    which, token = repeats(tokens, rows, known, size)
    if not len(which):
        return logits
    return logits.index_put((which, token), logits[which, token] - COST)


NUMBERS = 2**20  # that are worked on at a time: intermediate results in float64 then take little memory


def in_pieces(function: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """A function of rows (n ..), each row by itself, on some rows at a time."""
    size = max(1, NUMBERS // max(1, rows[0].shape[-1]))
    if len(rows[0]) <= size:
        return function(*rows)
    return torch.cat([function(*some) for some in zip(*(one.split(size) for one in rows), strict=True)])


def inverse_cdf(logits: Float[Tensor, "n v"], u: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """The first token whose cumulative probability exceeds u; a token with logit −∞ is never drawn."""
    return in_pieces(inverse_cdf_at_once, logits, u)


def inverse_cdf_at_once(logits: Float[Tensor, "n v"], u: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    top = logits.amax(-1, keepdim=True).double()
    if not bool(torch.isfinite(top).all()):
        raise UserError("no token is possible at a position: all are banned, or the network gave NaN.")
    cdf = (logits.double() - top).exp_().cumsum_(-1)
    total = cdf[:, -1:].contiguous()
    token = torch.searchsorted(cdf, u.double()[:, None] * total, right=True)
    # u·total may round up to the total itself: take the last token with probability above 0, not the one past it.
    return torch.minimum(token, torch.searchsorted(cdf, total)).squeeze(-1)
