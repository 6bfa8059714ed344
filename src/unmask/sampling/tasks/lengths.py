"""Lengths: how probable each choice of blank lengths is, given the text around the blanks.

    p(lengths | given) ∝ p(given | where the blanks are)        with a flat prior over the choices

The network never sees what fills the blanks. The likelihoods are bounds, estimated by forward passes in rounds. In a
round every choice hides the same given tokens, so the differences between choices have a smaller error than the
likelihoods themselves. Rounds are spent where they matter: all choices get a few, and then only those that may still
be the best, until the best one is known or a limit is reached.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import log

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.diffusion.times import stratified_times
from unmask.model.model import Model
from unmask.random import Noise, keys, seed_of
from unmask.sampling.score import bounds, check_passes
from unmask.text.prompt.template import Lengths

ROUND = 8  # forward passes of a round, at stratified numbers of masks
FEWEST = 6  # rounds of every choice: fewer give no standard error to rely on
MOST = 32  # the limit on forward passes per choice, in multiples of `passes`
DOUBT = 3.0  # standard errors: a choice this close to the best may be the best


@dataclass(frozen=True)
class Posterior:
    """The choices of lengths, most probable first."""

    choices: tuple[Lengths, ...]
    chance: tuple[float, ...]  # p(lengths | given); the sum is 1
    behind: tuple[float, ...]  # log of the ratio of the first chance to this one, in nats
    error: tuple[float, ...]  # standard error of `behind`: Monte Carlo error
    passes: int = 0  # forward passes for the first choice

    @property
    def rivals(self) -> list[int]:
        """The choices that cannot be told apart from the first within their error."""
        pairs = zip(self.behind, self.error, strict=True)
        return [i for i, (behind, error) in enumerate(pairs) if i and behind < DOUBT * error]

    @property
    def note(self) -> str:
        """What to know about the order of the choices; empty: nothing."""
        if not self.rivals:
            return ""
        first, second = lengths_in_words(self.choices[0]), lengths_in_words(self.choices[self.rivals[0]])
        behind, error = self.behind[self.rivals[0]], self.error[self.rivals[0]]
        return (
            f"blanks of {first} and {second} tokens fit about equally well: their log-likelihoods differ by "
            f"{behind:.2f} ± {error:.2f} nats after {self.passes} forward passes. Raise passes to tell them apart."
        )

    def turns(self, taken: Counter[int], without: frozenset[int] = frozenset()) -> Iterator[int]:
        """Choices one after the other, in proportion to their chance, the most probable first.

        The next is the one with the largest chance / (2 taken + 1) [Sainte-Laguë], so that one more candidate never
        changes the lengths of those before it. `taken` counts them and is updated.
        """
        open_ = [i for i in range(len(self.choices)) if i not in without]
        while open_:
            i = max(open_, key=lambda i: self.chance[i] / (2 * taken[i] + 1))
            taken[i] += 1
            yield i

    def lengths(self, n: int) -> list[Lengths]:
        """The lengths of n candidates."""
        return [self.choices[i] for i in islice(self.turns(Counter()), n)]


def lengths_in_words(lengths: Lengths) -> str:
    return "+".join(map(str, lengths))


def weigh(
    model: Model,
    choices: Sequence[Lengths],
    starts: Sequence[Int[Tensor, " _"]],
    marks: Sequence[Bool[Tensor, " _"]] = (),
    *,
    passes: int = 32,
    seed: int = 0,
) -> Iterator[Posterior | None]:
    """None after every batch of forward passes, and last the posterior of the choices.

    starts  the row of each choice, with masks in its blanks
    marks   which of its tokens are marks around the text, and not scored; empty: none
    passes  sets the limit: MOST · passes forward passes per choice
    """
    check_passes(passes)
    frozen = [start == model.mask for start in starts]
    frozen = [blank | mark.to(blank.device) for blank, mark in zip(frozen, marks or frozen, strict=True)]
    given = int((~frozen[0]).sum())
    if len(choices) == 1 or given == 0:
        yield posterior_of(choices, [torch.zeros(2, dtype=torch.float64)] * len(choices), passes=0)
        return
    size = min(ROUND, given)
    most = max(FEWEST, MOST * passes // size)
    target, racing = min(most, max(FEWEST, 2 * passes // size)), list(range(len(choices)))
    fits = [torch.zeros(0, dtype=torch.float64) for _ in choices]
    while True:
        for i in racing:
            more = rounds(model, starts[i], frozen[i], len(fits[i]), target, size=size, seed=seed)
            fits[i] = torch.cat([fits[i], more])
            yield None
        posterior = posterior_of(choices, fits, passes=target * size)
        if not posterior.rivals or target >= most:
            yield posterior
            return
        racing = [choices.index(posterior.choices[i]) for i in [0, *posterior.rivals]]
        target = min(2 * target, most)


def rounds(
    model: Model,
    start: Int[Tensor, " l"],
    frozen: Bool[Tensor, " l"],
    first: int,
    last: int,
    *,
    size: int,
    seed: int,
) -> Float[Tensor, " rounds"]:
    """log p(given | where the blanks are) by each of the rounds first..last − 1."""
    blank = start == model.mask
    some = start.masked_fill(blank, 0 if model.mask else 1)  # any token but the mask: it is never used
    noises = [round_noise(int((~frozen).sum()), size, seed, number) for number in range(first, last)]
    noise = Noise(torch.cat([one.t for one in noises]), torch.cat([one.u for one in noises]))
    key = keys(seed, torch.arange(first * size, last * size))
    estimates = bounds(model, some, frozen, Noise(noise.t, noise.u, key).to(start.device), unseen=blank)
    return estimates.view(-1, size).mean(1).cpu()


def round_noise(given: int, size: int, seed: int, number: int) -> Noise:
    """The random numbers of a round: the same for every choice."""
    source = torch.Generator().manual_seed(seed_of(seed, number))
    t = stratified_times(torch.rand(size, generator=source)).clamp(1e-6, 1 - 1e-6)
    return Noise(t, torch.rand(size, given, generator=source))


def posterior_of(choices: Sequence[Lengths], fits: Sequence[Float[Tensor, " _"]], *, passes: int) -> Posterior:
    """The posterior by the rounds of each choice, compared over the rounds that it shares with the best."""
    most = max(map(len, fits))
    best = max((i for i in range(len(fits)) if len(fits[i]) == most), key=lambda i: float(fits[i].mean()))
    differences = [fits[best][: len(fit)] - fit for fit in fits]
    behind = torch.stack([one.mean() for one in differences])
    order = sorted(range(len(fits)), key=lambda i: (i != best, float(behind[i])))
    chance = (-behind).softmax(0)
    return Posterior(
        tuple(choices[i] for i in order),
        tuple(float(chance[i]) for i in order),
        tuple(float(behind[i]) for i in order),
        tuple(float(differences[i].std() / len(differences[i]) ** 0.5) for i in order),
        passes,
    )


def plausibility(which: Sequence[Hashable], chance: Sequence[float], likely: Sequence[float]) -> list[float]:
    """The scores of candidates: `which` lengths each has, their probability, and its log p(blanks | given)."""
    best: dict[Hashable, float] = {}
    for one, nats in zip(which, likely, strict=True):
        best[one] = max(nats, best.get(one, nats))
    scored = zip(which, chance, likely, strict=True)
    return [log(max(p, 1e-300)) + nats - best[one] for one, p, nats in scored]


def found_posterior(steps: Iterator[Posterior | None]) -> Posterior:
    *_, posterior = steps
    assert posterior is not None
    return posterior
