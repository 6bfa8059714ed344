"""The continuous rivals from the command line: letters, BPE and DNA, each on another backbone, the whole walk."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

import tiny
from contracts.members import model_of
from unmask.diffusion.objective import OBJECTIVES
from unmask.model import room
from unmask.text.tokens.vocabulary import byte

STORY = "once upon a time a fox met a dog. the dog sat by the big red door.\n"
GENES = "".join(f">{i}\n{'ACGGTCATTGCA' * 8}\n" for i in range(12))
LINES = ["--model.heads", 2, "--documents", "line"]
CASES = {
    "ssd-lm": ("transformer", "character", STORY * 30, LINES),
    "diffusion-lm": ("bert", "bpe", STORY * 30, [*LINES, "--vocab", 300]),
    "plaid": ("caduceus", "dna", GENES, []),
}
# What the number is, and what another number is, by its estimator.
MEANS = {
    "ssd-lm": ("of its own sampling loop", ("cross-entropy", "not a bound on -log p")),
    "diffusion-lm": ("the loss that trains it is none", ("printed", "looser than ours")),
    "plaid": ("continuous time and space", None),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_folder_of_texts_becomes_a_model_that_is_resumed_evaluated_judged_and_shown(name, tmp_path, command):
    (backbone, tokenizer, text, options), (means, other) = CASES[name], MEANS[name]
    folder, out = tmp_path / "texts", tmp_path / "run"
    folder.mkdir()
    file = folder / ("a.fa" if tokenizer == "dna" else "a.txt")
    file.write_text(text)
    scored = tmp_path / file.name
    scored.write_text(GENES if tokenizer == "dna" else STORY.strip())
    network = ["--model.name", backbone, "--model.width", 16, "--model.blocks", 1, *options]
    few = ["--objective.steps", 6] if name != "plaid" else []
    shape = ["--text.length", 16, "--optim.batch", 4, "--optim.warmup", 1, "--run.preview", 0, "--run.save-every", 2]
    common = ["--data", folder, "--tokenizer", tokenizer, "--valid", 0.2, "--objective.name", name, *few, *network]
    code, _, said = command("train", *common, *shape, "--steps", 4, "--out", out)
    assert code == 0, said
    told = {file: load_file(out / "last" / file) for file in ("model.safetensors", "training.safetensors")}
    for gone in (out / "checkpoints").glob("step-00000004"):
        shutil.rmtree(gone)
    code, _, said = command("train", "--out", out, "--resume")
    assert code == 0, said
    assert "resumed at step 2" in said
    for file_, tensors in told.items():
        again = load_file(out / "last" / file_)
        assert all(torch.equal(tensors[key], again[key]) for key in tensors)
    code, printed, said = command("evaluate", out, scored, "--rows", 2, "--passes", 1, "--json")
    assert code == 0, said
    found = json.loads(printed)
    assert found["means"].startswith("upper bound on -log p")
    assert means in found["means"]
    assert found["perplexity"] > 1
    if other is not None:
        code, printed, said = command("evaluate", out, scored, "--rows", 2, "--estimator", other[0], "--json")
        assert code == 0, said
        assert other[1] in json.loads(printed)["means"]
    fewer, judge = ["--steps", 2, "--length", 12], tiny.checkpoint(tmp_path / "ar", objective="ar", tokenizer=byte())
    code, printed, said = command("quality", out, "--judge", judge, "--n", 2, *fewer, "--json")
    assert code == 0, said
    assert json.loads(printed)["generative_perplexity"] > 0
    code, printed, said = command("sample", out, "--film", tmp_path / "film.html", *fewer)
    assert code == 0, said
    assert '"cells"' in (tmp_path / "film.html").read_text()


@pytest.mark.slow
def test_a_simplex_that_does_not_fit_is_refused_before_training_with_the_memory_it_needs(
    tmp_path, command, monkeypatch
):
    (tmp_path / "a.txt").write_text(STORY * 30)
    monkeypatch.setattr(room, "machine_bytes", lambda: 1000)
    asked = ["--data", tmp_path / "a.txt", "--tokenizer", "character", "--objective.name", "ssd-lm", "--steps", 2]
    code, _, said = command("train", *asked, "--text.length", 16, "--out", tmp_path / "run")
    assert code == 2
    assert "GB; this machine has 0.0 GB" in said
    assert "--optim.micro" in said
    assert not list((tmp_path / "run").glob("checkpoints/*"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plaid", "diffusion-lm"])
def test_an_embedding_of_another_width_than_that_of_the_model_it_starts_from_is_refused(name, tmp_path, command):
    (tmp_path / "a.txt").write_text("a bad cab fed a hag.\n" * 60)
    out = model_of(tmp_path / "m", OBJECTIVES.usual(name)).folder
    asked = ["--data", tmp_path / "a.txt", "--tokenizer", out, "--objective.name", name, "--steps", 2, "--init", out]
    code, _, said = command("train", *asked, "--objective.embed", 5, "--text.length", 12, "--out", tmp_path / "run")
    assert code == 2
    assert "the objective's embedding.matrix has the size (15, 16), and these settings ask for (15, 5)" in said
