"""Contracts hold for every member of a registry. `make check` tries one or two of each, `make test` all."""

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
        given = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if item.path.is_relative_to(HERE) and any(isinstance(one, str) and one in others for one in given):
            item.add_marker(pytest.mark.slow)
