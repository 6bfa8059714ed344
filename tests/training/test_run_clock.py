"""A run that is limited by time: late, it gets fewer steps, and resumes with those that it came to."""

from functools import partial
from itertools import count

import pytest
import torch

from training.small import Chain
from unmask.model.checkpoint import load
from unmask.training import run as running
from unmask.training import state
from unmask.training.estimate import FEWEST, Deadline
from unmask.training.fit import Order
from unmask.training.log import Lines
from unmask.training.settings import Run, Text, Train


@pytest.fixture
def asked(tmp_path, monkeypatch) -> Train:
    """A run of 100 steps and one minute, on a machine where every step takes a second."""
    monkeypatch.setattr(
        running, "Deadline", lambda *args, **more: Deadline(*args, **more, now=partial(next, count()))
    )
    path = tmp_path / "text.txt"
    path.write_text("\n".join("".join(chr(97 + i) for i in row) for row in Chain.make().rows(400, 0).tolist()))
    text = Text(tokenizer="character", documents="line", length=16, valid=0.1, pack="stream")
    quiet = Run(minutes=1, save_every=1000, eval_every=1000, eval_rows=32, preview=0)
    made = Train(data=str(path), out=str(tmp_path / "run"), steps=100, text=text, run=quiet, recipe="warm")
    return running.toml.merge_settings(
        made, {"model": {"width": 16, "blocks": 1, "heads": 2, "dropout": 0.1}, "optim": {"batch": 8, "warmup": 5}}
    )


def steps_of(order: Order) -> list[float]:
    return [progress.lr for progress in running.run(order, Lines(quiet=True))]


def test_a_late_run_ends_in_time_with_a_learning_rate_that_has_come_down(asked):
    rates = steps_of(Order(asked))
    assert 58 <= len(rates) <= 62
    assert rates[-1] == pytest.approx(0.1 * asked_rate(asked), rel=0.05)
    assert state.read_point(state.folder_of(running.Path(asked.out), len(rates))).plan == len(rates)


def asked_rate(asked: Train) -> float:
    return running.settle_training(asked).optim.lr


@pytest.mark.slow
@pytest.mark.parametrize("at", [10, 40])
def test_a_late_run_that_was_stopped_repeats_the_one_that_was_not(asked, tmp_path, at):
    whole = steps_of(Order(asked))
    stopped = running.replace(asked, out=str(tmp_path / "stopped"))
    steps = running.run(Order(stopped), Lines(quiet=True))
    before = [next(steps).lr for _ in range(at)]
    steps.close()
    assert before + steps_of(Order(stopped, resume=True)) == whole
    one, two = (load(out.out).network.state_dict() for out in (asked, stopped))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.slow
def test_steps_that_are_asked_for_are_made_whatever_the_clock_says(asked):
    steps_of(Order(asked))
    more = steps_of(Order(running.replace(asked, steps=70), resume=True, given=("steps",)))
    assert 60 + len(more) == pytest.approx(70, abs=2)
    assert steps_of(Order(running.replace(asked, steps=70), resume=True, given=("steps",))) == []


def test_a_deadline_is_kept_by_fewer_steps_but_never_by_more_or_by_hardly_any():
    clock = [0.0]

    def after(seconds: float, made: int, *, limit: float = 100.0, steps: int = 50, spent: float = 0.0) -> int:
        clock[0] = 0.0
        deadline = Deadline(limit, spent, now=lambda: clock[0])
        assert deadline.steps(1, steps) == steps
        clock[0] = seconds
        return deadline.steps(1 + made, steps)

    assert after(20, 10) == 50  # on time: 2 s a step
    assert after(20, 5) == 6 + 20  # 4 s a step: 80 s are left
    assert after(20, 5, spent=40) == FEWEST
    assert after(20, 30) == 50  # ahead: not more
    assert after(5, 1) == 50  # too early to tell
    assert after(200, 25) == 27  # over: one step at the lowest learning rate
    assert after(20, 5, limit=0.0) == 50  # no limit
