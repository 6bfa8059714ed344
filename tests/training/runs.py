"""One small run, in pieces, for any team: test_many_processes.py does it alone, two_ranks.py with two processes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from training.small import LENGTH, MASK, OBJECTIVES, Chain, network, settings
from unmask.diffusion.block import BlockDiffusion
from unmask.diffusion.diffusion_lm import DiffusionLM
from unmask.diffusion.plaid import Plaid
from unmask.diffusion.ssd_lm import SSDLM
from unmask.model import checkpoint
from unmask.model.adapter import Adapter
from unmask.model.backbones.caduceus import CaduceusSpec
from unmask.model.backbones.decoder import DecoderSpec
from unmask.model.backbones.hyena import HyenaSpec
from unmask.model.backbones.mamba import MambaSpec
from unmask.model.backbones.transformer import Architecture
from unmask.processes.team import Alone, Team
from unmask.settings import describe_settings
from unmask.text.row import Rows
from unmask.training import ema, state
from unmask.training.loop import State, begin, train
from unmask.training.optimizers.adamw import AdamW
from unmask.training.optimizers.muon import Muon
from unmask.training.phases import phases
from unmask.training.settings import Run, Train, Warm
from unmask.training.validation import validate

HALF, STEPS = 10, 20
ASKED = settings(steps=STEPS, optim=AdamW(batch=16, micro=3, lr=5e-3, warmup=5, clip=0.5, ema=0.9, weight_decay=0.1))
# Other networks and objectives, a few steps each. Dropout is the same where the passes cover the same rows.
FEW = 3
BEFORE = DecoderSpec(width=16, blocks=2, heads=2, reads_before=True)
OTHERS = {
    "muon": settings(optim=Muon(batch=16, micro=4, lr=5e-3, warmup=1, weight_decay=0.1)),
    "sedd": OBJECTIVES["sedd"],
    "ar": OBJECTIVES["ar"],
    "plaid": settings(objective=Plaid(embed=4, ramp=10)),
    "diffusion-lm": settings(objective=DiffusionLM(steps=20, embed=4)),
    "ssd-lm": settings(objective=SSDLM(steps=20, block=5)),
    "tied, modulated, dropped out, recomputed": settings(
        model=Architecture(width=32, blocks=2, heads=2, cond=8, tied=True, dropout=0.2),
        optim=AdamW(batch=16, micro=4, lr=5e-3, warmup=1),
        run=Run(checkpointing=True),
    ),
    "mamba": replace(OBJECTIVES["ar"], model=MambaSpec(width=16, blocks=2)),
    "hyena": replace(OBJECTIVES["ar"], model=HyenaSpec(width=16, blocks=2)),
    "caduceus": settings(
        model=CaduceusSpec(width=16, blocks=2),
        optim=Muon(batch=16, micro=4, lr=5e-3, warmup=1),
        run=Run(checkpointing=True),
    ),
    "from causal to blocks": settings(
        model=BEFORE, objective=BlockDiffusion(size=3, weight="flat"), init="base", warm=Warm(anneal=2)
    ),
    "LoRA over a causal base": settings(model=BEFORE, init="base", adapter=Adapter(rank=2)),
    "two strands": settings(model=CaduceusSpec(width=16, blocks=2, equivariant=True)),
}
CHAIN = Chain.make()


def rows_of(team: Team, step: int) -> Rows:
    """The rows of one process: some are shorter than others, so that a process has fewer tokens than another."""
    rows = CHAIN.rows(ASKED.optim.batch, step)
    real = torch.arange(LENGTH) < torch.arange(LENGTH - len(rows), LENGTH)[:, None].clamp(min=5)
    mine = len(rows) // team.world
    part = slice(team.rank * mine, (team.rank + 1) * mine)
    return Rows.of(rows[part], real[part])


def begun(team: Team, seed: int = 1, asked: Train = ASKED) -> State:
    return begin(network(replace(asked, seed=seed)), asked, team)


def steps(current: State, start: int, stop: int, team: Team, asked: Train = ASKED) -> list[list[float]]:
    """Loss, bound and norm of each step."""
    run = train(current, phases(asked)[0], asked, lambda step: rows_of(team, step), mask=MASK, start=start, team=team)
    return [[p.loss, p.bound, p.norm] for _, p in zip(range(start, stop), run, strict=False)]


def scored(current: State, team: Team) -> list[float]:
    """Validation of three batches, which two processes cannot share equally."""
    batches = [Rows.of(CHAIN.rows(4, seed), torch.ones(4, LENGTH, dtype=torch.bool)) for seed in (100, 101, 102)]
    with ema.in_place(current.shadow, list(current.learner.parameters())):
        score = validate(current.learner, batches, ASKED.objective, mask=MASK, seed=1, team=team)
    return [score.bound, score.error]


def save(out: Path, current: State, step: int, team: Team) -> Path:
    exports = state.export_model(current, team)
    note = {
        "objective": describe_settings(ASKED.objective),
        "step": step,
        "ema": True,
        "settings": describe_settings(ASKED),
    }

    def write(draft: Path) -> None:
        checkpoint.write(draft, exports, note, mask=MASK, tokenizer=None)

    return state.save_state(out, current, state.Point(step=step), write, keep=2, team=team)


def others(team: Team) -> dict[str, list[list[float]]]:
    """The first steps of the other runs."""
    known = {name: OTHERS[name] for name in shared_by(getattr(team, "way", "ddp"))}
    return {name: steps(begun(team, asked=asked), 0, FEW, team, asked) for name, asked in known.items()}


def shared_by(way: str) -> list[str]:
    """The other runs that processes can share in a way: adapters are refused with FSDP."""
    return [name for name, asked in OTHERS.items() if way == "ddp" or not asked.adapter.rank]


def alone(out: Path) -> dict[str, Any]:
    """The whole run in one process."""
    team = Alone()
    current = begun(team)
    first = steps(current, 0, HALF, team)
    score = scored(current, team)
    save(out, current, HALF, team)
    second = steps(current, HALF, STEPS, team)
    save(out, current, STEPS, team)
    return {"steps": first + second, "score": score, "others": others(team)}
