"""Official to ours and back is the same folder; what the official layout cannot store is refused."""

import json
from dataclasses import replace

import pytest
import torch

import tiny
from model.golden import recorded
from model.test_checkpoint import official, same_log_probs
from model.worlds import KINDS, random_network
from unmask.cli.main import main
from unmask.errors import UserError
from unmask.model.checkpoint import load, save
from unmask.model.convert import convert
from unmask.text.tokens import vocabulary


def files(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["dit_tiny", "dit_mid", "ar_tiny"])
def test_official_to_ours_to_official_is_the_same_folder_bit_for_bit(name, tmp_path):
    theirs = official(tmp_path / "theirs", name)
    convert(theirs, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back", to="official")
    assert files(tmp_path / "back") == files(theirs)
    ours = load(tmp_path / "ours")
    assert ours.self_test is not None
    assert ours.objective == load(theirs).objective


def test_ours_to_official_to_ours_keeps_every_bit_of_the_weights(tmp_path):
    letters = vocabulary.character(["abc"])
    net = random_network(replace(KINDS["modulated"], vocab=letters.size), dtype=torch.float32)
    save(tmp_path / "ours", net, mask=letters.mask, tokenizer=letters)
    convert(tmp_path / "ours", tmp_path / "theirs", to="official")
    assert not (tmp_path / "theirs" / "unmask.json").exists()
    convert(tmp_path / "theirs", tmp_path / "again")
    kept = files(tmp_path / "ours").keys() - {"unmask.json"}
    assert {name: files(tmp_path / "again")[name] for name in kept} == {
        name: files(tmp_path / "ours")[name] for name in kept
    }
    assert load(tmp_path / "again").text_tokenizer().fingerprint == letters.fingerprint


def test_official_files_bear_the_official_names(tmp_path):
    save(tmp_path / "ours", random_network(KINDS["modulated"], dtype=torch.float32), mask=10)
    convert(tmp_path / "ours", tmp_path / "theirs", to="official")
    said = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert {key: said[key] for key in ("vocab_size", "hidden_dim", "cond_dim", "n_blocks", "n_heads")} == {
        "vocab_size": 11, "hidden_dim": 16, "cond_dim": 8, "n_blocks": 3, "n_heads": 2,
    }  # fmt: skip
    assert (said["model_type"], said["model_length"], said["time_conditioning"]) == ("mdlm", 9, False)
    assert not {"mask_index", "tied", "causal", "reads_before"} & said.keys()


@pytest.mark.parametrize(
    ("kind", "key"), [("tied", "causal, tied"), ("plain", "causal"), ("modulated, reads before", "reads_before")]
)
def test_a_network_that_the_official_layout_cannot_describe_is_refused(kind, key, tmp_path):
    save(tmp_path / "ours", random_network(KINDS[kind]), mask=1)
    with pytest.raises(UserError, match=f"no such network: .* needs {key}"):
        convert(tmp_path / "ours", tmp_path / "theirs", to="official")
    assert not (tmp_path / "theirs").exists()


def test_unknown_formats_existing_targets_and_other_objectives_are_refused(tmp_path):
    save(tmp_path / "ours", random_network(KINDS["timed"]), mask=1, objective="sedd")
    with pytest.raises(UserError, match=r"no checkpoint format is called 'offical'. Did you mean 'official'"):
        convert(tmp_path / "ours", tmp_path / "theirs", to="offical")
    with pytest.raises(UserError, match="exists already"):
        convert(tmp_path / "ours", tmp_path / "ours")
    with pytest.raises(UserError, match="objective is 'sedd'"):
        convert(tmp_path / "ours", tmp_path / "theirs", to="official")


def test_the_command_line_converts_and_inspects(tmp_path, capsys):
    theirs, ours = official(tmp_path / "theirs", "dit_mid"), tmp_path / "ours"
    assert main(["convert", str(theirs), str(ours)]) == 0
    assert "77,741 parameters, unmask layout" in capsys.readouterr().out
    assert same_log_probs(load(ours).log_probs(recorded("dit_mid")["xt"]), recorded("dit_mid")["logp_subs"])
    assert main(["inspect", str(ours)]) == 0
    out = capsys.readouterr().out
    assert all(words in out for words in ("77,741", "width 48", "MFLOP per token", "self-test          passed"))
    assert main(["inspect", str(theirs)]) == 0
    assert "none recorded" in capsys.readouterr().out
    assert main(["convert", str(theirs), str(ours)]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize("dtype, digits", [("float16", 11), ("bfloat16", 8)])
def test_rounded_weights_halve_the_file_and_prove_themselves(dtype, digits, tmp_path):
    letters = vocabulary.character(["abc"])
    net = random_network(replace(KINDS["modulated"], vocab=letters.size), dtype=torch.float32)
    save(tmp_path / "ours", net, mask=letters.mask, tokenizer=letters, step=7, ema=True)
    convert(tmp_path / "ours", tmp_path / "half", dtype=dtype)
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("half", "ours")]
    assert sizes[0] < 0.6 * sizes[1]
    half, whole = load(tmp_path / "half"), load(tmp_path / "ours", trainable=True)
    assert half.self_test is not None
    assert half.self_test < 1e-6
    assert (half.step, half.ema, half.tokenizer.fingerprint) == (7, True, letters.fingerprint)
    kept = load(tmp_path / "half", trainable=True).network.state_dict()
    for name, tensor in whole.network.state_dict().items():
        assert torch.allclose(kept[name], tensor, rtol=2.0**-digits, atol=1e-7), name


def test_weights_that_half_precision_cannot_hold_are_refused_by_name_and_nothing_is_written(tmp_path):
    net = random_network(KINDS["modulated"], dtype=torch.float32)
    with torch.no_grad():
        net.vocab_embed.embedding[0, 0] = 1e6
    with pytest.raises(UserError, match=r"vocab_embed.embedding .* float16"):
        save(tmp_path / "half", net, mask=KINDS["modulated"].vocab - 1, dtype="float16")
    with pytest.raises(UserError, match="float8"):
        save(tmp_path / "half", net, mask=KINDS["modulated"].vocab - 1, dtype="float8")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", ["", "float16"])
def test_a_copy_may_say_how_the_model_is_drawn(dtype, tmp_path, capsys):
    source, target = tiny.checkpoint(tmp_path / "a"), tmp_path / "b"
    way = ["--sampler", "entropy", "--top-p", "0.9", *(["--dtype", dtype] if dtype else [])]
    assert main(["convert", str(source), str(target), *way]) == 0
    assert load(target).settings["sampling"] == {"sampler": "entropy", "top_p": 0.9}
    for wrong in (["--sampler", "entropi"], ["--top-p", "2"], ["--top-p", "0.9", "--to", "official"]):
        assert main(["convert", str(source), str(tmp_path / "c"), *wrong]) == 2
    assert not (tmp_path / "c").exists()
