"""Guidance: logits changed towards a condition, only at the positions that the policy asks for.

    classifier-free   log p^g = g log p(x_i | z) + (1 − g) log p(x_i | z, given text hidden) − log Z
    by a classifier   log p^g = log p(x_i | z) + g log p(y | z with x_i) − log Z

Each is a `Hook` of the `LogitOptions`: a function from the network's logits to new logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.diffusion.rows import forbid
from unmask.errors import UserError
from unmask.model.backbone import Reader
from unmask.sampling.logits import Hook, in_pieces
from unmask.sampling.process import Ask, NetworkOfLengths, answer
from unmask.shapes import Network

SEQUENCES = 512  # in one batch of the classifier


def check_weight(weight: float, kind: str) -> None:
    if not isfinite(weight):
        raise UserError(f"the weight of {kind} must be a finite number; saw {weight}.")


@dataclass(frozen=True, eq=False)
class ClassifierFree:
    """Classifier-free guidance. Weight 1: the model; 0: the model without the prompt.

    Every network call takes a second forward pass, except at weight 1.
    """

    network: Reader | Network | NetworkOfLengths
    weight: float  # g; above 1: follow the given text more closely
    frame: tuple[int, ...] = ()  # tokens that are seen in both passes: the frame of an encoder
    leads: bool = False  # so is the first token: the network predicts position i at i − 1, and nothing predicts it

    def __post_init__(self) -> None:
        check_weight(self.weight, "guidance")

    def __call__(self, ask: Ask, logits: Float[Tensor, "n v"]) -> Float[Tensor, "n v"]:
        if self.weight == 1:
            return logits
        mask = ask.view.mask
        frozen = ask.tokens != mask if ask.frozen is None else ask.frozen
        if self.frame:
            frozen = frozen & ~torch.isin(ask.tokens, ask.tokens.new_tensor(self.frame))
        if self.leads:
            frozen = frozen & (torch.arange(frozen.shape[1], device=frozen.device) > 0)
        blind = answer(self.network, replace(ask, tokens=ask.tokens.masked_fill(frozen, mask), passes=())).logits
        if self.weight == 0:
            return blind
        return mix_predictions(logits, blind, self.weight, mask=mask)


def mix_predictions(
    logits: Float[Tensor, "n v"], blind: Float[Tensor, "n v"], weight: float, *, mask: int
) -> Float[Tensor, "n v"]:
    """g log p + (1 − g) log p_blind, up to a constant per row; −∞ in either stays −∞. [D-CFG]"""

    def some_rows(logits: Tensor, blind: Tensor) -> Tensor:
        with_given, without = (forbid(some, mask).log_softmax(-1) for some in (logits, blind))
        never = with_given.isneginf() | without.isneginf()
        guided = weight * with_given + (1 - weight) * without
        return guided.masked_fill(never, -torch.inf)

    return in_pieces(some_rows, logits, blind)


@runtime_checkable
class Guide(Protocol):
    """A differentiable classifier of noisy text: `model.predictor.Predictor`, or any other."""

    @property
    def table(self) -> Tensor:
        """The embedding of each token (v d)."""

    def log_probs(self, embedded: Tensor, sigma: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """log p(y | text) (b labels), from embeddings (b l d)."""


@dataclass(frozen=True, eq=False)
class ByClassifier:
    """Guidance towards a label. [D-CBG]

    First order: log p(y | z with x_i = v) − log p(y | z) ≈ (e_v − e_mask) · the gradient at i: one forward and one
    backward pass per call. Exact: one forward pass of the classifier per asked position and token of the vocabulary.
    """

    judge: Guide
    label: int
    weight: float = 1.0  # g; 1 is Bayes' rule
    exact: bool = False

    def __post_init__(self) -> None:
        check_weight(self.weight, "the classifier")

    def __call__(self, ask: Ask, logits: Float[Tensor, "n v"]) -> Float[Tensor, "n v"]:
        if len(self.judge.table) != logits.shape[-1]:
            raise UserError(
                f"the classifier has {len(self.judge.table)} tokens and the model {logits.shape[-1]}: it was trained "
                "on another vocabulary."
            )
        if self.weight == 0:
            return logits
        evidence = self.each(ask) if self.exact else self.slope(ask)
        return logits + self.weight * evidence.to(logits)

    def slope(self, ask: Ask) -> Float[Tensor, "n v"]:
        """The change of log p(y) by each token, to first order, up to a constant per row."""
        # A server calls this in inference mode, which allows no gradients.
        with torch.inference_mode(False), torch.enable_grad():
            table = self.judge.table.detach().clone()
            embedded = table[ask.tokens.clone()].requires_grad_(True)
            sigma = ask.sigma.clone()
            lengths = None if ask.lengths is None else ask.lengths.clone()
            score = self.judge.log_probs(embedded, sigma, lengths=lengths)[:, self.label].sum()
            (gradient,) = torch.autograd.grad(score, embedded)
            return gradient.flatten(0, 1)[ask.rows.clone()] @ table.T

    def each(self, ask: Ask) -> Float[Tensor, "n v"]:
        """log p(y | z with x_i = v) for every asked position i and every token v."""
        tokens = torch.arange(len(self.judge.table), device=ask.tokens.device)
        # Not in inference mode: a later call may need a gradient through what the classifier caches here.
        with torch.inference_mode(False), torch.no_grad():
            terms = [
                self.evidence(ask, place.expand(len(some)), some)
                for place in ask.rows.split(1)
                for some in tokens.split(SEQUENCES)
            ]
            return torch.cat(terms).view(len(ask.rows), len(tokens))

    def evidence(self, ask: Ask, rows: Int[Tensor, " k"], tokens: Int[Tensor, " k"]) -> Float[Tensor, " k"]:
        """log p(y) of texts, each with one token set at one flat position."""
        width = ask.tokens.shape[1]
        row = rows // width
        texts = ask.tokens[row].scatter(1, (rows % width)[:, None], tokens[:, None])
        lengths = None if ask.lengths is None else ask.lengths[row]
        return self.judge.log_probs(self.judge.table[texts], ask.sigma[row], lengths=lengths)[:, self.label]


def in_turn(hooks: Sequence[Hook]) -> Hook | None:
    """One hook that applies several in turn."""
    if len(hooks) < 2:
        return hooks[0] if hooks else None

    def hook(ask: Ask, logits: Float[Tensor, "n v"]) -> Float[Tensor, "n v"]:
        for one in hooks:
            logits = one(ask, logits)
        return logits

    return hook
