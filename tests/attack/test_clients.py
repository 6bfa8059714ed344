"""Hostile clients leave a server as well as it was: some, or (marked attack) many, and requests at every limit."""

import subprocess
import sys
from pathlib import Path

import clients
import pytest

HERE = Path(__file__).parent


def attacked(tries: int, seed: int) -> str:
    command = [sys.executable, "long.py", "clients", "--tries", str(tries), "--seed", str(seed)]
    ran = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_a_server_survives_some_hostile_clients():
    assert "3 tries, 3 survived" in attacked(3, seed=1)


@pytest.mark.attack
@pytest.mark.timeout(3600)
def test_a_server_survives_many_hostile_clients():
    assert "150 tries, 150 survived" in attacked(150, seed=1000)


@pytest.mark.attack
@pytest.mark.parametrize("kind", sorted({kind.__name__ for kind in clients.KINDS}))
def test_a_server_survives_every_kind_of_hostile_client(kind):
    attack = getattr(clients, kind)
    for seed in range(3):
        assert attack(clients.one_server(), clients.random.Random(seed)) is None
        assert clients.unwell(clients.one_server()) is None


@pytest.mark.attack
def test_requests_that_outlast_the_grace_are_told_so(tmp_path):
    assert clients.grace_exceeded(tmp_path) is None


@pytest.mark.attack
@pytest.mark.timeout(3600)
def test_requests_at_the_edge_of_every_limit_stay_below_a_gigabyte(tmp_path):
    most, statuses = clients.edges(tmp_path)
    assert set(statuses.values()) == {200}, statuses
    assert most < 1000
