"""Files of Transformer-XL load with their authors' names and with those of transformers, and are written back."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from model.golden import FOLDER
from unmask.errors import UserError
from unmask.model.checkpoint import load
from unmask.model.convert import convert

pytestmark = pytest.mark.slow


def published(name, folder, **keys):
    path = FOLDER / "baselines" / f"txl_{name}.safetensors"
    with safe_open(path, "pt") as file:
        config = json.loads(file.metadata()["config"])
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config | keys))
    save_file(load_file(path), folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("name", ["adaptive", "short"])
def test_an_author_s_file_is_written_back_bit_for_bit(name, tmp_path):
    source = published(name, tmp_path / "hub")
    model = load(source)
    assert (model.objective.name, model.mask) == ("ar", model.spec.vocab - 1)
    convert(source, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back", to="transformer-xl")
    before, after = (load_file(folder / "model.safetensors") for folder in (source, tmp_path / "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert load(tmp_path / "back").spec == model.spec


def test_the_names_of_transformers_are_those_under_one_prefix(tmp_path):
    source = published("adaptive", tmp_path / "hub")
    convert(source, tmp_path / "other", to="transformers-transfo-xl")
    names = load_file(tmp_path / "other" / "model.safetensors").keys()
    assert {"transformer.word_emb.emb_layers.0.weight", "transformer.r_w_bias", "crit.out_layers.0.bias"} <= names
    one, other = load(source), load(tmp_path / "other")
    assert one.spec == other.spec
    assert all(torch.equal(a, b) for a, b in zip(one.network.parameters(), other.network.parameters(), strict=True))


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"pre_lnorm": True}, "pre_lnorm = True"),
        ({"tie_projs": [True, False, True]}, "tie_projs"),
        ({"cutoffs": [20, 50]}, "do not fit a vocabulary of 50"),
        ({"cutoffs": "all"}, "must be a list of ids"),
        ({"mem_len": -1}, "mem_len = -1"),
        ({"d_inner": 25}, "has shape"),
    ],
)
def test_another_network_is_refused_by_name(keys, told, tmp_path):
    with pytest.raises(UserError, match=told):
        load(published("adaptive", tmp_path / "hub", **keys))
