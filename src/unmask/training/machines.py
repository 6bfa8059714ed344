"""What a run would cost on other machines: memory, communication, input, checkpoints and failures, by formulas.

tests/training/test_machines.py compares the formulas with measured small runs; docs/why/scale.md derives them.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from unmask.errors import UserError, unknown
from unmask.model import cost
from unmask.model.backbone import Spec
from unmask.training.estimate import duration, estimate
from unmask.training.phases import phases, spec_of
from unmask.training.settings import Text, Train

SHARE = 0.4  # of the peak rate that a training step reaches: assumed
BETWEEN_FAILURES = 50_000 * 3600.0  # seconds of one device: 419 interruptions of 16,384 in 54 days (arXiv 2407.21783)
RESTART = 300.0  # seconds until a run goes on after a failure: assumed
DISK = 1e9  # bytes per second of the file system: assumed
PER_MACHINE = 8  # devices with fast links between them


@dataclass(frozen=True)
class Device:
    """An accelerator, by its data sheet."""

    memory: float  # bytes
    rate: float  # FLOPs per second, dense bfloat16
    link: float  # bytes per second to the others in its machine, each way
    network: float = 50e9  # bytes per second to other machines, each way

    @property
    def title(self) -> str:
        return f"{self.memory / 1e9:g} GB, {self.rate / 1e12:g} TFLOPS, {self.link / 1e9:g} GB/s to its neighbours"


DEVICES = {
    "H100": Device(80e9, 989e12, 450e9),
    "A100": Device(80e9, 312e12, 300e9, 25e9),
    "L40S": Device(48e9, 362e12, 32e9, 25e9),
    "4090": Device(24e9, 165e12, 32e9, 12.5e9),
}


VOCABULARIES = {"auto": 4096, "bpe": 4096, "byte": 259, "hf:gpt2": 50258, "hf:bert-base-uncased": 30522}


@dataclass(frozen=True)
class Plan:
    """The cost of a run on `count` devices."""

    count: int
    parameters: int
    tokens: float  # of the whole run
    per_step: float  # tokens
    memory: dict[str, float]  # bytes per device by kind of parallelism
    traffic: dict[str, float]  # bytes that a device sends per step
    computing: float  # seconds per step
    sending: dict[str, float]  # seconds per step, if nothing of it is hidden behind computing
    checkpoint: float  # bytes on disk
    seconds: float  # of the run, with what `way` does not hide
    way: str
    failures: float  # expected in the run
    save_every: float  # seconds between checkpoints that lose the least


def read_devices(text: str) -> tuple[int, Device]:
    """`64xH100`: how many, and which."""
    match = re.fullmatch(r"([0-9]{1,6})x([A-Za-z0-9]+)", text)
    if match is None or int(match[1]) < 1:
        raise UserError(f"--plan is a number and a device, such as 64xH100; saw {text!r}.")
    name = next((name for name in DEVICES if name.lower() == match[2].lower()), None)
    if name is None:
        raise unknown("device", match[2], DEVICES)
    return int(match[1]), DEVICES[name]


def vocabulary_size(text: Text) -> int:
    """The ids of the tokenizer, as far as the settings tell: no data is read."""
    size = text.vocab or VOCABULARIES.get(text.tokenizer.partition("#")[0], 0)
    if not size:
        raise UserError(f"how many ids has the tokenizer {text.tokenizer!r}? Give --vocab N, for the plan alone.")
    return size


def state_bytes(parameters: int, *, ema: bool) -> int:
    """Weights, gradients, two moments and the average, in float32."""
    return cost.FLOAT * parameters * (5 if ema else 4)


def checkpoint_bytes(parameters: int) -> int:
    """Weights and two moments to go on with, and the network that is exported, in float32."""
    return cost.FLOAT * parameters * 4


def traffic_bytes(parameters: int, count: int, way: Literal["ddp", "fsdp"], *, passes: int = 1) -> float:
    """Bytes that a device sends per step of `passes` micro-batches, in rings.

    ddp reduces the gradients once: 2(n−1)/n of them. fsdp gathers the weights before each forward and backward pass,
    and scatters the gradients after each backward pass: 3(n−1)/n.
    """
    sent = cost.FLOAT * parameters * (count - 1) / count
    return 2 * sent if way == "ddp" else 3 * passes * sent


def plan_run(settings: Train, count: int, device: Device, *, vocab: int) -> Plan:
    """The last phase of a run, the one that takes most of its time, on so many devices."""
    phase = phases(settings)[-1]
    spec: Spec = spec_of(settings, phase, vocab=vocab)
    batch, length, ema = settings.optim.batch, settings.text.length, settings.optim.ema > 0
    if batch % count:
        raise UserError(f"--optim.batch is {batch}, which {count} devices cannot share: give a multiple of {count}.")
    local = batch // count
    micro = min(settings.optim.micro or local, local)
    run = estimate(settings, spec, phase, rows=1, rate=1.0)
    state = state_bytes(run.parameters, ema=ema)
    rest = cost.training_bytes(spec, batch=micro, rows=phase.objective.facts.asked, ema=ema) - state
    memory = {"ddp": float(state + rest), "fsdp": state / count + rest}
    passes = math.ceil(local / micro)
    traffic = {
        "ddp": traffic_bytes(run.parameters, count, "ddp"),
        "fsdp": traffic_bytes(run.parameters, count, "fsdp", passes=passes),
    }
    speed = device.link if count <= PER_MACHINE else device.network
    computing = run.flops / (count * SHARE * device.rate)
    sending = {way: sent / speed for way, sent in traffic.items()}
    way = "ddp" if memory["ddp"] <= device.memory else "fsdp"
    step = max(computing, sending[way])
    seconds = settings.steps * step
    stored = float(checkpoint_bytes(run.parameters))
    between = BETWEEN_FAILURES / count
    return Plan(
        count=count,
        parameters=run.parameters,
        tokens=float(settings.steps) * batch * length,
        per_step=float(batch * length),
        memory=memory,
        traffic=traffic,
        computing=computing,
        sending=sending,
        checkpoint=stored,
        seconds=seconds,
        way=way,
        failures=seconds / between,
        save_every=math.sqrt(2 * stored / DISK * between),
    )


def plan_lines(plan: Plan, device: Device, *, vocab: int) -> Iterator[str]:
    """What `unmask train --plan` prints."""
    fits = {way: "fits" if size <= device.memory else "does not fit" for way, size in plan.memory.items()}
    width = 2 if vocab <= 1 << 16 else 4
    rate = plan.per_step / max(plan.computing, plan.sending[plan.way])
    lost = plan.failures * (plan.save_every / 2 + RESTART)
    yield f"parameters      {plan.parameters:,}; {plan.tokens:.3g} tokens in steps of {plan.per_step:,.0f}"
    for way, size in plan.memory.items():
        yield f"memory, {way:<8}{size / 1e9:.3g} GB per device of {device.memory / 1e9:.0f} GB: {fits[way]}"
    for way, sent in plan.traffic.items():
        yield f"sent, {way:<10}{sent / 1e9:.3g} GB per device and step, {plan.sending[way] * 1e3:.3g} ms"
    yield f"computing       {plan.computing * 1e3:.3g} ms per step at {SHARE:.0%} of the peak rate (assumed)"
    yield f"run             {duration(plan.seconds)} with {plan.way}: {rate:,.0f} tokens per second"
    yield f"input           {rate * width / 1e6:.3g} MB per second of token shards"
    writing = f"{plan.checkpoint / DISK:.2g} s at 1 GB per second (assumed)"
    yield f"checkpoint      {plan.checkpoint / 1e9:.3g} GB, {writing}"
    yield (
        f"failures        {plan.failures:.2g} expected; saving every {duration(plan.save_every)} loses the least, "
        f"{duration(lost)} in all with {duration(RESTART)} per restart (assumed)"
    )
