"""Small models for the tests of samples and infilling."""

import pytest

import tiny


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return tiny.model(tmp_path_factory.mktemp("models") / "mdlm")
