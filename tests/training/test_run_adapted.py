"""Diffusion models out of published autoregressive ones: one command, the base exactly before the first step."""

import json
import shutil
from copy import deepcopy
from dataclasses import replace

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers

import unmask
from model.backbones.test_decoder import VOCAB, dialect_of, logits, saved_peer, tokens
from model.test_gguf_file import SMOLLM, written
from unmask.cli.main import main
from unmask.errors import UserError
from unmask.model.adapter_files import with_adapter
from unmask.model.checkpoint import load
from unmask.model.convert import convert
from unmask.model.passes.whole import logits_at
from unmask.processes.team import Alone
from unmask.settings import merge_settings, read_toml
from unmask.training.data import open_data
from unmask.training.loop import begin
from unmask.training.origin import denoiser_of, origin_of
from unmask.training.phases import phases, sight
from unmask.training.settings import Train

PEERS = ("smollm2", "qwen2", "qwen3", "gpt2")
END = "<|end|>"
LETTERS = [END, *"abcdefghijklmnopqrstuvwxyz .,!?'\"-:;01", "\n"]
SMALL = {
    "text": {"length": 12, "pack": "stream"},
    "optim": {"batch": 4, "lr": 1e-3, "warmup": 0},
    "run": {"preview": 0, "eval_rows": 0, "save_every": 3, "threads": 1},
}
BLOCKS = {"objective": {"name": "block", "size": 4}}


def save_tokenizer(folder):
    """One token for each id of the network, and none for a mask."""
    assert len(LETTERS) == VOCAB
    core = tokenizers.Tokenizer(models.WordLevel({letter: id for id, letter in enumerate(LETTERS)}, unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.decoder = decoders.Fuse()
    core.add_special_tokens([END])
    core.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A text, and folders of published models with random weights."""
    folder = tmp_path_factory.mktemp("adapted")
    (folder / "text.txt").write_text("the cat sat on the mat. a dog ran off.\n" * 60)
    for name in PEERS:
        saved_peer(name, folder / name, eos_token_id=0)
        save_tokenizer(folder / name)
    return folder


def train(home, out, name, *, steps=2, quiet=True, **more):
    settings = {key: {**own, **more.pop(key, {})} for key, own in SMALL.items()}
    return unmask.train(home / "text.txt", out, steps=steps, init=str(home / name), quiet=quiet, **settings, **more)


@torch.enable_grad()
def trained(home, out, name, **more):
    for _ in train(home, out, name, **more):
        pass
    return out


@pytest.mark.slow
@pytest.mark.parametrize(("name", "more"), list(zip(PEERS, (BLOCKS, {}, BLOCKS, {}), strict=True)))
def test_one_command_makes_a_diffusion_model_of_a_published_base(home, tmp_path, name, more, capsys):
    out = trained(home, tmp_path / "run", name, **{**more, "quiet": False})
    model, base = load(out), load(home / name, dialect=dialect_of(name))
    assert f"dialect {dialect_of(name)} (--dialect)" in capsys.readouterr().err
    assert model.objective.name == more.get("objective", {"name": "mdlm"})["name"]
    assert (model.spec.causal, model.spec.before) == (False, True)
    assert (model.mask, model.spec.vocab) == (VOCAB, VOCAB + 1)
    assert model.text_tokenizer().fingerprint == base.text_tokenizer().fingerprint
    assert model.ends == base.ends == {0}
    again = [p.step for p in train(home, out, name, steps=3, resume=True, **more)]
    assert again == [3]
    assert load(out).ends == {0}


@torch.enable_grad()
def begun(home, tmp_path, name, **more):
    """The state before the first step, the base it begins with, its phase and its settings."""
    out = tmp_path / "run"
    steps = train(home, out, name, **more)
    next(steps)
    steps.close()
    asked = read_toml(out / "settings.toml", Train())
    (phase,) = phases(asked)
    base = origin_of(asked, None)
    denoiser = denoiser_of(asked, phase, open_data(asked, out / "data"), base, Alone())
    return begin(denoiser, asked), base, phase


@pytest.mark.parametrize(("name", "more"), list(zip(PEERS, (BLOCKS, {}, {"adapter": {"rank": 2}}, {}), strict=True)))
@torch.no_grad()
def test_before_the_first_step_the_causal_pass_is_the_base_s_bit_for_bit(home, tmp_path, name, more):
    current, base, _ = begun(home, tmp_path, name, **more)
    # a copy: a product of matrices adds in another order where its memory is aligned otherwise
    copied = replace(base, network=deepcopy(base.network).eval())
    current.network.eval()
    seen, told = logits(current, tokens()), logits(copied, tokens())
    assert torch.equal(seen, told)
    assert told.std() > 0.1
    words = current.network.embed_tokens.weight
    assert words.shape[0] == VOCAB + 1
    torch.testing.assert_close(words[VOCAB], words[:VOCAB].mean(0))
    full = logits_at(current.network, tokens(), None, torch.arange(tokens().numel()))
    assert not torch.equal(full.view(*tokens().shape, -1)[:, 1:, :VOCAB], told[:, :-1]), "training sees both sides"


@torch.no_grad()
def test_a_long_anneal_begins_with_the_base_itself_at_masks_too(home, tmp_path):
    """At first a mask is predicted from what is before it, exactly as by the base."""
    current, base, phase = begun(home, tmp_path, "smollm2", warm={"anneal": 12})
    x = tokens().index_fill(1, torch.tensor([4, 9]), VOCAB)
    rows = torch.arange(x.numel()).view(x.shape)[:, [4, 9]].flatten()
    seen = logits_at(current.network.eval(), x, None, rows, allowed=sight(phase, 0, x.shape[1]))
    told = logits(base, x)[:, [3, 8]].flatten(0, 1)
    torch.testing.assert_close(seen[:, :VOCAB], told, rtol=1e-5, atol=1e-5)
    free = logits_at(current.network, x, None, rows)
    assert (free[:, :VOCAB] - told).abs().max() > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [{"warm": {"anneal": 4}}, BLOCKS | {"warm": {"anneal": 4}}, {"adapter": {"rank": 2, "dropout": 0.1}}],
    ids=["mdlm", "blocks", "LoRA"],
)
def test_a_resumed_run_equals_one_without_a_pause_bit_for_bit(home, tmp_path, more):
    shutil.copytree(home / "smollm2", tmp_path / "base")
    (tmp_path / "text.txt").write_bytes((home / "text.txt").read_bytes())
    whole = trained(tmp_path, tmp_path / "whole", "base", steps=6, **more)
    steps = train(tmp_path, tmp_path / "paused", "base", steps=6, **more)
    next(step for step in steps if step.step == 3)
    steps.close()
    if "adapter" not in more:
        shutil.rmtree(tmp_path / "base")  # its weights, tokenizer and ends are in the checkpoint
    again = trained(tmp_path, tmp_path / "paused", "base", steps=6, resume=True, **more)
    for name in ("training.safetensors", "adapter_model.safetensors" if "adapter" in more else "model.safetensors"):
        assert (again / "last" / name).read_bytes() == (whole / "last" / name).read_bytes(), name


def test_an_adapter_over_a_published_base_merged_is_the_one_apart(home, tmp_path):
    out = trained(home, tmp_path / "run", "smollm2", steps=4, adapter={"rank": 2}, optim={"lr": 0.05})
    folder = (out / "last").resolve()
    merged_one = load(folder)
    apart = with_adapter(load(home / "smollm2", dialect="llama"), folder, apart=True)
    x, rows = tokens(), torch.arange(tokens().numel())
    with torch.no_grad():
        one, other = (logits_at(model.network, x, None, rows) for model in (merged_one, apart))
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(logits(merged_one, x), logits(apart, x), rtol=1e-5, atol=1e-5)
        assert (logits(merged_one, x) - logits(load(home / "smollm2", dialect="llama"), x)).abs().max() > 1e-2
    assert merged_one.ends == {0}
    assert main(["convert", str(folder), str(tmp_path / "one")]) == 0
    with torch.no_grad():
        assert torch.equal(logits_at(load(tmp_path / "one").network, x, None, rows), one)


def test_a_gguf_file_is_a_base_with_its_tokenizer_and_its_end(home, tmp_path):
    _, path = written("llama", tmp_path, **SMOLLM)
    (tmp_path / "text.txt").write_bytes((home / "text.txt").read_bytes())
    model = load(trained(tmp_path, tmp_path / "run", path.name))
    assert (model.settings["dialect"], model.ends, model.text_tokenizer().eos) == ("llama", {0}, 0)
    assert (
        model.text_tokenizer().decode(model.text_tokenizer().encode("the cat sat on the mat."))
        == "the cat sat on the mat."
    )


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"dialect": "diffugpt"}, "does not say which id is the mask"),
        ({"dialect": "dream"}, "does not describe a model of the dialect 'dream'"),
        ({"dialect": "lama"}, "Did you mean 'llama'"),
        ({"init": "", "dialect": "llama"}, "is the family of --init"),
        ({"text": {"length": 99}}, "has 32 positions"),
        ({"text": {"tokenizer": "byte"}}, "was tokenized with another tokenizer"),
    ],
)
def test_bases_and_settings_that_do_not_fit_are_refused(home, tmp_path, more, told):
    asked = {**SMALL, "quiet": True, "init": str(home / "gpt2"), **more}
    with pytest.raises(UserError, match=told):
        next(unmask.train(home / "text.txt", tmp_path / "run", steps=2, **asked))


def test_files_that_may_be_two_diffusion_models_need_a_name(home, tmp_path):
    shutil.copytree(home / "qwen3", tmp_path / "a2d")
    config = json.loads((tmp_path / "a2d/config.json").read_text())
    (tmp_path / "a2d/config.json").write_text(json.dumps(config | {"model_type": "a2d-qwen3"}))
    (tmp_path / "text.txt").write_bytes((home / "text.txt").read_bytes())
    with pytest.raises(UserError, match=r"--dialect .*a2d-mdlm, a2d-bd3lm"):
        next(train(tmp_path, tmp_path / "run", "a2d"))


@torch.no_grad()
def test_the_first_layers_of_a_base_are_a_base(home, tmp_path, capsys):
    convert(home / "smollm2", tmp_path / "short", dialect="llama", blocks=1)
    short, whole = load(tmp_path / "short"), load(home / "smollm2", dialect="llama")
    whole.network.layers = whole.network.layers[:1]
    whole.network.spec = short.spec
    torch.testing.assert_close(logits(short, tokens()), logits(whole, tokens()), rtol=0, atol=0)
    assert (short.spec.blocks, short.ends, short.objective.name) == (1, {0}, "ar")
    assert load(trained(home, tmp_path / "run", str(tmp_path / "short"))).spec.blocks == 1
    for blocks in (2, -1):
        with pytest.raises(UserError, match=r"the network has 2 layers; keep 1 to 1"):
            convert(home / "smollm2", tmp_path / "none", dialect="llama", blocks=blocks)
    assert main(["convert", str(tmp_path / "short"), str(tmp_path / "x"), "--blocks", "4"]) == 2
    assert "the network has 1 layers" in capsys.readouterr().err


def test_settings_of_a_run_keep_what_was_assumed(home, tmp_path):
    out = trained(home, tmp_path / "run", "qwen2")
    assert read_toml(out / "settings.toml", Train()).dialect == "qwen2"
    assert merge_settings(Train(), {"init": "x", "dialect": "qwen2"}).dialect == "qwen2"
