"""The lines of docs/how/checkpoints.md turn a checkpoint of the reference's training code into one that loads."""

import os
import re
import runpy
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from pickle import UnpicklingError
from types import ModuleType

import pytest
import torch

from model.worlds import KINDS, random_network, random_tokens
from unmask.model.checkpoint import load
from unmask.model.passes.whole import hidden_states

PAGE = Path(__file__).parents[2] / "docs" / "how" / "checkpoints.md"


class Runs:
    """A pickle that calls a function when it is read."""

    def __init__(self, function, *arguments):
        self.called = (function, arguments)

    def __reduce__(self):
        return self.called


@pytest.fixture
def settings(monkeypatch):
    """An object of a class that the reader does not have, as OmegaConf's are."""
    module = ModuleType("omegaconf.dictconfig")
    module.DictConfig = type("DictConfig", (), {"__module__": "omegaconf.dictconfig"})
    monkeypatch.setitem(sys.modules, "omegaconf", ModuleType("omegaconf"))
    monkeypatch.setitem(sys.modules, "omegaconf.dictconfig", module)
    made = module.DictConfig()
    made.content = {"model": {"length": 9}}
    return made


def lightning(path, network, **parts):
    """A checkpoint as the reference saves it: raw weights under backbone., their average as a list of parameters."""
    learned = dict(network.named_parameters())
    raw = {f"backbone.{name}": tensor + (name in learned) for name, tensor in network.state_dict().items()}
    ema = {"decay": 0.9999, "num_updates": 5, "shadow_params": [p.detach() for p in network.parameters()]}
    torch.save({"state_dict": raw, "ema": ema, "loops": {"fit_loop": {"step": 5}}, **parts}, path)


def converted(folder, monkeypatch, name="mdlm"):
    """Run the page's script, in a Python that knows no OmegaConf."""
    (script,) = re.findall(r"```python\n(# file: from_lightning.py\n.*?)```", PAGE.read_text(), re.S)
    (folder / "from_lightning.py").write_text(script)
    monkeypatch.delitem(sys.modules, "omegaconf.dictconfig", raising=False)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["from_lightning.py", f"{name}.ckpt", name])
    runpy.run_path("from_lightning.py")


@pytest.mark.parametrize(("kind", "objective"), [("modulated", "mdlm"), ("causal, reads before", "ar")])
def test_the_average_weights_of_a_lightning_checkpoint_load(tmp_path, settings, kind, objective, monkeypatch):
    network = random_network(replace(KINDS[kind], length=1024), dtype=torch.float32)
    lightning(tmp_path / "mdlm.ckpt", network, hyper_parameters={"config": settings, "others": [settings]})
    converted(tmp_path, monkeypatch)
    model = load(tmp_path / "mdlm", trainable=True)
    assert model.objective.name == objective
    assert model.spec == replace(network.spec, dropout=0.1)
    for name, tensor in network.named_parameters():
        assert torch.equal(model.network.get_parameter(name), tensor), name
    tokens = random_tokens(2, 9)
    frozen = load(tmp_path / "mdlm").network
    torch.testing.assert_close(
        frozen.head(hidden_states(frozen, tokens)), network.freeze().head(hidden_states(network, tokens))
    )


def test_no_code_of_the_file_runs(tmp_path, monkeypatch):
    network = random_network(KINDS["modulated"], dtype=torch.float32)
    for number, evil in enumerate((Runs(os.system, "touch ran"), Runs(eval, "open('ran', 'w')"))):
        lightning(tmp_path / f"{number}.ckpt", network, hyper_parameters={"config": evil})
        with suppress(UnpicklingError):
            converted(tmp_path, monkeypatch, str(number))
        assert not (tmp_path / "ran").exists()


def test_an_average_of_another_network_is_refused(tmp_path, monkeypatch):
    network = random_network(KINDS["modulated"], dtype=torch.float32)
    lightning(tmp_path / "mdlm.ckpt", network)
    saved = torch.load(tmp_path / "mdlm.ckpt")
    saved["ema"]["shadow_params"].reverse()
    torch.save(saved, tmp_path / "mdlm.ckpt")
    with pytest.raises(SystemExit, match="the EMA has another shape"):
        converted(tmp_path, monkeypatch)
    assert not (tmp_path / "mdlm").exists()
