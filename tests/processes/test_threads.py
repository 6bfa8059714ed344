"""The number of threads: asked for, by the size of a pass, by a trial; and a word where they get no core."""

import os

import pytest
import torch

from unmask.cli.flags import Place
from unmask.errors import UserError
from unmask.processes import threads
from unmask.processes.threads import (
    COUNT,
    PER_THREAD,
    busy_hint,
    check_threads,
    computing_with,
    fewest_as_fast,
    seconds_run_and_waited,
    use_threads,
    watched_threads,
)


@pytest.fixture
def four(monkeypatch):
    """A process with four threads whose number nobody has chosen."""
    with watched_threads(lambda _: None):
        monkeypatch.delenv(COUNT, raising=False)
        torch.set_num_threads(4)
        yield


@pytest.mark.parametrize(
    ("asked", "flops", "count"),
    [
        (3, None, 3),
        (3, 1.0, 3),
        ("auto", None, 4),
        ("auto", 0.5 * PER_THREAD, 1),
        ("auto", 2.5 * PER_THREAD, 2),
        ("auto", 99 * PER_THREAD, 4),
    ],
)
def test_threads_are_those_asked_for_or_as_many_as_a_pass_can_use(four, asked, flops, count):
    use_threads(asked, flops=flops)
    assert torch.get_num_threads() == count


def test_a_number_that_the_user_has_set_outside_stays(four, monkeypatch):
    monkeypatch.setenv(COUNT, "4")
    use_threads("auto", flops=1.0)
    assert torch.get_num_threads() == 4


def test_a_small_text_of_a_small_network_gets_one_thread_and_many_texts_all(four):
    Place().load("stories", rows=32)
    assert torch.get_num_threads() == 4
    Place().load("stories", rows=1)
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("number", [0, -1, 2**31, 2**64])
def test_threads_that_no_machine_has_are_refused(number):
    with pytest.raises(UserError, match="from 1 to 1,024"):
        check_threads(number)
    with pytest.raises(UserError, match="from 1 to 1,024"):
        Place(threads=number)


def test_computing_with_is_undone_also_for_child_processes(four):
    with computing_with(2):
        assert torch.get_num_threads() == 2
        assert os.environ[COUNT] == "2"
    assert torch.get_num_threads() == 4
    assert COUNT not in os.environ


@pytest.fixture
def clock(monkeypatch):
    """A clock that the work moves."""
    now = [0.0]
    monkeypatch.setattr(threads.time, "perf_counter", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("seconds", "count"),
    [
        ({1: 0.10, 2: 0.10, 4: 0.10, 6: 0.10}, 1),
        ({1: 0.20, 2: 0.10, 4: 0.10, 6: 0.095}, 2),
        ({1: 0.20, 2: 0.15, 4: 0.12, 6: 0.08}, 6),
        ({1: 9.0, 2: 9.0, 4: 9.0, 6: 9.0}, 6),  # long work is not tried
    ],
)
def test_a_trial_finds_the_fewest_threads_that_are_as_fast_as_any(clock, seconds, count):
    def work():
        clock[0] += seconds[torch.get_num_threads()]

    assert fewest_as_fast(work, 6) == count


def test_a_moment_in_which_the_machine_is_busy_does_not_decide(clock):
    turn = iter(range(100))

    def work():
        clock[0] += {1: 0.1, 2: 0.06}[torch.get_num_threads()] + (5 if next(turn) in (2, 5) else 0)

    assert fewest_as_fast(work, 2) == 2


def test_threads_that_wait_for_cores_are_told_of():
    assert "2 threads waited 60% of their time" in busy_hint(2, ran=8, waited=12)
    assert busy_hint(2, ran=12, waited=8) == ""
    assert busy_hint(1, ran=8, waited=12) == ""
    assert busy_hint(2, ran=2, waited=3) == ""


def test_seconds_of_this_process_are_counted():
    before = seconds_run_and_waited()[0]
    while seconds_run_and_waited()[0] < before + 0.05:
        torch.ones(100, 100) @ torch.ones(100, 100)
    assert min(seconds_run_and_waited()) >= 0
