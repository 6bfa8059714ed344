"""The estimated cost of a run, before it starts; the clocks of its previews and of its end."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

import torch

from unmask.errors import how_many
from unmask.model import cost
from unmask.model.backbone import Spec, build, skeleton
from unmask.model.denoiser import Denoiser
from unmask.model.linear import times
from unmask.model.room import machine_bytes
from unmask.processes.device import compute_type
from unmask.text.row import Rows
from unmask.training.loop import Progress, begin, train
from unmask.training.phases import Phase, continue_spec, phases, spec_of
from unmask.training.settings import Train

FEWEST = 20  # steps of a run that is limited by time
CHECKS = 10  # times that a run looks at its clock
USUAL_SHARE = 0.5  # typical share of the machine's matrix rate that a training step reaches


@dataclass(frozen=True)
class RunCost:
    parameters: int
    rows: int  # rows of the data
    tokens: int  # tokens of the data
    passes: float  # epochs of the phase
    flops: float  # per step
    bytes: int  # of memory
    seconds: float  # of the phase, if a step reaches the usual share of the matrix rate
    learned: int | None = None  # weights of an adapter, which alone are trained

    def lines(self) -> list[str]:
        adapter = "" if self.learned is None else f" and {self.learned:,} of the adapter, which alone are trained"
        return [
            f"{self.parameters:,} parameters{adapter}, about {self.bytes / 1e9:.2g} GB of memory",
            f"{how_many(self.tokens, 'token')} in {how_many(self.rows, 'row')}, {self.passes:.2g} passes over them",
            f"{self.flops / 1e9:.3g} GFLOP per step",
        ]

    def warnings(self, settings: Train) -> list[str]:
        """Warnings to show before the run starts."""
        lines = []
        if self.rows < settings.optim.batch:
            lines.append(
                f"the data has {how_many(self.rows, 'row')}, less than one batch of {settings.optim.batch}: rows "
                "repeat within a step. Give more data, a smaller --optim.batch or a smaller --length."
            )
        if self.passes > 100:
            lines.append(f"the run passes over the data {self.passes:.0f} times: expect memorisation.")
        if self.bytes > machine_bytes():
            lines.append(
                f"the run needs about {self.bytes / 1e9:.1f} GB and this machine has {machine_bytes() / 1e9:.1f} GB: "
                "set a smaller optim.micro, or run.checkpointing."
            )
        return lines


def estimate(settings: Train, a: Spec, phase: Phase, *, rows: int, rate: float) -> RunCost:
    """The cost of a phase over `rows` rows of data, on a machine of `rate` matrix FLOPs per second."""
    batch = settings.optim.batch
    share = phase.objective.facts.asked
    read = 2 if phase.objective.facts.reads_twice else 1  # the noisy and the clean row
    flops = cost.training_flops(a, rows=share) * batch * a.length * read
    flops += settings.optim.flops(a)
    learned = settings.adapter.parameters(skeleton(a)) if settings.adapter.rank else None
    return RunCost(
        parameters=cost.parameters(a),
        rows=rows,
        tokens=rows * a.length,
        passes=phase.steps * batch / max(1, rows),
        flops=flops,
        bytes=cost.training_bytes(
            a,
            batch=min(settings.optim.micro or batch, batch),
            rows=share,
            ema=settings.optim.ema > 0,
            learned=learned,
        ),
        learned=learned,
        seconds=phase.steps * flops / (USUAL_SHARE * rate),
    )


def run_seconds(settings: Train, a: Spec, *, rows: int, rate: float, step: int = 0) -> float:
    """The estimated time of all phases from a step on, with a network of this spec."""
    total = 0.0
    for phase in phases(settings):
        spec = a.sized(vocab=a.vocab, length=a.length, causal=phase.objective.facts.causal)
        left = max(0, phase.stop - max(phase.start, step)) / max(1, phase.steps)
        total += left * estimate(settings, spec, phase, rows=rows, rate=rate).seconds
    return total


def step_rate(
    settings: Train,
    batch: Callable[[int], Rows],
    *,
    rows: int,
    vocab: int,
    mask: int,
    init: Spec | None = None,
    seconds: float = 60.0,
) -> float:
    """The rate with which `estimate` is right for this run: the first steps of each phase are done and forgotten.

    Three steps after the first, which is slower; or one, if they take more than `seconds`.
    """
    flops = total = 0.0
    for phase in phases(settings):
        spec = spec_of(settings, phase, vocab=vocab) if init is None else continue_spec(init, settings, phase)
        paces: list[float] = []
        for progress in islice(trial_steps(settings, batch, phase, spec, mask=mask), 4):
            paces.append(progress.seconds)
            if len(paces) > 1 and sum(paces) > seconds:
                break
        flops += phase.steps * estimate(settings, spec, phase, rows=rows, rate=1.0).flops
        total += phase.steps * sorted(paces)[len(paces) // 2 if len(paces) > 2 else 0]
    return flops / (USUAL_SHARE * total)


def trial_steps(
    settings: Train, batch: Callable[[int], Rows], phase: Phase, spec: Spec, *, mask: int
) -> Iterator[Progress]:
    """The steps of a phase with a new network, which is forgotten."""
    settings = replace(settings, run=replace(settings.run, compile=False))
    network = build(spec)
    network.compute = compute_type(settings.run.dtype, torch.device("cpu"))
    denoiser = Denoiser(network, phase.objective)
    if settings.adapter.rank:
        denoiser.add_adapter(settings.adapter)
    return train(begin(denoiser, settings), phase, settings, batch, mask=mask)


def preview_seconds(samples: int, length: int, pace: float) -> float:
    """About how long a preview takes where a step takes `pace` seconds per token.

    A pass without gradients costs a third of a step's, and there is one over the whole row for each of its tokens.
    """
    return samples * length**2 * pace / 3


@dataclass
class PreviewClock:
    """When a preview is due by time: every so many seconds, and never for more than a tenth of the time.

    with clock: preview()
    """

    every: float  # seconds; 0: never
    now: Callable[[], float] = time.monotonic
    began: float = field(init=False)  # of the last preview, or of the clock
    took: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.began = self.now()

    def due(self) -> bool:
        return self.every > 0 and self.now() - self.began >= self.every and self.affords()

    def affords(self, guess: float = 0.0) -> bool:
        """Whether a preview is at most a tenth of the time since the last; `guess`: the seconds of the first."""
        return self.now() - self.began >= 10 * (self.took or guess)

    def __enter__(self) -> None:
        self.began = self.now()

    def __exit__(self, *error: object) -> None:
        self.took = self.now() - self.began


@dataclass
class Deadline:
    """How many steps fit into the time of a run, which may be slower than its trial was.

    The answer changes the learning rates that follow, so a run asks for it only where it saves what it was told.
    """

    seconds: float  # of the run; 0: without a limit
    spent: float = 0.0  # seconds before this process
    now: Callable[[], float] = time.monotonic
    began: float = field(init=False)
    checked: tuple[float, int] | None = field(init=False, default=None)  # time and step of the last look

    def __post_init__(self) -> None:
        self.began = self.now()

    def steps(self, step: int, steps: int) -> int:
        """The steps of the whole run after `step` of them: as many as planned, or fewer, if it is late."""
        now = self.now()
        if self.checked is None:
            self.checked = now, step  # the first step makes buffers
        since, first = self.checked
        if not self.seconds or step == first or now - since < self.seconds / CHECKS:
            return steps
        self.checked = now, step
        left = self.seconds - self.spent - (now - self.began)
        return min(steps, max(FEWEST, step + 1, step + int(left * (step - first) / (now - since))))


def matrix_rate(size: int = 1024, seconds: float = 0.2) -> float:
    """The machine's FLOPs per second for products of square matrices: the best of several in a short time."""
    a, b = torch.randn(2, size, size)
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        times(a, b)
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best


def duration(seconds: float) -> str:
    """3725 seconds are 1 h 2 min."""
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 90:
        return f"{minutes} min"
    if hours < 48:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
    return f"{seconds / 86400:.1f} days" if hours < 2400 else f"{seconds / 86400:,.0f} days"
