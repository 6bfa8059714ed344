"""A BERT gives the logits that transformers gave, recorded: no transformers is needed here."""

from pathlib import Path

import numpy as np
import pytest
import torch

from unmask.model.checkpoint import load
from unmask.model.passes.whole import hidden_states

FOLDER = Path(__file__).parents[2] / "golden" / "encoders" / "bert_tiny"


@pytest.fixture(scope="module")
def recorded():
    with np.load(FOLDER / "cases.npz") as file:
        return {name: torch.from_numpy(file[name]) for name in file.files}


@pytest.fixture(scope="module")
def network():
    return load(FOLDER).network


def close(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


def logits(network, x, **options):
    with torch.no_grad():
        return network.head(hidden_states(network, x, **options))


def test_logits_are_the_recorded_ones(network, recorded):
    assert recorded["logits"].abs().max() > 1
    close(logits(network, recorded["tokens"]), recorded["logits"])


def test_logits_with_segments_are_the_recorded_ones(network, recorded):
    close(logits(network, recorded["tokens"], segments=recorded["types"].long()), recorded["logits_types"])
    assert (recorded["logits"] - recorded["logits_types"]).abs().max() > 1e-2


def test_logits_with_padding_are_the_recorded_ones(network, recorded):
    lengths = recorded["lengths"]
    real = torch.arange(recorded["padded"].shape[1]) < lengths[:, None]
    close(logits(network, recorded["padded"], lengths=lengths)[real], recorded["logits_padded"][real])
