"""The recorded values of the reference that the mathematics must reproduce."""

from pathlib import Path

import numpy as np
import pytest
import torch

FOLDER = Path(__file__).parent.parent / "golden"


def read(name: str) -> dict[str, torch.Tensor]:
    with np.load(FOLDER / f"{name}.npz") as arrays:
        return {key: torch.as_tensor(arrays[key]) for key in arrays.files}


@pytest.fixture(scope="session", params=["diffusion_tiny", "diffusion_mid"])
def golden(request) -> dict[str, torch.Tensor]:
    return read(request.param)
