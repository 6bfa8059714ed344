"""Runs and preparations that are killed and resumed end as if they had lived: a few, or (marked attack) all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def alone(*arguments: str, tmp_path: Path) -> str:
    """Run an attack in a process of its own, which forks: pytest has threads."""
    memory = Path("/dev/shm")  # thousands of fsync calls are slow on a busy disk
    place = memory if memory.is_dir() and os.access(memory, os.W_OK) else tmp_path
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=HERE,
        env={**os.environ, "TMPDIR": str(place)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_some_jobs_killed_at_random_end_as_if_they_had_lived(tmp_path):
    assert "4 tries, 4 survived" in alone("long.py", "kills", "--tries", "4", "--seed", "7", tmp_path=tmp_path)


@pytest.mark.attack
@pytest.mark.timeout(3600)
def test_more_jobs_killed_at_random_end_as_if_they_had_lived(tmp_path):
    assert "60 tries, 60 survived" in alone("long.py", "kills", "--tries", "60", "--seed", "1000", tmp_path=tmp_path)


@pytest.mark.attack
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("job", "every"),
    [("prepare", 1), ("warm", 5), ("rows", 9), ("shards", 9), ("train plaid", 9), ("classify", 9), ("study", 19)],
)
def test_jobs_killed_before_every_few_file_operations_end_as_if_they_had_lived(tmp_path, job, every):
    sweep = alone("kills.py", job, "--every", str(every), "--first", str(every // 2 + 1), tmp_path=tmp_path)
    assert "file operations, killed before" in sweep
