"""D3PM with a uniform kernel: T steps, or continuous time, in which tokens become random tokens. [D3PM, UDLM, Duo]

There is no mask, and nothing says which tokens are noise, so every position is predicted and pays in every step
(`kernels.uniform`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, get_args

from torch import nn

from unmask.diffusion.clean import CleanRows
from unmask.diffusion.d3pm import check_hybrid, draw_steps, step_nats
from unmask.diffusion.kernels.uniform import First, Uniform, rate_nats
from unmask.diffusion.mlm import Ids
from unmask.diffusion.objective import OBJECTIVES, Facts, Nats, Objective
from unmask.diffusion.rows import forbid, pick, rows_where, spread
from unmask.diffusion.schedule import LogLinear, Schedule
from unmask.diffusion.times import Cubed, Stratified, Times, check_total
from unmask.shapes import Network


@OBJECTIVES.register("d3pm-uniform", "D3PM with a uniform kernel: tokens become random tokens, T steps")
@dataclass(frozen=True)
class D3PMUniform(Objective):
    """The D3PM objective with a uniform transition matrix."""

    facts: ClassVar[Facts] = Facts(
        gives=frozenset({"kernel"}), network_wants_sigma=True, asked=1.0, sampler="d3pm-uniform"
    )

    schedule: Schedule = LogLinear()  # α_t, the share that is not replaced; stretched to end at 0
    steps: int = 1000  # T, the number of steps
    continuous: bool = False  # the bound of continuous time, as Duo; the steps are then those of the sampler
    times: Times = Stratified()  # stratified:low=0, cubed, bell:mean=0,spread=1,floor=0.2
    first: First = "bayes"  # the step to clean text: bayes, as all others, or austin: the network's answer itself
    hybrid: float = 0.0  # λ of the hybrid loss: the KL of a step + λ · cross-entropy at all positions

    def __post_init__(self) -> None:
        check_total(self.steps)
        check_hybrid(self.hybrid)

    @property
    def means(self) -> str:
        if self.continuous:
            return "upper bound on -log p, uniform diffusion in continuous time"
        last = ", the first as its authors define it (Austin et al.)" if self.first == "austin" else ""
        return f"upper bound on -log p, D3PM with a uniform kernel and {self.steps} steps{last}"

    def estimators(self) -> Mapping[str, Objective]:
        """More draws of the first steps, where few tokens pay much: drawn evenly, T − 1 of T rows miss the first.

        With T steps both ends of the process by name, whichever was trained with.
        """
        precise = replace(self, times=Cubed())
        if self.continuous:
            return {self.name: precise}
        return {self.name: precise, **{name: replace(precise, first=name) for name in get_args(First)}}

    def parts(self, *, vocab: int, width: int) -> dict[str, nn.Module]:
        return {"ids": Ids(vocab)}

    def kernel(self, parts: Mapping[str, nn.Module] | None = None) -> Uniform:
        ids = None if parts is None else parts.get("ids")
        if not isinstance(ids, Ids):
            raise ValueError("random tokens are drawn from the ids of the network: give parts")
        return Uniform(self.schedule, ids.vocab, self.first)

    def nats(self, network: Network, clean: CleanRows) -> Nats:
        """Nats per token: T times the KL of the step that contains t, at every position."""
        if self.continuous:
            return self.by_rates(network, clean)
        at = draw_steps(self.times, clean.noise, self.steps)
        return step_nats(network, clean, self.kernel(clean.parts), at, everywhere=True, hybrid=self.hybrid)

    def by_rates(self, network: Network, clean: CleanRows) -> Nats:
        """Nats per token: what each pays per unit of time at t."""
        kernel, when = self.kernel(clean.parts), self.times.at(clean.noise.t)
        x_t, rows = kernel.forward(clean, when.t), rows_where(clean.free)
        logits = network(x_t, kernel.sigma(when.t).to(clean.noise.t), rows)
        log_p, true = forbid(logits, clean.mask).log_softmax(-1), clean.x0.flatten()[rows]
        level = kernel.level(when.t).take(rows // x_t.shape[1])
        bound = spread(rate_nats(log_p, true, x_t.flatten()[rows], level), rows, x_t) / when.density[:, None]
        if not self.hybrid:
            return Nats(bound, bound)
        return Nats(bound - self.hybrid * spread(pick(log_p, true), rows, x_t) / when.density[:, None], bound)
