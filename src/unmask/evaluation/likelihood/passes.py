"""Likelihood with error bars: passes over the data, and their summary so far."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from unmask.diffusion.clean import CleanRows
from unmask.errors import UserError
from unmask.evaluation.likelihood import draws, error_bars
from unmask.evaluation.likelihood.estimators import Estimator
from unmask.model.denoiser import NetworkView
from unmask.processes.cluster import Cluster, Shared
from unmask.processes.team import Team
from unmask.random import Noise, stream
from unmask.shapes import Network
from unmask.text.row import Row

LONGEST = 64  # bytes per word: what has more between white space is no text of words


@dataclass(frozen=True)
class Tally:
    """The nats so far; the arrays of an incomplete pass are filled in place while the loop runs."""

    passages: Sequence[Row]
    estimator: Estimator
    times: tuple[np.ndarray, ...]  # per pass: the time of every row
    nats: tuple[np.ndarray, ...]  # per pass: nats of every row, NaN if not scored yet
    each: Sequence[np.ndarray]  # nats of every token of every row, summed over the passes
    batches: int  # batches done in the last pass
    of: int  # batches in a pass

    @property
    def complete(self) -> bool:
        """Whether the last pass has scored every row."""
        return self.batches == self.of

    @property
    def whole(self) -> int:
        """Passes that have scored every row."""
        return len(self.nats) - (not self.complete)


@dataclass(frozen=True)
class Likelihood:
    """A likelihood (or another number in nats, as `means` says), its error bars and what they are based on."""

    nats_per_token: float
    standard_error: float  # Monte Carlo error
    data_standard_error: float  # Monte Carlo error and choice of text
    interval: tuple[float, float]  # 95 %, Monte Carlo
    tokens: int
    words: float  # of the text, between white space; 0: not counted
    bytes: float
    rows: int
    passes: int
    estimator: str
    exact: bool
    means: str
    partial: bool = False  # stopped before every row was scored once: only the scored rows count
    likelihood: bool = True  # False: the number is no likelihood, so it has no perplexity and no bits per byte
    jensen_gap: float | None = None  # of random orders: how far their mean lies above `weighted`, nats per token
    at_least: float | None = None  # of random orders: a lower bound on the nats per token, in expectation
    at_least_error: float | None = None  # its standard error, Monte Carlo; heavy tails: it may be too small

    @property
    def perplexity(self) -> float | None:
        return math.exp(min(self.nats_per_token, 700.0)) if self.likelihood else None

    @property
    def perplexity_interval(self) -> tuple[float | None, float | None]:
        if not self.likelihood:
            return None, None
        return math.exp(min(self.interval[0], 700.0)), math.exp(min(self.interval[1], 700.0))

    @property
    def nats(self) -> float:
        """Of all scored text."""
        return self.nats_per_token * self.tokens

    @property
    def perplexity_per_word(self) -> float | None:
        """exp of the nats per word of the scored text; the nats of marks such as eos count, but not as words.

        None: the text has hardly any white space, as sequences have, so that there are no words.
        """
        if not self.likelihood or not self.words or self.bytes > LONGEST * self.words:
            return None
        return math.exp(self.nats / self.words) if self.nats / self.words < 700.0 else None

    @property
    def bits_per_byte(self) -> float | None:
        """Bits per byte of the scored text; the nats of marks such as eos count, but not as bytes."""
        if not self.likelihood or not self.bytes:
            return None
        return self.nats / self.bytes / math.log(2)


def batches(passages: Sequence[Row], *, budget: int, seed: int = 0) -> list[list[int]]:
    """The rows of each forward pass: of equal length, so that nothing is padded.

    Batches are in random order, so that the first ones are a fair sample. The list depends on the arguments alone, so
    several processes share the work by taking every n-th entry.
    """
    if budget < 1:
        raise UserError(f"a batch must hold at least one token, not {budget}.")
    batched: list[list[int]] = []
    filling: dict[int, list[int]] = {}
    for number, passage in enumerate(passages):
        length = len(passage.tokens)
        row = filling.get(length)
        if row is None or (len(row) + 1) * length > budget:
            row = filling[length] = []
            batched.append(row)
        row.append(number)
    draws.check_seed(seed)
    draws.check_seed(seed)
    order = stream(seed, draws.BATCH).permutation(len(batched))
    return [batched[i] for i in order]


def carried_batches(passages: Sequence[Row], *, budget: int, seed: int = 0) -> list[list[list[int]]]:
    """For a network with a memory: texts of equal lengths go together, and each of their batches follows another.

    A text is a passage and those that continue it. Texts are in random order, their passages are not.
    """
    texts: list[list[int]] = []
    for number, passage in enumerate(passages):
        if passage.continues and texts:
            texts[-1].append(number)
        else:
            texts.append([number])
    alike: dict[tuple[int, ...], list[list[int]]] = {}
    for text in texts:
        alike.setdefault(tuple(len(passages[number].tokens) for number in text), []).append(text)
    groups = []
    for lengths, some in alike.items():
        size = max(1, budget // max(lengths))
        for start in range(0, len(some), size):
            groups.append([list(rows) for rows in zip(*some[start : start + size], strict=True)])
    draws.check_seed(seed)
    return [groups[i] for i in stream(seed, draws.BATCH).permutation(len(groups))]


Group = list[list[int]]  # batches of rows that follow each other, so that a memory goes from one to the next


@dataclass(frozen=True)
class Scoring:
    """What scores groups of rows: a pure function of the group and of the number of the pass."""

    network: Network
    passages: Sequence[Row]
    estimator: Estimator
    mask: int
    seed: int
    device: torch.device | str

    @property
    def carrying(self) -> bool:
        return isinstance(self.network, NetworkView) and self.network.module.spec.carries

    @torch.no_grad()
    def score(self, groups: Sequence[Group], number: int) -> Iterator[tuple[list[int], np.ndarray]]:
        """The rows of each batch and the nats of their tokens in one pass."""
        t = draws.when(self.seed, len(self.passages), number)
        for group in groups:
            view = self.network
            for rows in group:
                if isinstance(self.network, NetworkView) and self.carrying:
                    memory = view.carried[0] if isinstance(view, NetworkView) and view.carried else None
                    view = replace(self.network, memory=memory, carried=[])
                u = [draws.uniforms(self.seed, row, number, len(self.passages[row].tokens)) for row in rows]
                noise = Noise(torch.from_numpy(t[rows]), torch.from_numpy(np.stack(u)))
                clean = _clean([self.passages[row] for row in rows], noise, self.mask)
                yield rows, _nats(view, self.estimator, clean, self.device)


Score = Callable[[Sequence[Group], int], Iterator[tuple[list[int], np.ndarray]]]
Remote = Callable[[Scoring], Score]  # where else a scoring is done


def on_cluster(cluster: Cluster) -> Remote:
    """Score each group as a task of a cluster."""

    def remote(scoring: Scoring) -> Score:
        shared = cluster.share(scoring)

        def score(groups: Sequence[Group], number: int) -> Iterator[tuple[list[int], np.ndarray]]:
            for scored in cluster.map(_score_group, ((shared, group, number) for group in groups)):
                yield from scored

        return score

    return remote


def _score_group(shared: Shared[Scoring], group: Group, number: int) -> list[tuple[list[int], np.ndarray]]:
    return list(shared.value.score([group], number))


@torch.no_grad()
def evaluate(
    network: Network,
    passages: Sequence[Row],
    estimator: Estimator,
    *,
    mask: int,
    seed: int = 0,
    budget: int = 8192,
    device: torch.device | str = "cpu",
    team: Team | None = None,
    remote: Remote | None = None,
) -> Iterator[Tally]:
    """Pass after pass over the passages, endlessly if the estimator is random; yields after every batch.

    A network that carries a memory (as a `NetworkView`) has that of the passage which a passage continues. A team
    shares the batches of a pass and combines the results when the pass is complete; `remote` scores them elsewhere.

    for tally in evaluate(model.network, passages, estimator("auto"), mask=model.mask):
        if tally.whole == 4: break
    print(summary(tally))
    """
    if not passages:
        raise UserError("there is nothing to score: no row of text.")
    scoring = Scoring(network, passages, estimator, mask=mask, seed=seed, device=device)
    if scoring.carrying:
        work = carried_batches(passages, budget=budget, seed=seed)
    else:
        work = [[rows] for rows in batches(passages, budget=budget, seed=seed)]
    times: tuple[np.ndarray, ...] = ()
    nats: tuple[np.ndarray, ...] = ()
    each = [np.zeros(len(passage.tokens)) for passage in passages]
    shared = work if team is None else work[team.rank :: team.world]  # the same in every pass
    mine = [rows for group in shared for rows in group]
    score = remote(scoring) if remote is not None else scoring.score
    while not nats or estimator.chance:
        number = len(nats)
        paid = np.full(len(passages), np.nan)
        times, nats = (*times, draws.when(seed, len(passages), number)), (*nats, paid)
        for done, (rows, scored) in enumerate(score(shared, number), 1):
            paid[rows] = scored.sum(1)
            for row, tokens in zip(rows, scored, strict=True):
                each[row] += tokens
            if done < len(mine):
                yield Tally(passages, estimator, times, nats, each, done, len(mine))
        together = each
        if team is not None and team.world > 1:
            together = _together(team, paid, each, [row for rows in mine for row in rows], device)
        yield Tally(passages, estimator, times, nats, together, len(mine), len(mine))


def _together(
    team: Team, paid: np.ndarray, each: list[np.ndarray], mine: list[int], device: torch.device | str
) -> list[np.ndarray]:
    """Fill in the nats of the other processes' rows, and return those of every token; adding zeros is exact."""
    own = np.zeros(len(paid))
    own[mine] = paid[mine]
    total = team.sum(torch.from_numpy(np.concatenate([own, *each])).to(device)).cpu().numpy()
    paid[:] = total[: len(paid)]
    return np.split(total[len(paid) :], np.cumsum([len(row) for row in each])[:-1])


def _clean(passages: Sequence[Row], noise: Noise, mask: int) -> CleanRows:
    x0, frozen = (np.stack(rows) for rows in zip(*((p.tokens, p.frozen) for p in passages), strict=True))
    return CleanRows(torch.from_numpy(x0.astype(np.int64)), noise, mask=mask, frozen=torch.from_numpy(frozen))


def _nats(network: Network, estimator: Estimator, clean: CleanRows, device: torch.device | str) -> np.ndarray:
    """Nats (b l) of some rows in one pass, in float64."""
    nats = estimator.nats(network, clean.to(torch.device(device))).double().cpu().numpy()
    if np.isnan(nats).any():
        raise UserError(
            "the network gave NaN: its weights are damaged or its training diverged. "
            "`unmask inspect MODEL` names the weights that are NaN or infinite."
        )
    return nats


def summary(tally: Tally, *, by_document: bool = False) -> Likelihood:
    """The likelihood so far: of complete passes; before the first is complete, of the rows scored."""
    passages, estimator = tally.passages, tally.estimator
    partial = tally.whole == 0
    count = max(tally.whole, 1)
    nats, times = np.stack(tally.nats[:count]), np.stack(tally.times[:count])
    seen = ~np.isnan(nats[0])
    nats, times = nats[:, seen], times[:, seen] * estimator.chance  # exact numbers do not depend on times
    tokens = np.array([p.scored for p in passages], float)[seen]
    words, size = np.array([(p.words, p.bytes) for p in passages], float)[seen].sum(0).tolist()
    if not seen.any():
        raise UserError("nothing has been scored yet.")
    documents = np.array([p.document for p in passages])[seen] if by_document else np.arange(len(tokens))
    total, error, freedom, gap = _combine_passes(nats, tokens, times, estimator)
    return Likelihood(
        nats_per_token=total,
        standard_error=error,
        data_standard_error=error_bars.of_the_data(nats, tokens, times, documents),
        interval=error_bars.interval(total, error, freedom),
        tokens=int(tokens.sum()),
        words=words,
        bytes=size,
        rows=len(tokens),
        passes=count,
        estimator=estimator.name,
        exact=estimator.exact,
        means=estimator.means,
        partial=partial,
        likelihood=estimator.likelihood,
        jensen_gap=gap,
        **other_side(nats, tokens, estimator),
    )


def other_side(nats: np.ndarray, tokens: np.ndarray, estimator: Estimator) -> dict[str, float]:
    """The bound from the other side, where passes are random orders; nothing, where it is below 0."""
    if not estimator.orders or len(nats) < 2 or not np.isfinite(nats).all():
        return {}
    below = float(error_bars.tangent_bound(nats).sum() / tokens.sum())
    if below <= 0:
        return {}
    return {"at_least": below, "at_least_error": error_bars.of_tangent_bound(nats, tokens)}


def _combine_passes(
    nats: np.ndarray, tokens: np.ndarray, times: np.ndarray, estimator: Estimator
) -> tuple[float, float, float, float | None]:
    """Nats per token, their standard error and its degrees of freedom, and Jensen's gap if orders are compared."""
    mean = float(nats.mean(0).sum() / tokens.sum())
    weighted = float(error_bars.log_mean(nats).sum() / tokens.sum())
    if estimator.weighted:
        return weighted, error_bars.of_weighted_orders(nats, tokens), float(nats.size), mean - weighted
    gap = mean - weighted if estimator.orders and len(nats) > 1 else None
    if not estimator.chance:
        return mean, 0.0, 1.0, gap
    error, freedom = error_bars.monte_carlo(nats, tokens, times)
    return mean, error, freedom, gap
