"""Workers that are killed, stopped or lose their checkpoint change no answer of the server."""

import subprocess
import sys
from pathlib import Path

import pytest
import workers

HERE = Path(__file__).parent


def attacked(tries: int, seed: int) -> str:
    command = [sys.executable, "long.py", "workers", "--tries", str(tries), "--seed", str(seed)]
    ran = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.attack
@pytest.mark.timeout(3600)
def test_a_server_survives_what_happens_to_its_workers():
    assert "30 tries, 30 survived" in attacked(30, seed=1000)


@pytest.mark.attack
def test_workers_end_with_their_parent(tmp_path):
    assert workers.orphaned(tmp_path) is None
