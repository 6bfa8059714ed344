"""Published block diffusion checkpoints load, sample and are written back; what is not honoured is refused."""

import json
import shutil
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file

import unmask
from contracts.members import LETTERS, network_of
from model.golden import FOLDER, arrays_of, distance
from unmask.diffusion.block import BlockDiffusion
from unmask.diffusion.clean import CleanRows
from unmask.errors import UserError
from unmask.model.backbones.transformer import Architecture
from unmask.model.checkpoint import load, save
from unmask.model.convert import convert
from unmask.model.passes.whole import logits_at
from unmask.random import Noise
from unmask.sampling.recipe import Recipe, method_for
from unmask.text.prompt.canvas import of_prompt

pytestmark = pytest.mark.slow


def published(folder, **keys):
    folder.mkdir()
    shutil.copyfile(FOLDER / "block" / "block_tiny.safetensors", folder / "model.safetensors")
    config = json.loads((FOLDER / "block" / "block_tiny.config.json").read_text()) | keys
    (folder / "config.json").write_text(json.dumps({name: v for name, v in config.items() if v is not None}))
    return folder


def test_a_published_model_loads_and_gives_the_recorded_numbers(tmp_path):
    model, cases = load(published(tmp_path / "hub")), arrays_of(FOLDER / "block" / "block_tiny_cases.npz")
    assert model.objective == BlockDiffusion(4, given_first=True)
    assert model.layout.name == "stream"
    x0 = cases["x0"].long()
    shown = model.log_probs(cases["bs4_xt"].long()).gather(2, x0[..., None]).squeeze(2)
    assert distance(shown[:, :4], cases["bs4_logp_x0"][:, :4]) < 1e-4, "the first block has nothing before it"
    noise = Noise(torch.zeros(2), torch.zeros(2, 24))
    exact = model.objective.estimators()["likelihood"].nats(
        partial(logits_at, model.network), CleanRows(x0, noise=noise, mask=model.mask)
    )
    assert distance(exact.bound.view(2, 6, 4).sum(2), cases["main_exact_nll_per_block"]) < 1e-5
    method = method_for(model, Recipe(seed=1))
    *_, end = method.fill(of_prompt([0], length=60, mask=model.mask), seed=1, ids=torch.arange(1))
    assert (end.canvas.tokens != model.mask).all()
    assert method.law == "exact, in blocks of 4 tokens, each given the 20 tokens before it"


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"block_size": 24}, "mdlm"),
        ({"cross_attn": False}, "mdlm"),
        ({"cross_attn": False, "time_conditioning": True, "parameterization": "sedd"}, "sedd"),
        ({"cross_attn": False, "time_conditioning": True, "parameterization": "subs"}, "mdlm"),
        ({"tie_word_embeddings": True, "attn_backend": "flex", "auto_map": {"AutoModel": "modeling.py"}}, "block"),
        ({"cross_attn": None}, "block"),
    ],
)
def test_the_other_checkpoints_of_the_class_are_what_their_config_says(tmp_path, keys, name):
    model = load(published(tmp_path / "hub", **keys))
    assert model.objective.name == name
    canvas = of_prompt([0, 5], length=12, mask=model.mask)
    *_, end = method_for(model, Recipe(seed=1)).fill(canvas, seed=1, ids=torch.arange(1))
    assert end.canvas.tokens[0, :2].tolist() == [0, 5]
    assert (end.canvas.tokens != model.mask).all()
    ours = convert(tmp_path / "hub", tmp_path / "ours")
    assert ours.objective == load(tmp_path / "ours").objective == model.objective


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"block_size": 0}, "block_size = 0"),
        ({"block_size": None}, "block_size = None"),
        ({"block_size": "4"}, "whole number"),
        ({"block_size": 48}, "more than model_length = 24"),
        ({"time_conditioning": True}, "noise level of the first one"),
        ({"cross_attn": False, "time_conditioning": True}, "SEDD or mdlm"),
        ({"cross_attn": False, "parameterization": "d3pm"}, "parameterization"),
        ({"cross_attn": "yes"}, "true or false"),
        ({"hidden_dim": 32}, "shape"),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(tmp_path, keys, match):
    with pytest.raises(UserError, match=match):
        load(published(tmp_path / "hub", **keys))


def test_a_causal_network_of_the_class_is_autoregressive(tmp_path):
    ours = tmp_path / "ours"
    spec = Architecture(vocab=LETTERS.size, length=12, width=16, blocks=1, heads=2, causal=True, reads_before=True)
    save(ours, network_of(spec), mask=LETTERS.mask, objective="ar", tokenizer=LETTERS)
    convert(ours, tmp_path / "there", to="bd3lm")
    config = json.loads((tmp_path / "there" / "config.json").read_text())
    assert (config["model_type"], config["causal"], config["adaln"], config["cross_attn"]) == (
        "bd3lm",
        True,
        False,
        False,
    )
    model = load(tmp_path / "there")
    assert model.objective.name == "ar"
    assert unmask.sample(model, prompt="ab", length=9, seed=1)[0].tokens == (
        unmask.sample(load(ours), prompt="ab", length=9, seed=1)[0].tokens
    )


def test_a_model_is_converted_to_our_layout_and_back(tmp_path):
    source = published(tmp_path / "hub")
    one = convert(source, tmp_path / "ours")
    ours = load(tmp_path / "ours")
    assert ours.objective == one.objective
    convert(tmp_path / "ours", tmp_path / "again", to="bd3lm")
    again = load(tmp_path / "again")
    assert again.objective == one.objective
    told, seen = (load_file(folder / "model.safetensors") for folder in (source, tmp_path / "again"))
    assert {name for name in told if "sampling" not in name} == set(seen)
    assert all(torch.equal(told[name], value) for name, value in seen.items())


def test_a_layout_that_cannot_hold_a_model_says_why(tmp_path):
    spec = Architecture(vocab=LETTERS.size, length=12, width=16, blocks=1, heads=2, cond=8)
    save(tmp_path / "predicts", network_of(spec), mask=LETTERS.mask, objective=BlockDiffusion(4), tokenizer=LETTERS)
    with pytest.raises(UserError, match="never predict the first token"):
        convert(tmp_path / "predicts", tmp_path / "out", to="bd3lm")
    plain = Architecture(vocab=LETTERS.size, length=12, width=16, blocks=1, heads=2, reads_before=True)
    save(tmp_path / "plain", network_of(plain), mask=LETTERS.mask, objective=BlockDiffusion(4), tokenizer=LETTERS)
    with pytest.raises(UserError, match="needs noise features"):
        convert(tmp_path / "plain", tmp_path / "out", to="bd3lm")
    with pytest.raises(UserError, match="cannot record that the objective is 'block'"):
        convert(tmp_path / "predicts", tmp_path / "out", to="official")


def test_a_text_begins_after_a_bos_where_the_first_token_is_never_predicted(tmp_path):
    spec = Architecture(vocab=LETTERS.size, length=12, width=16, blocks=1, heads=2, cond=8)
    folder = tmp_path / "m"
    save(
        folder, network_of(spec), mask=LETTERS.mask, objective=BlockDiffusion(4, given_first=True), tokenizer=LETTERS
    )
    model = load(folder)
    assert model.layout.marks.lead == [LETTERS.bos]
    assert unmask.sample(model, length=9, seed=1)[0].tokens[0] == LETTERS.bos
    x0 = torch.randint(8, (2, 12))
    found = model.objective.nats(
        partial(logits_at, model.network),
        CleanRows(
            x0,
            noise=Noise(torch.tensor([0.3, 0.9]), torch.rand(2, 12)),
            mask=model.mask,
        ),
    )
    assert (found.bound[:, 0] == 0).all()
    assert int(model.objective.counted(torch.ones(2, 12, dtype=torch.bool))) == 22


def test_an_unknown_tensor_is_refused_still(tmp_path):
    folder = published(tmp_path / "hub")
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"backbone.more": torch.zeros(1)}, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"backbone\.more"):
        load(folder)
