"""D3PM with an absorbing mask: T steps, the network may put mass on the mask, exact KLs.

Two bounds are named. `austin` is D3PM's own: T steps, of which the first is −log p(x_0 | x_1). `reference` is that of
the MDLM reference: the same and −log p(x_0 | x_0 itself) at all positions, a chain with one latent more, so it is
valid and never smaller. The schedule of D3PM, by which the mutual information of x_t and x_0 falls linearly
(β_t = 1/(T − t + 1)), is log-linear with eps = 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from unmask.diffusion.clean import CleanRows
from unmask.diffusion.kernel import Kernel, KernelStep
from unmask.diffusion.kernels.absorbing import Absorbing
from unmask.diffusion.objective import OBJECTIVES, Facts, Nats, Objective
from unmask.diffusion.rows import forbid, pick, rows_where, spread
from unmask.diffusion.schedule import LogLinear, Schedule, is_complete
from unmask.diffusion.times import Stratified, Times, check_total, steps
from unmask.errors import UserError
from unmask.random import Noise
from unmask.shapes import Network, RowLogits, Tokens


def softmax_log_probs(logits: Float[Tensor, "n v"], *, mask: int, zero_masking: bool = False) -> Float[Tensor, "n v"]:
    """log p(x_0 | x_t): a plain softmax over all ids, or one in which the mask is impossible."""
    return (forbid(logits, mask) if zero_masking else logits).log_softmax(-1)


class RowSteps(NamedTuple):
    """One of T steps for each row, from t = i/T to s = (i − 1)/T."""

    s: Float[Tensor, " b"]
    t: Float[Tensor, " b"]
    weight: Float[Tensor, "b 1"]  # T, over the density by which the step was drawn


def draw_steps(times: Times, noise: Noise, total: int) -> RowSteps:
    when = times.at(noise.t)
    i = steps(when.t, total=total)
    t, s = (j.to(when.t.dtype) / total for j in (i, i - 1))
    return RowSteps(s, t, total / when.density[:, None])


def step_nats(
    network: Network,
    clean: CleanRows,
    kernel: Kernel,
    at: RowSteps,
    *,
    everywhere: bool = False,
    hybrid: float = 0.0,
    zero_masking: bool = True,
) -> Nats:
    """T times the KL of each row's step by a kernel; the loss adds `hybrid` times as much of −log p(x_0 | x_t).

    Both at every free position (`everywhere`, and where the loss is hybrid), or at hidden ones only: elsewhere a
    kernel with a mask has a KL of 0.
    """
    x_t = kernel.forward(clean, at.t)
    rows = rows_where(clean.free if everywhere or hybrid else x_t == clean.mask)
    logits = network(x_t, kernel.sigma(at.t).to(clean.noise.t), rows)
    log_p = softmax_log_probs(logits, mask=clean.mask, zero_masking=zero_masking)
    of_row, true = rows // x_t.shape[1], clean.x0.flatten()[rows]
    kl = kernel.kl(log_p, true, KernelStep(x_t.flatten()[rows], at.s[of_row], at.t[of_row], clean.mask))
    bound = at.weight * spread(kl, rows, x_t)
    return Nats(bound - hybrid * at.weight * spread(pick(log_p, true), rows, x_t) if hybrid else bound, bound)


def reconstruction(network: Network, clean: CleanRows, *, zero_masking: bool) -> Float[Tensor, "b l"]:
    """−log p(x_0 | x_0 itself, σ = 0): without carry-over visible text must be predicted too."""
    x0, rows = clean.x0, rows_where(clean.free)
    logits = network(x0, clean.noise.t.new_zeros(len(x0)), rows)
    log_p = softmax_log_probs(logits, mask=clean.mask, zero_masking=zero_masking)
    return spread(-pick(log_p, x0.flatten()[rows]), rows, x0)


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

    def nats(self, network: Network, clean: CleanRows) -> Nats:
        """Nats per token: T times the KL of the step that contains t; `reference` adds the reconstruction.

        The hybrid loss is T times D3PM's, which does not scale its steps: λ then counts as it does there.
        """
        at, own = draw_steps(self.times, clean.noise, self.steps), {"zero_masking": self.zero_masking}
        nats = step_nats(network, clean, self.kernel(), at, hybrid=self.hybrid, **own)
        rest = reconstruction(network, clean, **own) if self.bound == "reference" else 0.0
        return Nats(nats.loss + rest, nats.bound + rest)

    def log_probs(self, logits: RowLogits, x_t: Tokens, *, mask: int) -> RowLogits:
        """A plain softmax: visible tokens are predicted too."""
        log_p = softmax_log_probs(logits.flatten(0, 1), mask=mask, zero_masking=self.zero_masking)
        return log_p.unflatten(0, x_t.shape)
