"""How OpenMP's threads wait, as libgomp itself says it (OMP_DISPLAY_ENV) in fresh processes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from unmask.openmp import POLICIES
from unmask.studies.run import environment

pytestmark = pytest.mark.slow

LIGHT = str(Path(__file__).with_name("test_random.py"))
CHILD = (
    "import multiprocessing, importlib, unmask;"
    "child = multiprocessing.get_context('spawn').Process(target=importlib.import_module, args=('torch',));"
    "child.start(); child.join()"
)


def spin_counts(*arguments: str, **given: str) -> list[int]:
    """How often a waiting thread spins before it sleeps, once for each process of a program that loads OpenMP."""
    bare = {name: value for name, value in os.environ.items() if name not in POLICIES}
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**bare, "OMP_DISPLAY_ENV": "verbose", **given},
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(count) for count in re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)]


def test_without_us_threads_spin():
    assert spin_counts("-c", "import torch, unmask")[0] > 1000


@pytest.mark.parametrize(
    "arguments",
    [
        ["-c", CHILD],
        ["-m", "unmask", "inspect", "stories"],
        pytest.param(
            ["-m", "pytest", "-s", "-p", "no:cacheprovider", "--collect-only", LIGHT], marks=pytest.mark.long
        ),
    ],
    ids=["child", "command", "tests"],
)
def test_no_process_of_ours_spins(arguments):
    assert spin_counts(*arguments) == [0]


@pytest.mark.parametrize(
    ("given", "count"), [({"GOMP_SPINCOUNT": "77"}, 77), ({"OMP_WAIT_POLICY": "active"}, 30_000_000_000)]
)
def test_the_users_own_policy_wins(given, count):
    assert spin_counts("-c", "import unmask, torch", **given) == [count]


def test_commands_of_a_study_inherit_the_policy():
    chosen = {name: os.environ[name] for name in POLICIES if name in os.environ}
    assert chosen
    assert chosen.items() <= (os.environ | environment(1)).items(), "what a study sets leaves the policy as it is"
