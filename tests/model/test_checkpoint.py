"""A checkpoint loads as what was saved or is refused with the name of what is wrong; nothing half-written appears."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import unmask
from model.golden import FOLDER, config, distance, recorded
from model.worlds import KINDS, random_network
from unmask.errors import UserError
from unmask.model import checkpoint, probe, weights
from unmask.model.checkpoint import load, save
from unmask.model.passes.whole import hidden_states, logits_at
from unmask.text.tokens import vocabulary
from unmask.text.tokens.tokenizer import Tokenizer

LETTERS = vocabulary.character(["ab c"])
OBJECTIVE = {"timed": "sedd", "causal": "ar", "causal, reads before": "ar"}


def official(folder: Path, name: str, **changes) -> Path:
    """A folder as the hub has it: config.json and model.safetensors."""
    c = config(name)
    folder.mkdir()
    keys = {"hidden_size": "hidden_dim", "length": "model_length"}
    told = ("vocab_size", "hidden_size", "cond_dim", "n_blocks", "n_heads", "length", "dropout")
    said = {keys.get(key, key): c[key] for key in told}
    said |= {"time_conditioning": False, "torch_dtype": "float32", "return_dict": False, "model_type": "mdlm"}
    if c["mask_index"] != c["vocab_size"] - 1:
        said["mask_index"] = c["mask_index"]
    (folder / "config.json").write_text(json.dumps(said | changes))
    shutil.copyfile(FOLDER / f"{name}.safetensors", folder / "model.safetensors")
    return folder


def same_log_probs(found: torch.Tensor, told: torch.Tensor) -> bool:
    never = told < -1e5
    return torch.equal(found < -1e5, never) and ((found - told).abs() / (1 + told.abs()))[~never].max() < 2e-5


@pytest.mark.parametrize("name", ["dit_tiny", "dit_mid"])
def test_an_official_folder_without_tokenizer_gives_the_recorded_log_probabilities(name, tmp_path):
    case = recorded(name)
    model = unmask.load(official(tmp_path / "hub", name))
    assert same_log_probs(model.log_probs(case["xt"]), case["logp_subs"])
    assert (model.objective.name, model.mask) == ("mdlm", config(name)["mask_index"])
    assert model.tokenizer is None
    with pytest.raises(UserError, match=r"token ids only: put its tokenizer\.json into"):
        model.text_tokenizer()


def test_an_official_folder_with_time_conditioning_uses_the_noise_level(tmp_path):
    case = recorded("dit_mid")
    model = load(official(tmp_path / "hub", "dit_mid", time_conditioning=True))
    assert same_log_probs(model.log_probs(case["xt"], case["sigma"]), case["logp_subs_time"])
    with pytest.raises(UserError, match="give sigma"):
        model.log_probs(case["xt"])


def test_an_official_causal_folder_is_known_by_its_lack_of_modulation(tmp_path):
    case = recorded("ar_tiny")
    model = load(official(tmp_path / "hub", "ar_tiny"))
    assert (model.objective.name, model.spec.causal, model.spec.reads_before) == ("ar", True, True)
    assert same_log_probs(model.log_probs(case["x0"]), case["logp"])
    told = case["raw_logits"][:, :-1]
    rows = torch.arange(48).view(3, 16)[:, 1:].flatten()
    assert distance(logits_at(model.network, case["x0"], torch.zeros(3), rows), told.flatten(0, 1)) < 2e-5


def test_the_constant_of_the_rotation_may_be_left_out_of_a_file(tmp_path):
    folder, case = official(tmp_path / "hub", "dit_mid"), recorded("dit_mid")
    tensors = load_file(folder / "model.safetensors")
    del tensors["backbone.rotary_emb.inv_freq"]
    save_file(tensors, folder / "model.safetensors")
    assert same_log_probs(load(folder).log_probs(case["xt"]), case["logp_subs"])


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_what_is_visible_is_copied_and_the_mask_is_never_predicted_whatever_the_input(data):
    net = random_network(replace(KINDS["plain"], vocab=7))
    mask = data.draw(st.integers(0, 6))
    rows = st.lists(st.integers(0, 6), min_size=5, max_size=5)
    x_t = torch.tensor(data.draw(st.lists(rows, min_size=1, max_size=3)))
    with torch.no_grad():
        p = checkpoint.Model(net, mask).log_probs(x_t).exp()
    assert torch.allclose(p.sum(-1), torch.ones(x_t.shape, dtype=p.dtype))
    assert (p[x_t == mask][:, mask] == 0).all()
    visible = x_t != mask
    assert torch.equal(p[visible], torch.nn.functional.one_hot(x_t[visible], 7).to(p.dtype))


def test_an_id_outside_the_vocabulary_is_refused():
    with pytest.raises(UserError, match="id 11 is outside the network's vocabulary of 11"):
        checkpoint.Model(random_network(KINDS["plain"]), 10).log_probs(torch.tensor([[3, 11]]))


@pytest.fixture
def saved(tmp_path) -> Path:
    """A checkpoint of ours with a tokenizer."""
    net = random_network(replace(KINDS["modulated"], vocab=LETTERS.size), dtype=torch.float32)
    options = {"mask": LETTERS.mask, "tokenizer": LETTERS, "settings": {"seed": 3}, "step": 700, "ema": True}
    return save(tmp_path / "run" / "model", net, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_network_comes_back_bit_for_bit_and_passes_its_self_test(kind, tmp_path):
    net = random_network(KINDS[kind], dtype=torch.float32)
    save(tmp_path / "model", net, mask=4, objective=OBJECTIVE.get(kind, "mdlm"))
    model = load(tmp_path / "model", trainable=True)
    assert (model.spec, model.mask, model.objective.name) == (KINDS[kind], 4, OBJECTIVE.get(kind, "mdlm"))
    assert model.self_test < 1e-5
    told = net.state_dict()
    assert told.keys() == model.network.state_dict().keys()
    assert all(torch.equal(w, told[name]) for name, w in model.network.state_dict().items())
    assert all(p.requires_grad for p in model.network.parameters())


def test_a_checkpoint_says_what_made_it(saved):
    model = load(saved)
    assert (model.step, model.ema, model.settings) == (700, True, {"seed": 3})
    assert model.text_tokenizer().fingerprint == LETTERS.fingerprint
    assert json.loads((saved / "unmask.json").read_text())["version"] == unmask.__version__
    assert model.num_parameters == sum(p.numel() for p in model.network.parameters())
    assert not any(p.requires_grad for p in model.network.parameters())
    assert sorted(path.name for path in saved.parent.iterdir()) == ["model"]


def refused(folder: Path, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load(folder)


def rewrite(folder: Path, change, *, rehash: bool) -> None:
    """Change the tensors of a checkpoint; with `rehash` the sha256 in unmask.json is made to fit."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file({name: w.contiguous() for name, w in tensors.items()}, path)
    if rehash:
        note = json.loads((folder / "unmask.json").read_text())
        note["weights"] = weights.fingerprint(path)
        (folder / "unmask.json").write_text(json.dumps(note))


def test_a_flipped_byte_is_refused_wherever_it_is(saved):
    path = saved / "model.safetensors"
    whole = path.read_bytes()
    for at in (3, 100, len(whole) // 2, len(whole) - 4):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        refused(saved, "truncated or damaged|sha256|is missing|does not belong|has shape")
    path.write_bytes(whole)
    load(saved)


@pytest.mark.parametrize("keep", [0, 5, 200, 0.5, -1])
def test_a_truncated_file_is_refused(saved, keep):
    path = saved / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole)) if isinstance(keep, float) else keep])
    refused(saved, r"model\.safetensors cannot be read: it is truncated or damaged")


def test_a_missing_an_extra_and_a_reshaped_tensor_are_refused_by_name(saved):
    rewrite(saved, lambda t: t.pop("backbone.blocks.1.norm2.weight"), rehash=True)
    refused(saved, r"backbone\.blocks\.1\.norm2\.weight \[16\] is missing")
    rewrite(saved, lambda t: t.update({"backbone.blocks.1.norm2.weight": torch.ones(1, 16)}), rehash=True)
    refused(saved, r"backbone\.blocks\.1\.norm2\.weight has shape \[1, 16\], not \[16\]")
    rewrite(saved, lambda t: t.update({"backbone.blocks.1.norm2.weight": torch.ones(16).half()}), rehash=True)
    refused(saved, r"backbone\.blocks\.1\.norm2\.weight is F16, not F32")
    rewrite(saved, lambda t: t.update({"backbone.blocks.1.norm2.weight": torch.ones(16)}), rehash=True)
    rewrite(saved, lambda t: t.update({"backbone.blocks.7.norm2.weight": torch.ones(16)}), rehash=True)
    refused(saved, r"backbone\.blocks\.7\.norm2\.weight \[16\] does not belong there")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("blocks.0.norm1.weight", "blocks.0.norm2.weight"),
        ("blocks.0.attn_qkv.weight", "blocks.2.attn_qkv.weight"),
        ("blocks.1.mlp.0.weight", "blocks.2.mlp.0.weight"),
        ("blocks.0.adaLN_modulation.bias", "blocks.1.adaLN_modulation.bias"),
        ("vocab_embed.embedding", "output_layer.linear.weight"),
        ("blocks.0.attn_out.weight", "blocks.1.attn_out.weight"),
    ],
)
def test_the_self_test_catches_two_swapped_tensors(saved, one, other):
    def swap(tensors):
        a, b = f"backbone.{one}", f"backbone.{other}"
        tensors[a], tensors[b] = tensors[b], tensors[a]

    rewrite(saved, swap, rehash=True)
    refused(saved, "self-test failed: the network gives a log-probability of .* where .* was recorded")
    rewrite(saved, swap, rehash=False)


def test_the_self_test_catches_a_weight_that_became_nan(saved):
    rewrite(saved, lambda t: t["backbone.blocks.0.attn_out.weight"].fill_(torch.nan), rehash=True)
    refused(saved, "self-test failed")


def test_the_self_test_catches_a_nan_in_a_row_that_is_not_the_first(saved):
    first, *others = json.loads((saved / "unmask.json").read_text())["probe"]["tokens"]
    token = next(id for row in others for id in row if id not in first)
    rewrite(saved, lambda t: t["backbone.vocab_embed.embedding"][token].fill_(torch.nan), rehash=True)
    refused(saved, "self-test failed")


def test_another_tokenizer_or_none_is_refused(saved):
    vocabulary.character(["xyzw"]).save(saved)
    refused(saved, "not the one this network was saved with")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (saved / name).unlink()
    refused(saved, r"tokenizer\.json is missing from")


def test_a_tokenizer_that_does_not_fit_the_network_is_refused(tmp_path):
    folder = official(tmp_path / "hub", "dit_tiny")
    LETTERS.save(folder)
    refused(folder, "they do not belong together")
    with pytest.raises(UserError, match="they do not belong together"):
        save(tmp_path / "model", random_network(KINDS["plain"]), mask=1, tokenizer=LETTERS)


def test_damaged_notes_and_configs_are_refused_by_name(saved):
    note = (saved / "unmask.json").read_text()
    for text in ("[]", "{", '{"version": "1"}'):
        (saved / "unmask.json").write_text(text)
        refused(saved, r"unmask\.json is damaged")
    (saved / "unmask.json").write_text(json.dumps(json.loads(note) | {"objective": "mdlmm"}))
    refused(saved, "no objective is called 'mdlmm'. Did you mean 'mdlm'")
    (saved / "unmask.json").write_text(json.dumps(json.loads(note) | {"probe": {"tokens": [[1]]}}))
    refused(saved, "self-test in unmask.json is damaged")
    (saved / "unmask.json").write_text(note)
    told = json.loads((saved / "config.json").read_text())
    for change, words in [
        ({"n_heads": 5}, "cannot be split into 5 heads"),
        ({"n_blocks": 2}, r"blocks\.2\..* does not belong there"),
        ({"n_blocks": "3"}, "must be a whole number"),
        ({"mask_index": 99}, "mask_index = 99"),
        ({"torch_dtype": "int8"}, "torch_dtype = 'int8'"),
        ({"tied": 1}, "tied = 1"),
        ({"dropout": "no"}, "dropout = 'no'"),
    ]:
        (saved / "config.json").write_text(json.dumps(told | change))
        refused(saved, words)
    del told["hidden_dim"]
    (saved / "config.json").write_text(json.dumps(told))
    refused(saved, "config.json has no 'hidden_dim'")
    (saved / "config.json").write_text("not json")
    refused(saved, "is not JSON")
    (saved / "config.json").unlink()
    refused(saved, "is not a checkpoint: a folder without config.json")


def test_pickled_weights_are_never_read(saved):
    (saved / "model.safetensors").rename(saved / "pytorch_model.bin")
    refused(saved, r"has no model\.safetensors, but pytorch_model\.bin.*pickled files can run code")


def test_half_precision_files_that_say_so_are_widened(tmp_path):
    folder, case = official(tmp_path / "hub", "dit_mid", torch_dtype="bfloat16"), recorded("dit_mid")
    tensors = load_file(folder / "model.safetensors")
    save_file({name: w.bfloat16() for name, w in tensors.items()}, folder / "model.safetensors")
    model = load(folder)
    assert model.network.vocab_embed.embedding.dtype == torch.float32
    assert distance(model.network.head(hidden_states(model.network, case["xt"])), case["logits_zero"]) < 0.5


def test_paths_that_are_no_checkpoint_are_explained(tmp_path, saved, monkeypatch):
    with pytest.raises(UserError, match=r"there is no folder .*nowhere"):
        load(tmp_path / "nowhere")
    with pytest.raises(UserError, match=f"is a file; a checkpoint is a folder. Did you mean {saved}"):
        load(saved / "config.json")
    (tmp_path / "products.csv").write_text("name,price\n")
    with pytest.raises(UserError, match="Give a folder that `unmask train` wrote"):
        load(tmp_path / "products.csv")

    def offline(name, **options):
        raise ConnectionError("no route to the hub")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(UserError, match="Did you mean 'stories', which comes with unmask"):
        load("storeis")
    with pytest.raises(UserError, match=r"no route to the hub\. Without a network, put its config\.json and model"):
        load("someone/something")


def test_a_hub_name_loads_with_gpt2s_tokenizer_and_without_code(tmp_path, monkeypatch):
    asked, letters = {}, vocabulary.byte()
    net = random_network(replace(KINDS["modulated"], vocab=letters.size), dtype=torch.float32)
    save(tmp_path / "hub", net, mask=letters.mask)
    (tmp_path / "hub" / "unmask.json").unlink()

    def fetch(name, *, revision, allow_patterns):
        asked[name] = allow_patterns
        return str(tmp_path / "hub")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert load("bert-tiny-uncased").tokenizer is None, "a name of the hub's own has no owner"
    assert load("someone/tiny").tokenizer is None
    assert not any(pattern.endswith((".py", "*", ".bin")) for pattern in asked["someone/tiny"])
    monkeypatch.setattr(checkpoint, "GPT2", letters.size)
    monkeypatch.setattr(Tokenizer, "load", lambda path: {"hf:gpt2": letters}[path])
    assert load("someone/tiny").text_tokenizer() is letters
    assert load(tmp_path / "hub").tokenizer is None


@pytest.mark.parametrize("where", ["write_tensors", "write_json", "write_note"])
def test_a_crash_while_saving_leaves_the_old_checkpoint_and_nothing_else(saved, where, monkeypatch):
    before = {path.name: path.read_bytes() for path in saved.iterdir()}

    def full_disk(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, where, full_disk)
    with pytest.raises(UserError, match=r"could not write .*No space left on device.*Nothing was changed"):
        save(saved, random_network(KINDS["plain"]), mask=1)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
    assert [path.name for path in saved.parent.iterdir()] == ["model"]
    monkeypatch.undo()
    save(saved, random_network(KINDS["plain"], dtype=torch.float32), mask=1)
    assert load(saved).mask == 1
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


def test_a_crash_that_cleans_nothing_up_leaves_no_folder_that_looks_complete(tmp_path, monkeypatch):
    def killed(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "write_note", killed)
    monkeypatch.setattr("shutil.rmtree", lambda *a, **o: None)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path / "model", random_network(KINDS["plain"]), mask=1)
    assert not (tmp_path / "model").exists()


def test_the_probe_leaves_the_network_as_it_found_it():
    net = random_network(replace(KINDS["plain"], dropout=0.5)).train()
    told = probe.record_probe(net, mask=3, objective="mdlm")
    assert net.training
    assert probe.check(net, told, mask=3, objective="mdlm") == 0


def test_a_run_stands_for_its_best_checkpoint_or_its_last(saved, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(saved, run / "last")
    assert load(run).folder == run / "last"
    shutil.copytree(saved, run / "best")
    assert load(run).folder == run / "best"
