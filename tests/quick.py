"""Which members of a registry `make check` tries; `make test` tries all."""

from collections.abc import Iterable

import pytest

SAMPLERS = {"first-hitting", "ancestral", "confidence"}


def first_few(names: Iterable[str], few: set[str] = SAMPLERS) -> list:
    """Parameters of a test: those that are not among the few are slow."""
    return [name if name in few else pytest.param(name, marks=pytest.mark.slow) for name in names]
