"""One small run, in pieces, for any team: test_parallel.py does it alone and two_ranks.py with two processes."""

from dataclasses import asdict, replace
from pathlib import Path

import torch

from training.small import LENGTH, MASK, Chain, network, settings
from unmask.text.packing import Batch
from unmask.training import ema, state
from unmask.training.loop import State, begin, train
from unmask.training.parallel import Alone, Team
from unmask.training.phases import phases
from unmask.training.settings import Optim
from unmask.training.validation import validate

HALF, STEPS = 10, 20
ASKED = settings(steps=STEPS, optim=Optim(batch=16, micro=3, lr=5e-3, warmup=5, clip=0.5, ema=0.9, weight_decay=0.1))
CHAIN = Chain.make()


def rows_of(team: Team, step: int) -> Batch:
    """The rows of one process: some are shorter than others, so that a process has fewer tokens than another."""
    rows = CHAIN.rows(ASKED.optim.batch, step)
    real = torch.arange(LENGTH) < torch.arange(LENGTH - len(rows), LENGTH)[:, None].clamp(min=5)
    mine = len(rows) // team.world
    part = slice(team.rank * mine, (team.rank + 1) * mine)
    return Batch(rows[part], real[part])


def begun(team: Team, seed: int = 1) -> State:
    return begin(network(replace(ASKED, seed=seed)), ASKED, team)


def steps(current: State, start: int, stop: int, team: Team) -> list[list[float]]:
    """Loss, bound and norm of each step."""
    run = train(current, phases(ASKED)[0], ASKED, lambda step: rows_of(team, step), mask=MASK, start=start, team=team)
    return [[p.loss, p.bound, p.norm] for _, p in zip(range(start, stop), run, strict=False)]


def scored(current: State, team: Team) -> list[float]:
    """Validation of three batches, which two processes cannot share equally."""
    batches = [Batch(CHAIN.rows(4, seed), torch.ones(4, LENGTH, dtype=torch.bool)) for seed in (100, 101, 102)]
    with ema.in_place(current.shadow, list(current.network.parameters())):
        score = validate(current.network, batches, ASKED.objective, mask=MASK, seed=1, team=team)
    return [score.bound, score.error]


def save(out: Path, current: State, step: int, team: Team) -> Path:
    return state.save(
        out,
        current,
        state.Point(step=step),
        mask=MASK,
        objective="mdlm",
        tokenizer=None,
        settings=asdict(ASKED),
        keep=2,
        team=team,
    )


def alone(out: Path) -> tuple[list[list[float]], list[float]]:
    """The whole run in one process."""
    team = Alone()
    current = begun(team)
    first = steps(current, 0, HALF, team)
    score = scored(current, team)
    save(out, current, HALF, team)
    second = steps(current, HALF, STEPS, team)
    save(out, current, STEPS, team)
    return first + second, score
