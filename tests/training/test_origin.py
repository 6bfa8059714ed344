"""What a phase begins with has memory of its own, aligned as torch aligns it."""

from pathlib import Path

import pytest

import unmask
from unmask.diffusion.plaid import Plaid
from unmask.processes.team import Alone
from unmask.settings import read_toml
from unmask.training.data import open_data
from unmask.training.origin import denoiser_of, origin_of
from unmask.training.phases import phases
from unmask.training.settings import Train

SMALL = {
    "objective": {"name": "plaid", "embed": 3},
    "model": {"width": 16, "blocks": 1, "heads": 2},
    "text": {"length": 16, "tokenizer": "character", "pack": "stream"},
    "optim": {"batch": 2, "warmup": 0},
    "run": {"preview": 0, "eval_rows": 0},
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("a cab had a bad bead. a fed hag had. " * 60)
    for _ in unmask.train("text.txt", "run", steps=2, quiet=True, **SMALL):
        pass
    return Path("run")


def test_weights_parts_and_state_of_a_resumed_run_are_not_mapped_from_its_files(run):
    """A product of matrices adds in another order where its memory is aligned otherwise."""
    asked = read_toml(run / "settings.toml", Train())
    data, (phase,) = open_data(asked, run / "data"), phases(asked)
    assert isinstance(phase.objective, Plaid)
    denoiser = denoiser_of(asked, phase, data, origin_of(asked, run / "last"), Alone())
    tensors = {**dict(denoiser.named_parameters()), **denoiser.state}
    assert len(tensors) > 20
    assert {name: tensor.data_ptr() % 64 for name, tensor in tensors.items() if tensor.data_ptr() % 64} == {}


def test_parts_of_another_size_are_refused(run):
    settings = SMALL | {"objective": {"name": "plaid", "embed": 4}}
    with pytest.raises(
        unmask.UserError, match=r"the objective's embedding.* has the size .*, and these settings ask"
    ):
        next(unmask.train("text.txt", "other", init=str(run), steps=1, quiet=True, **settings))
