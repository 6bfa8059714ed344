"""Contracts hold for every member of a registry. `make check` runs them for one or two of each; `make test` for all."""

from pathlib import Path

import pytest

from unmask.diffusion.objective import OBJECTIVES
from unmask.model.backbone import BACKBONES
from unmask.model.format import FORMATS

HERE = Path(__file__).parent
CORE = {"transformer", "mamba", "mdlm", "ar", "own"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    others = {*OBJECTIVES, *BACKBONES, *FORMATS} - CORE
    for item in items:
        if item.path.is_relative_to(HERE) and hasattr(item, "callspec"):
            if any(isinstance(value, str) and value in others for value in item.callspec.params.values()):
                item.add_marker(pytest.mark.slow)
