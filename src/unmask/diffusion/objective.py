"""Objective: the loss, the reported bound, and the facts that other rooms need.

An objective is a frozen dataclass in its own file, registered under a name. Its `nats` is the only place that defines
the loss: training minimises it, validation and evaluation report it, tests enumerate and mutate it. It is a pure
function: random numbers, learned parts and state come with the rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, final

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.diffusion.clean import CleanRows
from unmask.diffusion.kernel import Kernel
from unmask.diffusion.kernels.absorbing import Absorbing
from unmask.diffusion.rows import forbid
from unmask.diffusion.schedule import Schedule
from unmask.diffusion.times import Times
from unmask.registry import Registry
from unmask.shapes import RowLogits, Tokens


class Nats(NamedTuple):
    """Nats per token (b l), never averaged: divide sums by the number of tokens of the whole step."""

    loss: Float[Tensor, "b l"]  # minimised in training
    bound: Float[Tensor, "b l"]  # reported: an unbiased estimate of the bound on −log p, or what `means` says
    seen: Mapping[str, Tensor] = {}  # sums over these rows, for `advance`


@dataclass(frozen=True)
class Facts:
    """Properties of an objective that other rooms ask for instead of its name."""

    gives: frozenset[str] = frozenset({"masks", "conditionals"})  # to samplers, in the words below
    sampler: str = "first-hitting"  # the sampler that is its own reverse process
    likelihood: bool = True  # the reported number is −log p or a bound on it; False: a loss, for training only
    exact: bool = False  # the bound is −log p itself: no Monte Carlo error, no gap
    noisy: bool = True  # the bound of one draw has a Monte Carlo error
    infills: bool = True  # blanks may be anywhere, with text on both sides
    loss_needs_sigma: bool = False  # the loss itself uses the noise level σ
    network_wants_sigma: bool = False  # prefers a network that takes σ as input, where the network `offers_sigma`
    asked: float = 0.5  # mean share of a row's positions whose logits a training step computes
    optimizer: str = "adamw"  # the optimizer that trains it best (docs/results.md)
    unused: frozenset[str] = frozenset()  # parts of the network that it does not use: "embedding", "head"

    # What a network gives to samplers (sampling/fitting.py). Other packages may add words of their own.
    #   masks             predictions of tokens where the text has masks
    #   conditionals      of masks: softmax of the logits without the mask is p(x_0 | x_t), any masked sampler applies
    #   quality           of masks: at a drawn token, whether it is right, in the logit of the mask
    #   blocks            predictions of one block at a time, given the clean text before it
    #   orders            of masks: the visible tokens are read in an order, each once, and remembered
    #   one stream        of orders: a token is read with the place of the next one, which it predicts
    #   two streams       of orders: blanks are asked apart from the tokens that are read
    #   next token        predictions from the tokens before it alone
    #   kernel            predictions of every token, to be redrawn by the kernel's step
    #   mass on the mask, scores, levels by token     what D3PM, SEDD and DiffusionBERT say of masks beside the above
    #   vectors, embeddings, simplex                  estimates of clean vectors: of embeddings, or on the simplex

    @property
    def causal(self) -> bool:
        """Whether a token is predicted from those before it: the network must not look ahead."""
        return "next token" in self.gives

    @property
    def conditionals(self) -> bool:
        """Whether softmax of the logits without the mask is p(x_0 | x_t)."""
        return "conditionals" in self.gives

    @property
    def blockwise(self) -> bool:
        """Whether masks of a block are predicted from the text before it: the network must look block by block."""
        return {"masks", "blocks"} <= self.gives

    @property
    def remembers(self) -> bool:
        """Whether masks are predicted from what was read before, in blocks or in an order, and is remembered."""
        return self.blockwise or "orders" in self.gives

    @property
    def reads_twice(self) -> bool:
        """Whether a training pass reads the clean row beside the noisy one."""
        return self.blockwise or self.gives >= {"orders", "two streams"}

    @property
    def masked_lm(self) -> bool:
        """Whether it is a masked language model over whole rows: any mask is predicted from all that is visible."""
        return self.infills and self.conditionals and not self.remembers

    @property
    def warm_start(self) -> bool:
        """Whether it may start from the weights of an autoregressive network of the same shape."""
        return self.conditionals and self.likelihood and "orders" not in self.gives

    @property
    def vectors(self) -> bool:
        """Whether the network's input is vectors, not tokens."""
        return "vectors" in self.gives

    @property
    def any_length(self) -> bool:
        """Whether it writes text of any length by itself, never showing the network more than it can take."""
        return "blocks" in self.gives


class CountsPart(nn.Module):
    """A part of an objective that holds how often each id occurs in the training text."""

    def fill(self, counts: Int[Tensor, " v"]) -> None:
        """Set the counts, before training."""
        raise NotImplementedError


class Objective(ABC):
    """A subclass is a frozen dataclass with a name in `OBJECTIVES`."""

    name: ClassVar[str]
    registry: ClassVar[Registry[Any]]
    __dataclass_fields__: ClassVar[dict[str, Any]]
    facts: ClassVar[Facts] = Facts()
    advice: ClassVar[Mapping[str, Any]] = {}  # values that train best, where they differ from the defaults

    schedule: Schedule | None = None  # α_t, the share still visible, where it has one
    times: Times | None = None  # how training draws the times, where it draws them
    steps: int | None = None  # T, the steps of a discrete-time process; None: continuous time, or no time
    block: int | None = None  # tokens that are drawn at once, given the text before them; None: all of them
    opens: bool = False  # the first token of a block is predicted from the text before it alone, before the others

    @abstractmethod
    def nats(self, network: Any, clean: CleanRows) -> Nats:
        """Loss and bound of clean rows, by a `shapes.Network`, or by a `VectorNetwork` where `facts.vectors`."""

    def log_probs(self, logits: RowLogits, x_t: Tokens, *, mask: int) -> RowLogits:
        """log p(x_0 | x_t) at every position, for inspection and self-tests: the softmax, never the mask."""
        return forbid(logits, mask).log_softmax(-1)

    @property
    @abstractmethod
    def means(self) -> str:
        """A sentence that says what the reported number is."""

    @property
    def leads(self) -> bool:
        """Whether the first token of a row is given, never predicted: a bos is put before a text that has none."""
        return self.facts.causal

    def estimators(self) -> Mapping[str, "Objective"]:
        """Its numbers by the name of their estimator, the best first; their `nats` need no training."""
        return {self.name: self if self.times is None else replace(self, times=type(self.times).precise())}

    @final
    @property
    def estimator(self) -> str:
        """The name of the estimator that measures it best."""
        return next(iter(self.estimators()))

    @final
    def precise(self) -> "Objective":
        """The same objective with the estimator of smallest variance: for validation."""
        return self.estimators()[self.estimator]

    @final
    def bounded(self) -> "Objective":
        """The objective whose number bounds −log p for a network trained with this one, with small variance."""
        return next(one for one in self.estimators().values() if one.facts.likelihood)

    def for_steps(self, steps: int) -> "Objective":
        """The objective in a run of so many steps, where a setting is a share of them."""
        return self

    def seen(self, frozen: Bool[Tensor, " l"]) -> Bool[Tensor, " l"]:
        """The frozen tokens that the blanks of a text are given: those that the model sees when it fills them."""
        return frozen

    def context(self, x0: Int[Tensor, "b l"]) -> Mapping[str, Any]:
        """What the network is shown besides noisy rows of this clean text: options of `shapes.Network`."""
        return {}

    def remark(self, length: int) -> str:
        """What a user should know about training rows of this length; refuses one that does not suit it."""
        return ""

    def room(self, *, rows: int, vocab: int) -> int:
        """Bytes that a forward pass of so many rows needs besides those of the network."""
        return 0

    @final
    def counted(self, real: Bool[Tensor, "b l"]) -> Int[Tensor, ""]:
        """The number of tokens by which the nats of a batch are divided."""
        return real[:, 1:].sum() if self.leads else real.sum()

    def parts(self, *, vocab: int, width: int) -> dict[str, nn.Module]:
        """Learned modules of the objective (embeddings, a schedule), trained and saved with the network."""
        return {}

    def kernel(self, parts: Mapping[str, nn.Module] | None = None) -> Kernel | None:
        """The noise process, which its sampler reverses; None: it has none, or one of vectors."""
        return None if self.schedule is None else Absorbing(self.schedule)

    def state(self) -> dict[str, Tensor]:
        """Initial state: tensors that change at every step without being learned (running moments, a ramp)."""
        return {}

    def advance(self, state: Mapping[str, Tensor], seen: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state after a step, from `Nats.seen` summed over all rows of the step."""
        return dict(state)


OBJECTIVES: Registry[Objective] = Registry("objective", room="unmask.diffusion", group="unmask.objectives")


def objective_of(what: "str | Objective") -> Objective:
    """The objective itself, or the one of that name with its defaults."""
    return OBJECTIVES.entry(what).make() if isinstance(what, str) else what


def steps_of_ramp(ramp: float, steps: int) -> float:
    """A ramp in steps, where it is given as a share of them."""
    return float(max(1, round(ramp * steps))) if 0 < ramp < 1 else ramp
