"""Tiny worlds in which every answer can be written down: the measure of everything else.

Letters are 0..K−1, the mask is K. A world's network has the type `unmask.shapes.Network`: it is asked for rows and
gives logits there (with a finite, meaningless logit at the mask, as a real network would).

    TableWorld    3 letters, length 3, a random answer for each of 64 states: inconsistent on purpose
    ChainWorld    a Markov chain whose denoiser is exact, by forward-backward: consistent, log p(x) known
    TinyNetwork   a random differentiable network, for gradients
"""

from dataclasses import dataclass
from itertools import pairwise, permutations, product
from math import exp, factorial, log

import torch
from numpy.polynomial.legendre import leggauss
from torch import Tensor

DOUBLE = torch.float64


def every_text(letters: int, length: int) -> Tensor:
    """All letters^length clean texts, in order."""
    return torch.tensor(list(product(range(letters), repeat=length)))


@dataclass(frozen=True)
class TableWorld:
    """Logits for each (state, position): 4^3 = 64 states of 3 letters and the mask."""

    table: Tensor  # ((K+1)^l, l, K+1)
    letters: int = 3
    length: int = 3
    mask: int = 3

    @staticmethod
    def random(seed: int = 0) -> "TableWorld":
        generator = torch.Generator().manual_seed(seed)
        return TableWorld(2 * torch.randn(64, 3, 4, generator=generator, dtype=DOUBLE))

    def network(self, x_t: Tensor, sigma: Tensor, rows: Tensor) -> Tensor:
        base = torch.tensor([(self.letters + 1) ** (self.length - 1 - i) for i in range(self.length)])
        state = (x_t * base).sum(1)
        return self.table[state[rows // self.length], rows % self.length]


@dataclass(frozen=True)
class ChainWorld:
    """A Markov chain over letters: p(x) = start[x_1] Π step[x_i, x_{i+1}]."""

    start: Tensor  # (K)
    step: Tensor  # (K, K)
    length: int

    @staticmethod
    def random(seed: int = 0, *, letters: int = 3, length: int = 4) -> "ChainWorld":
        generator = torch.Generator().manual_seed(seed)
        start = torch.randn(letters, generator=generator, dtype=DOUBLE).softmax(-1)
        step = (1.5 * torch.randn(letters, letters, generator=generator, dtype=DOUBLE)).softmax(-1)
        return ChainWorld(start, step, length)

    @property
    def letters(self) -> int:
        return len(self.start)

    @property
    def mask(self) -> int:
        return self.letters

    def nll(self, x: Tensor) -> Tensor:
        """−log p(x) of clean texts (b l)."""
        return -(self.start[x[:, 0]].log() + self.step[x[:, :-1], x[:, 1:]].log().sum(1))

    def posteriors(self, x_t: Tensor) -> Tensor:
        """p(x_i | visible tokens) for every position, by forward-backward: (b, l, K)."""
        b, l = x_t.shape
        seen = torch.nn.functional.one_hot(x_t.clamp(max=self.letters - 1), self.letters).to(DOUBLE)
        evidence = torch.where((x_t == self.mask)[..., None], torch.ones_like(seen), seen)
        forward, backward = [self.start.expand(b, -1)], [torch.ones(b, self.letters, dtype=DOUBLE)]
        for i in range(l - 1):
            forward.append((forward[-1] * evidence[:, i]) @ self.step)
            backward.append((backward[-1] * evidence[:, l - 1 - i]) @ self.step.T)
        weight = torch.stack(forward, 1) * torch.stack(backward[::-1], 1) * evidence
        return weight / weight.sum(-1, keepdim=True)

    def network(self, x_t: Tensor, sigma: Tensor, rows: Tensor) -> Tensor:
        probs = self.posteriors(x_t).flatten(0, 1)[rows]
        # A real network has some logit at the mask too; SUBS must throw it away.
        return torch.cat([probs.clamp(min=1e-300).log(), torch.full((len(rows), 1), 0.7, dtype=DOUBLE)], -1)


class TinyNetwork(torch.nn.Module):
    """A random network of the right type: it mixes all positions and the noise level, and has gradients."""

    def __init__(self, *, letters: int = 3, length: int = 3, width: int = 8, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def random(*shape: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.randn(*shape, generator=generator, dtype=DOUBLE) / shape[-1] ** 0.5)

        self.letters, self.length, self.mask = letters, length, letters
        self.embedding, self.place = random(letters + 1, width), random(length, width)
        self.mix, self.noise, self.head = random(width, length * width), random(width), random(letters + 1, width)

    def forward(self, x_t: Tensor, sigma: Tensor, rows: Tensor) -> Tensor:
        h = self.embedding[x_t] + self.place  # (b, l, d)
        h = torch.tanh(h + (h.flatten(1) @ self.mix.T + sigma[:, None].to(DOUBLE) * self.noise)[:, None])
        return h.flatten(0, 1)[rows] @ self.head.T


def log_p_hidden(world, x_t: Tensor, position: int) -> Tensor:
    """log p(x_position | x_t) over the letters, for one state: the SUBS law, computed without the package."""
    logits = world.network(x_t[None], torch.zeros(1, dtype=DOUBLE), torch.tensor([position]))[0]
    return logits[: world.letters].log_softmax(-1)


def loss_of_mask(world, x0: Tensor, hidden: tuple[int, ...]) -> float:
    """ce(x, M): the cross-entropies of the tokens in M, all of M being hidden."""
    x_t = x0.clone()
    x_t[list(hidden)] = world.mask
    return -sum(float(log_p_hidden(world, x_t, i)[x0[i]]) for i in hidden)


def bound_by_orders(world, x0: Tensor) -> float:
    """The mean over all l! orders of −Σ_j log p(x_{σ_j} | x_{σ_1..j−1}): the bound as a chain rule."""
    l, total = len(x0), 0.0
    for order in permutations(range(l)):
        for j in range(l):
            x_t = x0.clone()
            x_t[list(order[j:])] = world.mask
            total -= float(log_p_hidden(world, x_t, order[j])[x0[order[j]]])
    return total / factorial(l)


def share_hidden(paid, t: Tensor) -> Tensor:
    """The probability that a token is hidden at each time, by bisection: which uniforms make `paid` charge for it.

    `paid(network, x0, t, u, mask)` gives nats per token, such as a bound of one draw.
    """
    low, high = torch.zeros_like(t), torch.ones_like(t)
    x0 = torch.zeros(len(t), 1, dtype=torch.long)
    for _ in range(55):
        u = (low + high) / 2
        hidden = (
            paid(lambda x_t, sigma, rows: torch.zeros(len(rows), 3, dtype=DOUBLE), x0, t, u[:, None], 2)[:, 0] > 0
        )
        low, high = torch.where(hidden, u, low), torch.where(hidden, high, u)
    return (low + high) / 2


def expected(paid, world, x0: Tensor, t: Tensor, weight: Tensor) -> float:
    """Σ weight E[paid at t]: every mask enumerated through its uniforms, with the probability `paid` gives it."""
    l = len(x0)
    masks = torch.tensor([[bool(bits >> i & 1) for i in range(l)] for bits in range(1, 2**l)])
    hidden, k = share_hidden(paid, t)[:, None], masks.sum(1)
    chance = hidden**k * (1 - hidden) ** (l - k)  # (times, masks)
    u = torch.where(masks, 0.0, 1.0).to(DOUBLE)
    x = x0.expand(len(t) * len(masks), -1)
    nats = paid(world.network, x, t.repeat_interleave(len(masks)), u.repeat(len(t), 1), world.mask)
    return float((weight[:, None] * chance * nats.sum(1).view(chance.shape)).sum())


def nodes(start: float = 0.0, end: float = 1.0, *, cells: int = 60, order: int = 12) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes and weights for an integral from start to end, in equal cells."""
    x, w = (torch.tensor(part, dtype=DOUBLE) for part in leggauss(order))
    cell = torch.arange(cells, dtype=DOUBLE)[:, None]
    size = (end - start) / cells
    return (start + ((x + 1) / 2 + cell) * size).flatten(), (w / 2 * size).repeat(cells)


def law_of_random_order(world, start: Tensor | None = None) -> dict[tuple[int, ...], float]:
    """The exact law of revealing one token at a time in uniformly random order, from all masks or from `start`."""
    begin = torch.full((world.length,), world.mask) if start is None else start
    law = {tuple(begin.tolist()): 1.0}
    while any(world.mask in state for state in law):
        after: dict[tuple[int, ...], float] = {}
        for state, chance in law.items():
            masked = [i for i, token in enumerate(state) if token == world.mask]
            for i in masked:
                for letter, p in enumerate(log_p_hidden(world, torch.tensor(state), i).exp().tolist()):
                    filled = (*state[:i], letter, *state[i + 1 :])
                    after[filled] = after.get(filled, 0.0) + chance * p / len(masked)
        law = after
    return law


def law_of_grid(world, hidden: list[float]) -> dict[tuple[int, ...], float]:
    """The exact law of the ancestral sampler on a grid of hidden shares, from 1 down to 0: states, not paths."""
    law = {(world.mask,) * world.length: 1.0}
    for t, s in pairwise(hidden):
        after: dict[tuple[int, ...], float] = {}
        for state, chance in law.items():
            options: list[list[tuple[int, float]]] = []
            for i, token in enumerate(state):
                if token != world.mask:
                    options.append([(token, 1.0)])
                    continue
                reveal = (t - s) / t
                probs = log_p_hidden(world, torch.tensor(state), i).exp().tolist()
                options.append([(world.mask, 1 - reveal), *((v, reveal * p) for v, p in enumerate(probs))])
            for choice in product(*options):
                p = chance
                for _, q in choice:
                    p *= q
                if p > 0:
                    key = tuple(token for token, _ in choice)
                    after[key] = after.get(key, 0.0) + p
        law = after
    return law


def total_variation(p: dict[tuple[int, ...], float], q: dict[tuple[int, ...], float]) -> float:
    return 0.5 * sum(abs(p.get(key, 0.0) - q.get(key, 0.0)) for key in p.keys() | q.keys())


def divergence(p: dict[tuple[int, ...], float], q: dict[tuple[int, ...], float]) -> float:
    """KL(p || q) in nats."""
    return sum(a * log(a / q[key]) for key, a in p.items() if a > 0)


def law_of_chain(world: ChainWorld) -> dict[tuple[int, ...], float]:
    texts = every_text(world.letters, world.length)
    return {tuple(x.tolist()): exp(-float(nll)) for x, nll in zip(texts, world.nll(texts), strict=True)}


def chi_square_p(law: dict[tuple[int, ...], float], draws: Tensor) -> float:
    """The p-value of draws (n l) under a law; outcomes expected fewer than five times share a bin."""
    from scipy.stats import chisquare

    base = int(draws.max()) + 1
    place = base ** torch.arange(draws.shape[1])  # a text as one number: quicker to count
    numbers, times = (draws * place).sum(1).unique(return_counts=True)
    texts = numbers[:, None] // place % base
    seen = {tuple(text): n for text, n in zip(texts.tolist(), times.tolist(), strict=True)}
    assert set(seen) <= {key for key, p in law.items() if p > 0}, "a draw that the law calls impossible"
    pairs = sorted((p * len(draws), seen.get(key, 0)) for key, p in law.items())
    rare = [pair for pair in pairs if pair[0] < 5]
    common = [pair for pair in pairs if pair[0] >= 5]
    if rare:
        merged = (sum(e for e, _ in rare), sum(o for _, o in rare))
        common = (
            [*common, merged]
            if merged[0] >= 5
            else [(common[0][0] + merged[0], common[0][1] + merged[1]), *common[1:]]
        )
    expected, observed = zip(*common, strict=True)
    scale = sum(observed) / sum(expected)
    return float(chisquare(observed, [e * scale for e in expected]).pvalue)
