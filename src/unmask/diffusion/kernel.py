"""Kernel: a noise process of discrete tokens, each position by itself: where it ends, how it begins, how it reverses.

Objective and sampling process hold the same value: `objective.kernel(parts)`. A new kernel is one file of `kernels/`.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.diffusion.clean import CleanRows
from unmask.registry import Registry


class KernelStep(NamedTuple):
    """A step back from t to s < t, of some tokens."""

    x_t: Int[Tensor, " n"]
    s: Float[Tensor, " n"]
    t: Float[Tensor, " n"]
    mask: int


class Kernel(ABC):
    """A subclass is a frozen dataclass with a name in `KERNELS`. Times run from 0, clean text, to 1, the prior."""

    name: ClassVar[str]
    registry: ClassVar[Registry[Any]]

    @abstractmethod
    def sigma(self, t: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """The noise level that the network is shown at times t."""

    @abstractmethod
    def prior(self, u: Float[Tensor, "*shape"], *, mask: int) -> Int[Tensor, "*shape"]:
        """x_1, whatever the text: a token for each uniform in [0, 1)."""

    @abstractmethod
    def forward(self, clean: CleanRows, t: Float[Tensor, " b"]) -> Int[Tensor, "b l"]:
        """x_t ~ q(x_t | x_0), by the uniforms u of the noise; frozen tokens stay."""

    @abstractmethod
    def log_step(self, log_p: Float[Tensor, "n v"], step: KernelStep) -> Float[Tensor, "n v"]:
        """log p(x_s | x_t), s < t, if the network gives x_0 the log-probabilities `log_p`.

        For a known x_0 it is the posterior q(x_s | x_t, x_0). Otherwise it is the mean of the posteriors of all v:
        weighted by p_v (DiffusionBERT), or by p_v q(x_t | v) [D3PM].
        """

    def kl(self, log_p: Float[Tensor, "n v"], x0: Int[Tensor, " n"], step: KernelStep) -> Float[Tensor, " n"]:
        """KL(q(x_s | x_t, x_0) || p(x_s | x_t)), what a step of the bound costs; at s = 0 it is −log p(x_0 | x_t)."""
        known = torch.full_like(log_p, -torch.inf).scatter(-1, x0[:, None], 0.0)
        q, p = self.log_step(known, step), self.log_step(log_p, step)
        return (q.exp() * torch.where(q > -torch.inf, q - p, 0.0)).sum(-1)


KERNELS: Registry[Kernel] = Registry("kernel", room="unmask.diffusion.kernels", group="unmask.kernels")


def staying(x_t: Int[Tensor, " n"], like: Float[Tensor, "n v"]) -> Float[Tensor, "n v"]:
    """The log-probabilities of tokens that stay as they are."""
    return torch.full_like(like, -torch.inf).scatter(-1, x_t[:, None], 0.0)
