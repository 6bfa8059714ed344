"""What every test shares: one thread per process, so that two workers fill two cores."""

import gc
import os
from functools import cache

os.environ["OMP_NUM_THREADS"] = "1"  # also for commands that tests start

import unmask  # noqa: F401  # isort: skip  # before torch: it sets how OpenMP's threads wait
import pytest
import torch

import stores
import typecheck
from unmask.training import estimate

estimate.matrix_rate = cache(estimate.matrix_rate)  # else every training takes a fifth of a second to say its speed
gc.disable()  # until the tests run: what is imported and collected stays, and need not be looked through meanwhile


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    gc.freeze()
    gc.enable()


def pytest_runtest_setup() -> None:
    typecheck.begin_test()


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded source of randomness; tests never draw from the global one."""
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session")
def s3():
    """An object store on this machine."""
    with stores.s3_server():
        yield


@pytest.fixture(params=stores.STORES)
def bucket(request, tmp_path, monkeypatch):
    """The address of an empty bucket, and an empty cache."""
    if request.param == stores.S3:
        request.getfixturevalue("s3")
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    return stores.new_bucket(request.param)
