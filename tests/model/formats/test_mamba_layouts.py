"""Published Mamba checkpoints, of state-spaces and of transformers, load without their code and are written back."""

import json

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file

from model.golden import dna_cases, dna_folder, relative
from unmask.errors import UserError
from unmask.model.checkpoint import load
from unmask.model.convert import convert
from unmask.model.passes.whole import read_on
from unmask.model.passing import Empty

LAYOUTS = {"state-spaces": "mamba_tiny", "transformers-mamba": "mamba_tiny_hf"}


def published(name, folder, **keys):
    """The recorded network as the authors publish it, with some keys of its config changed."""
    dna_folder(LAYOUTS[name], folder)
    kind = {"model_type": "mamba"} if name == "transformers-mamba" else {}
    return change(folder, **kind, **keys)


def change(folder, **keys):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    return folder


def logits(model, tokens):
    with torch.no_grad():
        return model.network.head(read_on(model.network, tokens, Empty(0))[0])


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_published_file_gives_the_recorded_logits_and_is_written_back_bit_for_bit(name, tmp_path):
    case = dna_cases("mamba_tiny")
    source = published(name, tmp_path / "hub")
    model = load(source)
    told = case["logits" if name == "state-spaces" else "logits_hf"]
    assert relative(logits(model, case["input_ids"]), told) < 2e-5
    assert (model.spec.vocab, model.mask, model.objective.name) == (16, 15, "ar")
    convert(source, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back", to=name)
    before, after = (load_file(folder / "model.safetensors") for folder in (source, tmp_path / "back"))
    if name == "transformers-mamba":  # transformers leaves out what is tied
        del before["lm_head.weight"]
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert relative(logits(load(tmp_path / "back"), case["input_ids"]), told) < 2e-5


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("gone", ["lm_head.weight", "backbone.embedding"])
def test_either_name_of_a_tied_tensor_may_be_missing(name, gone, tmp_path):
    source = published(name, tmp_path / "hub")
    whole = load(source)
    tensors = {key: w for key, w in load_file(source / "model.safetensors").items() if not key.startswith(gone)}
    save_file(tensors, source / "model.safetensors")
    for a, b in zip(load(source).network.parameters(), whole.network.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_mask_is_that_of_a_tokenizer_beside_the_weights(name, tmp_path):
    source = published(name, tmp_path / "hub")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(12)}, unk_token="w0"))
    words.save(str(source / "tokenizer.json"))
    model = load(source)
    assert model.mask == model.tokenizer.mask == 12  # added after the ids of the tokenizer, among the padded rows
    convert(source, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back", to=name)
    assert load(tmp_path / "ours").mask == load(tmp_path / "back").mask == 12


def test_tied_tensors_that_differ_are_refused(tmp_path):
    source = published("state-spaces", tmp_path / "hub")
    tensors = load_file(source / "model.safetensors")
    tensors["lm_head.weight"] += 1
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(UserError, match=r"lm_head.weight and embedding.weight differ"):
        load(source)
    assert load(change(source, tie_embeddings=False)).network.lm_head is not None


@pytest.mark.parametrize(
    ("name", "keys", "told"),
    [
        ("state-spaces", {"ssm_cfg": {"layer": "Mamba2"}}, "layer = 'Mamba2'"),
        ("state-spaces", {"ssm_cfg": {"headdim": 64}}, "'headdim', which unmask does not know"),
        ("state-spaces", {"rms_norm": False}, "rms_norm = False"),
        ("state-spaces", {"attn_layer_idx": [3]}, "attn_layer_idx"),
        ("state-spaces", {"n_layer": "3"}, "whole number from 1"),
        ("transformers-mamba", {"use_bias": True}, "use_bias = True"),
        ("transformers-mamba", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ("transformers-mamba", {"tie_word_embeddings": 1}, "true or false"),
        ("transformers-mamba", {"state_size": 7}, "A_log has shape"),
    ],
)
def test_another_network_is_refused_by_name(name, keys, told, tmp_path):
    with pytest.raises(UserError, match=told):
        load(published(name, tmp_path / "hub", **keys))


@pytest.mark.slow
def test_transformers_agrees_in_both_directions(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.MambaConfig(
        vocab_size=24, hidden_size=20, state_size=5, num_hidden_layers=2, conv_kernel=3, expand=3, time_step_rank=4
    )
    torch.manual_seed(0)
    theirs = transformers.MambaForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    tokens = torch.randint(24, (2, 30))
    with torch.no_grad():
        told = theirs(tokens).logits
    ours = load(tmp_path / "theirs")
    assert relative(logits(ours, tokens), told) < 2e-5
    convert(tmp_path / "theirs", tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back", to="transformers-mamba")
    again = transformers.MambaForCausalLM.from_pretrained(tmp_path / "back").eval()
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, told)
