"""Published HyenaDNA checkpoints load with any of the names of a shared frequency, and are written back."""

import json

import pytest
import torch
from safetensors.torch import load_file

from model.golden import dna_cases, dna_folder, relative
from unmask.errors import UserError
from unmask.model.checkpoint import load
from unmask.model.convert import convert
from unmask.model.passes.whole import hidden_states


def published(folder, *, without=lambda key: False, **keys):
    dna_folder("hyenadna_tiny", folder, without=without)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "hyenadna"} | keys))
    return folder


@pytest.mark.parametrize("kept", [1, 3, 5])
def test_a_published_file_with_one_of_three_frequencies_is_written_back_bit_for_bit(kept, tmp_path):
    source = published(tmp_path / "hub", without=lambda key: key.endswith("freq") and f".{kept}.freq" not in key)
    case = dna_cases("hyenadna_tiny")
    model = load(source)
    assert (model.mask, model.objective.name, model.spec.length) == (3, "ar", 50)
    convert(source, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back", to="hyenadna")
    before, after = (load_file(folder / "model.safetensors") for folder in (source, tmp_path / "back"))
    before = {key.replace(f".{kept}.freq", ".1.freq"): w for key, w in before.items()}
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    with torch.no_grad():
        logits = load(tmp_path / "back").network.head(hidden_states(model.network, case["input_ids"]))
    assert relative(logits[:, 1:], case["logits"][:, :-1]) < 2e-5


def test_missing_positions_are_refused_and_not_computed_for_whatever_length_the_config_says(tmp_path):
    with pytest.raises(UserError, match=r"pos_emb.z \[1, 50, 5\] is missing"):
        load(published(tmp_path / "hub", without=lambda key: key.endswith("pos_emb.z")))


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"hyena_order": 3}, "hyena_order = 3"),
        ({"emb_dim": 4}, "odd number"),
        ({"d_inner": None}, "no 'd_inner'"),
        ({"max_seq_len": 60}, "pos_emb.* has shape"),
    ],
)
def test_another_network_is_refused_by_name(keys, told, tmp_path):
    with pytest.raises(UserError, match=told):
        load(published(tmp_path / "hub", **keys))
