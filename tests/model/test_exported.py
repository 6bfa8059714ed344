"""The file of `push --transformers`: transformers reads it in a process that has no unmask, with our logits."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from contracts.members import LENGTH, LETTERS, model_of, network_of, spec_of
from unmask.cli.main import main
from unmask.errors import UserError
from unmask.model.checkpoint import load, save, shipped_models
from unmask.model.exported import check_exported
from unmask.model.passes.whole import hidden_states

pytest.importorskip("transformers")
READER = """
import sys
sys.modules["unmask"] = None  # as if it were not installed
import torch
from transformers import AutoModelForMaskedLM
for folder in sys.argv[1:]:
    cases = torch.load(folder + "/cases.pt")
    model = AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True).eval()
    with torch.no_grad():
        found = [model(x, attention_mask=real, timesteps=sigma).logits for x, real, sigma in cases]
    torch.save(found, folder + "/found.pt")
assert not [name for name in sys.modules if name.startswith("unmask.")]
"""


@torch.no_grad()
def logits(model, x, real, sigma):
    lengths = None if real is None else real.sum(1)
    return model.network.head(hidden_states(model.network, x, sigma, lengths=lengths))


def without_constants(path):
    """As published files may be."""
    tensors = load_file(path)
    del tensors["backbone.rotary_emb.inv_freq"]
    save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.slow
def test_transformers_reads_it_without_unmask_and_has_our_logits(tmp_path, monkeypatch):
    specs = {
        "noise": spec_of("transformer", sigma=True),
        "masks": replace(spec_of("transformer"), visible_keys=True, mask=LETTERS.mask),
    }
    sources = {
        "stories": shipped_models()["stories"],  # tied, predicts at the position before, angles rounded to float16
        "causal": model_of(tmp_path / "a", "ar").folder,
        **{
            name: save(tmp_path / f"source-{name}", network_of(spec), mask=LETTERS.mask, tokenizer=LETTERS)
            for name, spec in specs.items()
        },
    }
    folders, wanted = [], []
    for name, source in sources.items():
        folder = tmp_path / name
        assert main(["push", str(source), "--folder", str(folder), "--transformers"]) in (0, None)
        model = load(folder)  # our loader runs none of it
        assert "trust_remote_code" in (folder / "README.md").read_text() or name == "stories"
        assert json.loads((folder / "config.json").read_text())["auto_map"]["AutoConfig"] == (
            "modeling_unmask.UnmaskConfig"
        )
        x = torch.randint(8, (2, LENGTH), generator=torch.Generator().manual_seed(0))
        x[:, 3:6] = model.mask
        real = (torch.arange(LENGTH) < torch.tensor([[LENGTH], [7]])).long()
        cases = [(x, None, torch.tensor([0.0, 0.0])), (x, real, torch.tensor([0.3, 2.0]))]
        torch.save(cases, folder / "cases.pt")
        folders.append(folder)
        wanted.append([logits(model, *case) for case in cases])
    without_constants(tmp_path / "causal" / "model.safetensors")
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    command = [sys.executable, "-c", READER, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for folder, own in zip(folders, wanted, strict=True):
        for one, other, (_, real, _) in zip(
            torch.load(folder / "found.pt"), own, torch.load(folder / "cases.pt"), strict=True
        ):
            there = torch.ones(2, LENGTH, dtype=torch.bool) if real is None else real.bool()
            torch.testing.assert_close(one[there], other[there], rtol=1e-5, atol=1e-5)


def test_a_network_that_the_file_does_not_have_is_refused(tmp_path):
    with pytest.raises(UserError, match="'transformer' only; this model has 'decoder'"):
        check_exported(model_of(tmp_path / "d", "mdlm", "decoder"))
    with pytest.raises(UserError, match="whole rows"):
        check_exported(model_of(tmp_path / "b", "block"))
