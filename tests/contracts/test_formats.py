"""Every layout is recognised by what its files say, and nothing is read as something else."""

import json
import shutil
from dataclasses import replace
from itertools import product

import pytest
import torch
from safetensors.torch import load_file, save_file

from contracts.members import LETTERS, NAMES, model_of, network_of, spec_of
from model.test_checkpoint import official
from unmask.diffusion.objective import OBJECTIVES
from unmask.errors import UserError
from unmask.model.checkpoint import load, save
from unmask.model.convert import convert
from unmask.model.format import FORMATS, Format, recognise_format
from unmask.model.formats.dialects import DIALECTS


def change(folder, **keys):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    return folder


# Layouts of variants: the fields of a backbone in which they differ from its defaults.
VARIANTS = {
    "roberta": {"offset": 2},
    "distilbert": {"segments": 0},
    "albert": {"embedding": 8, "shared": True},
    "mosaicbert": {"alibi": True, "gated": True, "joined": True, "vocab": 16},
}


def held_by(name: str, folder):
    """A checkpoint of ours with a network that a layout can hold, and the layout's reason to refuse the others."""
    layout, refusals = FORMATS[name](), []
    known = ["bert"] if name in VARIANTS else NAMES["backbones"]
    for backbone, objective in product(known, ("mdlm", "ar")):
        try:
            spec = replace(spec_of(backbone, causal=objective == "ar"), **VARIANTS.get(name, {}))
            layout.config(spec, OBJECTIVES.entry(objective).make(), mask=LETTERS.mask, dtype="float32")
            return save(folder, network_of(spec), mask=LETTERS.mask, objective=objective, tokenizer=LETTERS)
        except UserError as error:
            refusals.append(str(error))
    raise AssertionError(refusals)


WRITTEN = [name for name in sorted(FORMATS) if FORMATS[name].config is not Format.config]


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_in_a_layout_is_recognised_as_it(name, tmp_path):
    folder = source = held_by(name, tmp_path / "ours")
    if name != "unmask":
        folder = tmp_path / "again"
        convert(source, folder, to=name)
    files, layout = recognise_format(folder)
    assert layout.name == name
    assert [other for other in FORMATS if FORMATS[other]().matches(files)] == [name]
    one, other = load(source), load(folder)
    assert layout.read(files).spec == other.spec
    assert (other.mask, other.objective.name) == (one.mask, one.objective.name)
    for a, b in zip(one.network.parameters(), other.network.parameters(), strict=True):
        assert torch.equal(a, b)


def test_layouts_that_are_not_written_are_tables_of_published_models(tmp_path):
    """tests/model/formats/test_dialects.py and tests/model/backbones/test_decoder.py read all of them."""
    assert set(FORMATS) - set(WRITTEN) == {*DIALECTS, "duo", "gguf", "sedd"}
    source = model_of(tmp_path / "ours", "mdlm", "decoder").folder
    for name in DIALECTS:
        with pytest.raises(UserError, match=f"the layout '{name}' can be read but not written"):
            convert(source, tmp_path / name, to=name)


def test_exactly_one_layout_knows_a_folder(tmp_path):
    for folder in (official(tmp_path / "a", "dit_mid"), model_of(tmp_path / "b", "mdlm").folder):
        files, _ = recognise_format(folder)
        assert sum(FORMATS[name]().matches(files) for name in FORMATS) == 1


@pytest.mark.parametrize(
    "keys", [{"model_type": "bd4lm", "block_size": 4}, {"block_size": 4}, {"model_type": "gpt3"}]
)
def test_another_model_type_or_a_block_size_is_refused_by_name(keys, tmp_path):
    folder = change(official(tmp_path / "hub", "dit_tiny"), **keys)
    with pytest.raises(UserError, match=r"does not know: .*(bd4lm|block_size 4|gpt3)"):
        load(folder)


def test_shards_with_an_index_load_as_one_file_does(tmp_path):
    whole = official(tmp_path / "whole", "dit_mid")
    parts = shutil.copytree(whole, tmp_path / "parts")
    tensors = load_file(parts / "model.safetensors")
    (parts / "model.safetensors").unlink()
    names = sorted(tensors)
    places = {}
    for number, some in enumerate((names[::2], names[1::2]), 1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: tensors[name] for name in some}, parts / file)
        places |= dict.fromkeys(some, file)
    index = parts / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    one, other = load(whole), load(parts)
    for a, b in zip(one.network.parameters(), other.network.parameters(), strict=True):
        assert torch.equal(a, b)
    swapped = {names[0]: places[names[1]], names[1]: places[names[0]]}
    index.write_text(json.dumps({"metadata": {}, "weight_map": places | swapped}))
    with pytest.raises(UserError, match="do not agree on the tensor"):
        load(parts)
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    convert(parts, tmp_path / "ours")
    assert load(tmp_path / "ours").self_test is not None
    (parts / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(UserError, match="lacks model-00002-of-00002"):
        load(parts)
    index.write_text(json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}}))
    with pytest.raises(UserError, match="in the same folder"):
        load(parts)
    index.write_text("{}")
    with pytest.raises(UserError, match="no weight_map"):
        load(parts)


def test_a_network_that_the_published_layout_cannot_hold_is_kept_in_ours(tmp_path):
    spec = spec_of("toy-backbone")
    model = load(save(tmp_path / "m", network_of(spec), mask=LETTERS.mask, tokenizer=LETTERS))
    assert model.spec == spec
    with pytest.raises(UserError, match="holds transformers only"):
        convert(tmp_path / "m", tmp_path / "official", to="official")
    with pytest.raises(UserError, match="Did you mean 'toy-backbone'"):
        load(change(tmp_path / "m", backbone={"name": "toy-bakbone"}))


def test_version_1_of_our_layout_names_the_objective_and_leaves_the_rest_to_the_settings(tmp_path):
    folder = model_of(tmp_path / "m", "d3pm").folder
    note = json.loads((folder / "unmask.json").read_text())
    trained = {"name": "d3pm", "schedule": "cosine", "steps": 100, "times": "count", "low": 0.0, "weight": "bound"}
    for objective, schedule in ((trained, "Cosine(eps=0.001)"), (trained | {"schedule": "log-linear"}, "eps=0.0)")):
        old = note | {"objective": "d3pm", "settings": {"objective": objective}}
        (folder / "unmask.json").write_text(json.dumps(old))
        found = load(folder).objective
        assert found.steps == 100
        assert repr(found.schedule).endswith(schedule)
