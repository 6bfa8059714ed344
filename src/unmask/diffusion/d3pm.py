"""D3PM with an absorbing mask: T steps, the network may put mass on the mask, exact KLs.

Two bounds are named. `austin` is D3PM's own: T steps, of which the first is −log p(x_0 | x_1). `reference` is that of
the MDLM reference: the same and −log p(x_0 | x_0 itself) at all positions, a chain with one latent more, so it is
valid and never smaller. The schedule of D3PM, by which the mutual information of x_t and x_0 falls linearly
(β_t = 1/(T − t + 1)), is log-linear with eps = 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.diffusion.corruption import check_clean
from unmask.diffusion.kernels.absorbing import Absorbing, kl_of_step
from unmask.diffusion.objective import OBJECTIVES, Facts, Nats, Objective
from unmask.diffusion.rows import forbid, rows_where, spread
from unmask.diffusion.schedule import Level, LogLinear, Schedule, is_complete
from unmask.diffusion.times import Stratified, Times, check_total, steps
from unmask.errors import UserError
from unmask.random import Noise
from unmask.shapes import Network


def row_log_probs(logits: Float[Tensor, "n v"], *, mask: int, zero_masking: bool = False) -> Float[Tensor, "n v"]:
    """log p(x_0 | x_t): a plain softmax over all ids, or one in which the mask is impossible."""
    return (forbid(logits, mask) if zero_masking else logits).log_softmax(-1)


def step_nats(
    network: Network,
    x0: Int[Tensor, "b l"],
    x_t: Int[Tensor, "b l"],
    s: Level,
    t: Level,
    *,
    mask: int,
    zero_masking: bool = False,
    sigma: Float[Tensor, " b"] | None = None,
) -> Float[Tensor, "b l"]:
    """The KL of the step from t to s at hidden positions; at visible ones both distributions agree: 0.

    The network is shown σ_t, unless another `sigma` is given.
    """
    rows = rows_where(x_t == mask)
    shown = t.sigma if sigma is None else sigma
    log_p = row_log_probs(network(x_t, shown, rows), mask=mask, zero_masking=zero_masking)
    log_p_true = log_p.gather(-1, x0.flatten()[rows, None]).squeeze(-1)
    of_row = rows // x0.shape[1]
    return spread(kl_of_step(log_p_true, log_p[:, mask].exp(), s.take(of_row), t.take(of_row)), rows, x0)


def step_and_cross_entropy(
    network: Network,
    x0: Int[Tensor, "b l"],
    x_t: Int[Tensor, "b l"],
    s: Level,
    t: Level,
    *,
    mask: int,
    frozen: Bool[Tensor, "b l"] | None,
    zero_masking: bool = False,
) -> tuple[Float[Tensor, "b l"], Float[Tensor, "b l"]]:
    """The KL of the step, and −log p(x_0 | x_t) at all positions, visible ones too: the parts of the hybrid loss."""
    rows = rows_where(torch.ones_like(x0, dtype=torch.bool) if frozen is None else ~frozen)
    log_p = row_log_probs(network(x_t, t.sigma, rows), mask=mask, zero_masking=zero_masking)
    log_p_true = log_p.gather(-1, x0.flatten()[rows, None]).squeeze(-1)
    of_row = rows // x0.shape[1]
    kl = kl_of_step(log_p_true, log_p[:, mask].exp(), s.take(of_row), t.take(of_row))
    kl = torch.where(x_t.flatten()[rows] == mask, kl, 0.0)
    return spread(kl, rows, x0), spread(-log_p_true, rows, x0)


def reconstruction(
    network: Network,
    x0: Int[Tensor, "b l"],
    like: Tensor,
    zero_masking: bool,
    mask: int,
    frozen: Bool[Tensor, "b l"] | None,
) -> Float[Tensor, "b l"]:
    """−log p(x_0 | x_0 itself, σ = 0): without carry-over visible text must be predicted too."""
    rows = rows_where(torch.ones_like(x0, dtype=torch.bool) if frozen is None else ~frozen)
    logits = network(x0, like.new_zeros(len(x0)), rows)
    log_p = row_log_probs(logits, mask=mask, zero_masking=zero_masking)
    return spread(-log_p.gather(-1, x0.flatten()[rows, None]).squeeze(-1), rows, x0)


BOUNDS = {
    "reference": "with the reconstruction of clean text as in the MDLM reference",
    "austin": "as its authors define it (Austin et al.)",
}


def check_hybrid(value: float) -> None:
    if not value >= 0:
        raise UserError(f"hybrid, the weight of the cross-entropy, must be 0 or more, not {value}.")


@OBJECTIVES.register("d3pm", "D3PM with an absorbing mask, T steps")
@dataclass(frozen=True)
class D3PM(Objective):
    """The D3PM objective with an absorbing state: T steps from nothing hidden to all hidden."""

    facts: ClassVar[Facts] = Facts(
        gives=frozenset({"masks", "mass on the mask"}), loss_needs_sigma=True, asked=1.5, sampler="d3pm"
    )

    schedule: Schedule = LogLinear(eps=0)  # α_t, the share still visible at time t
    steps: int = 1000  # T, the number of steps
    zero_masking: bool = False  # True: never predict the mask, an ablation in the MDLM paper
    times: Times = Stratified()  # stratified:low=0, bell:mean=0,spread=1,floor=0.2
    bound: Literal["reference", "austin"] = "reference"  # austin: D3PM's own, without reconstruction of clean text
    hybrid: float = 0.0  # λ of the hybrid loss: the KL of a step + λ · cross-entropy at all positions; D3PM: 0.01

    def __post_init__(self) -> None:
        check_total(self.steps)
        check_hybrid(self.hybrid)

    @property
    def means(self) -> str:
        whole = is_complete(self.schedule)
        bound = (
            "upper bound on -log p"
            if whole
            else "a bound on -log p less the noise levels that its schedule leaves out"
        )
        return f"{bound}, D3PM with {self.steps} steps, {BOUNDS[self.bound]}"

    def estimators(self) -> Mapping[str, Objective]:
        """Its own bound, and both by name, whichever was trained with."""
        precise = replace(self, times=self.times.precise())
        return {self.name: precise, **{name: replace(precise, bound=name) for name in BOUNDS}}  # type: ignore[arg-type]

    def kernel(self, parts: Mapping[str, nn.Module] | None = None) -> Absorbing:
        return Absorbing(self.schedule, whole=False)

    def nats(
        self,
        network: Network,
        x0: Int[Tensor, "b l"],
        *,
        noise: Noise,
        mask: int,
        frozen: Bool[Tensor, "b l"] | None = None,
        parts: Mapping[str, nn.Module] | None = None,
        state: Mapping[str, Tensor] | None = None,
    ) -> Nats:
        """Nats per token: T times the KL of the step that contains t; `reference` adds the reconstruction.

        The hybrid loss is T times D3PM's, which does not scale its steps: λ then counts as it does there.
        """
        check_clean(x0, mask=mask)
        when = self.times.at(noise.t)
        i = steps(when.t, total=self.steps)
        kernel = self.kernel()
        t, s = (j.to(when.t.dtype) / self.steps for j in (i, i - 1))
        level, before = kernel.level(t), kernel.level(s)
        x_t = kernel.forward(x0, t, noise.u, mask=mask, frozen=frozen)
        weight = self.steps / when.density[:, None]
        ce = None
        if self.hybrid:
            kl, ce = step_and_cross_entropy(
                network, x0, x_t, before, level, mask=mask, frozen=frozen, zero_masking=self.zero_masking
            )
        else:
            kl = step_nats(network, x0, x_t, before, level, mask=mask, zero_masking=self.zero_masking)
        bound = weight * kl
        if self.bound == "reference":
            bound = bound + reconstruction(network, x0, noise.t, self.zero_masking, mask, frozen)
        return Nats(bound if ce is None else bound + self.hybrid * weight * ce, bound)

    def log_probs(
        self, logits: Float[Tensor, "b l v"], x_t: Int[Tensor, "b l"], *, mask: int
    ) -> Float[Tensor, "b l v"]:
        """A plain softmax: visible tokens are predicted too."""
        log_p = row_log_probs(logits.flatten(0, 1), mask=mask, zero_masking=self.zero_masking)
        return log_p.unflatten(0, x_t.shape)
