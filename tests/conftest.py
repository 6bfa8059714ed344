"""What every test shares: one torch thread a worker, so that two workers fill two cores."""

import unmask  # noqa: F401  # isort: skip  # before torch: it sets how OpenMP's threads wait
import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded source of randomness; tests never draw from the global one."""
    return torch.Generator().manual_seed(0)
