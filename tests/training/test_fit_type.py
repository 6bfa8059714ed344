"""--minutes takes bfloat16 on a CPU that has it, where a trial finds it faster; elsewhere nothing changes."""

from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest
import torch

from training.small import network, settings
from unmask.processes.team import Alone
from unmask.training import estimate, fit
from unmask.training.phases import phases, spec_of
from unmask.training.settings import Run, Train


@pytest.fixture
def tried(monkeypatch):
    """On a CPU with bfloat16: chooses with what a trial says, and returns the settings and what was printed."""
    monkeypatch.setattr(fit, "small_floats", lambda name: "")

    def choose(share: float, asked: Train) -> tuple[Train, list[str]]:
        monkeypatch.setattr(fit, "trial", lambda asked, folder: partial(str, asked.run.dtype))
        monkeypatch.setattr(
            fit, "share_of_time", lambda steps: share if [step() for step in steps] == ["bfloat16", "auto"] else 9.0
        )
        lines: list[str] = []
        return fit.with_type(asked, Path(), Alone(device=torch.device("cpu")), lines.append), lines

    return choose


def test_the_faster_type_is_taken_and_stored_and_said(tried):
    chosen, lines = tried(0.7, settings())
    assert chosen == replace(settings(), run=replace(settings().run, dtype="bfloat16"))
    assert lines == ["computes products in bfloat16: a step takes 0.70 of float32's time here (or --dtype float32)"]


def test_a_small_gain_changes_nothing(tried):
    assert tried(0.95, settings()) == (settings(), [])


def test_a_type_that_was_asked_for_stays(tried):
    asked = settings(run=Run(dtype="float32"))
    assert tried(0.1, asked) == (asked, [])


def test_a_cpu_without_bfloat16_is_not_tried(tried, monkeypatch):
    monkeypatch.setattr(fit, "small_floats", lambda name: "a trial died with SIGILL")
    assert tried(0.1, settings()) == (settings(), [])


def test_the_best_times_count_and_the_first_ones_do_not(monkeypatch):
    taken = {"a": [0.1, 4.0, 2.0, 3.0], "b": [90.0, 5.0, 8.0, 4.0]}
    monkeypatch.setattr(fit, "seconds_of", lambda step: taken[step()].pop(0))
    a, b = (partial(str, name) for name in "ab")
    assert fit.share_of_time([a, b]) == 2.0 / 4.0
    assert fit.share_of_time([a, None]) == 1.0


def test_a_trial_computes_with_the_type_that_is_tried(monkeypatch):
    made = []
    monkeypatch.setattr(estimate, "compute_type", lambda name, device: made.append(name) or torch.float32)
    asked = settings(run=Run(dtype="bfloat16"))
    phase = phases(asked)[0]
    spec = spec_of(asked, phase, vocab=network(asked).backbone.spec.vocab)
    estimate.trial_steps(asked, partial(next, count()), phase, spec, mask=spec.vocab - 1)
    assert made == ["bfloat16"]
