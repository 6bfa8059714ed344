"""What every test shares: one thread per process, so that two workers fill two cores."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # also for commands that tests start

import unmask  # noqa: F401  # isort: skip  # before torch: it sets how OpenMP's threads wait
import pytest
import torch


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded source of randomness; tests never draw from the global one."""
    return torch.Generator().manual_seed(0)
