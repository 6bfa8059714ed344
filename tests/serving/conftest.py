"""Real servers on free ports, for all tests of this room."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec

import httpx
import models
import pytest
from servers import serving
from slow import Slow

from unmask.model.checkpoint import load
from unmask.model.model import Model

Serve = Callable[..., str]
collect_ignore = [] if find_spec("lm_eval") else ["test_harness.py"]  # lm-eval is heavy, and no part of [dev]


@pytest.fixture(scope="session")
def masked(tmp_path_factory) -> Model:
    return models.masked(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def causal(tmp_path_factory) -> Model:
    return models.causal(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def bytewise(tmp_path_factory) -> Model:
    return models.bytewise(tmp_path_factory.mktemp("models"))


@pytest.fixture
def slowed(masked) -> Callable[[float], tuple[Model, list[int]]]:
    """The masked model with calls that take a while, and a list that grows by the rows of each call."""

    def make(seconds: float) -> tuple[Model, list[int]]:
        model = load(masked.folder)
        slow = Slow(model.network.run, seconds=seconds)
        model.network.run = slow
        return model, slow.rows

    return make


@pytest.fixture(scope="module")
def address(masked) -> Iterator[str]:
    """A server that all tests of a file share."""
    with serving(masked) as found:
        yield found


@pytest.fixture(scope="module")
def client(address) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=120) as found:
        yield found


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Servers of one's own: serve(model, key=...) gives an address."""
    with ExitStack() as stack:
        yield lambda model, **options: stack.enter_context(serving(model, **options))
