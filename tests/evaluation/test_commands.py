"""evaluate, suite and compare as a person meets them, on a tiny model of bytes."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from unmask.cli.main import main
from unmask.diffusion.autoregressive import Autoregressive
from unmask.diffusion.clean import CleanRows
from unmask.model.backbones.transformer import Architecture, Transformer
from unmask.model.checkpoint import load, save
from unmask.model.denoiser import NetworkView
from unmask.text.corpus.prepare import prepare
from unmask.text.corpus.sources import gather
from unmask.text.tokens.vocabulary import build_tokenizer

TEXT = "the cat sat on the mat.\n\nthe dog sat on the log.\n\na bird sang in the tree.\n"


def made(folder: Path, objective: str = "mdlm", *, scale: float = 0.3, **shape) -> str:
    """A checkpoint with random weights that are not small."""
    tokenizer = build_tokenizer("byte")
    causal = objective == "ar"
    torch.manual_seed(0)
    network = Transformer(
        Architecture(
            vocab=tokenizer.size, length=16, width=16, blocks=2, heads=2, causal=causal, reads_before=causal, **shape
        )
    )
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(scale * torch.randn(parameter.shape))
    save(folder, network, mask=tokenizer.mask, objective=objective, tokenizer=tokenizer)
    return str(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("models")
    made(root / "mdlm")
    made(root / "ar", "ar")
    made(root / "timed", cond=8, time_conditioning=True)
    made(root / "sedd", "sedd", cond=8, time_conditioning=True)
    made(root / "d3pm", "d3pm", cond=8, time_conditioning=True)
    (root / "text.txt").write_text(TEXT)
    return root


def asked(capsys, *arguments: object) -> dict:
    """One command's JSON."""
    assert main([str(argument) for argument in arguments]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 2
    return capsys.readouterr().err


def test_evaluate_prints_one_object_with_its_record(folder, capsys):
    found = asked(capsys, "evaluate", folder / "mdlm", folder / "text.txt", "--json", "--passes", 3)
    assert found["estimator"] == "count"
    assert not found["exact"]
    assert found["tokens"] == len(TEXT) + 1  # the eos
    assert found["bytes"] == pytest.approx(len(TEXT))
    assert found["perplexity"] == pytest.approx(math.exp(found["nats_per_token"]))
    assert found["bits_per_byte"] == pytest.approx(
        found["nats_per_token"] * found["tokens"] / found["bytes"] / math.log(2)
    )
    assert found["words"] == pytest.approx(len(TEXT.split()))
    assert found["nats"] == pytest.approx(found["nats_per_token"] * found["tokens"])
    assert found["perplexity_per_word"] == pytest.approx(math.exp(found["nats"] / found["words"]))
    assert found["units"].keys() <= found.keys()
    low, high = found["interval"]
    assert low < found["nats_per_token"] < high
    assert 0 < found["standard_error"] < 1
    record = found["record"]
    assert record["model"]["weights"] == json.loads((folder / "mdlm" / "unmask.json").read_text())["weights"]
    assert record["model"]["tokenizer"] == load(folder / "mdlm").tokenizer.fingerprint
    assert record["draws"] == "float64"
    assert (record["seed"], record["passes"], record["settings"]["estimator"]) == (0, 3, "count")
    assert record["machine"]["torch"] == torch.__version__
    assert record["data"]["tokens_dropped"] == 0


def test_the_same_seed_gives_the_same_number_and_another_seed_another(folder, capsys):
    line = ("evaluate", folder / "mdlm", folder / "text.txt", "--json")
    first, again = asked(capsys, *line), asked(capsys, *line)
    other = asked(capsys, *line, "--seed", 1)
    assert first["nats_per_token"] == again["nats_per_token"] != other["nats_per_token"]
    assert abs(first["nats_per_token"] - other["nats_per_token"]) < 5 * math.hypot(
        first["standard_error"], other["standard_error"]
    )


def test_the_number_of_an_ar_model_is_its_exact_likelihood_whatever_the_blocks(folder, capsys):
    model = load(folder / "ar")
    ids = [model.tokenizer.eos, *model.tokenizer.encode(TEXT), model.tokenizer.eos]
    whole = Autoregressive().nats(NetworkView(model.network), CleanRows(torch.tensor([ids]), mask=model.mask)).bound
    line = ("evaluate", folder / "ar", folder / "text.txt", "--json", "--documents", "file")
    found = asked(capsys, *line, "--length", 1000)
    assert found["exact"]
    assert found["standard_error"] == 0
    assert found["estimator"] == "ar"
    assert found["tokens"] == len(ids) - 1
    assert found["nats_per_token"] * found["tokens"] == pytest.approx(float(whole.sum()), rel=1e-5)
    blocks = asked(capsys, *line, "--length", 16)
    sliding = asked(capsys, *line, "--length", 16, "--stride", 1)
    assert blocks["tokens"] == sliding["tokens"] == found["tokens"]
    assert blocks["nats_per_token"] != sliding["nats_per_token"]


@pytest.mark.parametrize("model", ["timed", "sedd", "d3pm"])
def test_models_that_see_the_noise_level_are_measured_by_their_own_bound(folder, capsys, model):
    found = asked(capsys, "evaluate", folder / model, folder / "text.txt", "--json", "--passes", 2)
    assert found["estimator"] == {"timed": "count"}.get(model, model)
    assert 0 < found["nats_per_token"] < math.inf


def test_precision_is_reached_before_it_stops(folder, capsys):
    line = ("evaluate", folder / "mdlm", folder / "text.txt", "--json", "--precision")
    rough, fine = asked(capsys, *line, 0.3), asked(capsys, *line, 0.1)
    assert rough["standard_error"] <= 0.3
    assert fine["standard_error"] <= 0.1
    assert fine["passes"] > rough["passes"] >= 2
    assert asked(capsys, *line, 100)["passes"] == 2  # one alone cannot separate Monte Carlo error from other variance


def test_a_short_time_leaves_a_partial_result(folder, capsys):
    line = ("evaluate", folder / "mdlm", folder / "text.txt", "--json", "--seconds", 1e-9, "--batch-tokens", 16)
    found = asked(capsys, *line)
    assert found["partial"]
    assert found["rows"] == 1


def test_tables_say_what_each_number_is(folder, capsys):
    assert main(["evaluate", str(folder / "mdlm"), str(folder / "text.txt"), "--estimator", "order"]) == 0
    out = capsys.readouterr().out
    for word in (
        "nats per token",
        " per token",
        " per word (between white space)",
        "bits per byte",
        "Jensen gap",
        "upper bound on -log p",
        "Monte Carlo standard error",
    ):
        assert word in out


def test_one_pass_says_that_its_error_is_an_upper_estimate(folder, capsys):
    line = ["evaluate", str(folder / "mdlm"), str(folder / "text.txt"), "--passes"]
    said = {}
    for passes in ("1", "2"):
        assert main([*line, passes]) == 0
        said[passes] = "one pass cannot separate it" in " ".join(capsys.readouterr().out.split())
    assert said == {"1": True, "2": False}


def test_nats_of_documents_and_tokens_are_written(folder, tmp_path, capsys):
    path = tmp_path / "nats.jsonl"
    line = ("evaluate", folder / "mdlm", folder / "text.txt", "--json", "--pack", "rows", "--documents", "paragraph")
    found = asked(capsys, *line, "--write", path, "--each-token")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["document"] for line in lines] == [0, 1, 2]
    assert sum(line["tokens"] for line in lines) == found["tokens"]
    total = found["nats_per_token"] * found["tokens"]
    assert sum(line["nats"] for line in lines) == pytest.approx(total)
    assert sum(sum(line["token_nats"]) for line in lines) == pytest.approx(total)
    assert load(folder / "mdlm").tokenizer.decode(lines[1]["ids"]) == "the dog sat on the log."


def test_an_answer_is_scored_given_its_prompt(folder, tmp_path, capsys):
    path = tmp_path / "qa.jsonl"
    path.write_text(json.dumps({"question": "who sat?", "answer": " the cat"}) + "\n")
    line = ("evaluate", folder / "ar", path, "--json", "--given", "question", "--field", "answer")
    found = asked(capsys, *line)
    model = load(folder / "ar")
    ids = [model.tokenizer.eos, *model.tokenizer.encode("who sat?"), *model.tokenizer.encode(" the cat")]
    nats = (
        Autoregressive()
        .nats(NetworkView(model.network), CleanRows(torch.tensor([ids]), mask=model.mask))
        .bound[0, -8:]
    )
    assert found["tokens"] == found["bytes"] == 8
    assert found["nats_per_token"] * 8 == pytest.approx(float(nats.sum()), rel=1e-5)


def test_pairs_are_ranked_by_pseudo_likelihood_and_by_group(folder, tmp_path, capsys):
    path = tmp_path / "pairs.jsonl"
    pairs = [("the cat sat", "the cat sit", "a"), ("dogs run", "dogs runs", "b"), ("he is", "he are", "b")]
    lines = [{"sentence_good": good, "sentence_bad": bad, "kind": kind} for good, bad, kind in pairs]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = asked(capsys, "evaluate", folder / "mdlm", "--pairs", path, "--by", "kind", "--json")
    assert found["estimator"] == "pseudo"
    model = load(folder / "mdlm")

    def pseudo(text: str) -> float:
        ids = torch.tensor(model.tokenizer.encode(text))
        states = ids.repeat(len(ids), 1).fill_diagonal_(model.mask)
        log_p = model.log_probs(states)[range(len(ids)), range(len(ids)), ids]
        return -float(log_p.sum())

    wins = [pseudo(good) < pseudo(bad) for good, bad, _ in pairs]
    assert found["accuracy"] == pytest.approx(np.mean(wins))
    assert found["standard_error"] == pytest.approx(np.std(wins, ddof=1) / 3**0.5)
    assert [(group["name"], group["pairs"]) for group in found["groups"]] == [("a", 1), ("b", 2)]


def test_prepared_data_gives_the_number_of_its_text_and_another_tokenizers_is_refused(folder, tmp_path, capsys):
    source = tmp_path / "valid.txt"
    source.write_text(TEXT)
    for name, kind in (("same", "byte"), ("other", "character")):
        with gather(source) as sources:
            list(prepare(sources, build_tokenizer(kind, [TEXT]), tmp_path / name))
    of_text = asked(capsys, "evaluate", folder / "mdlm", source, "--json")
    of_shards = asked(capsys, "evaluate", folder / "mdlm", tmp_path / "same", "--json", "--split", "train")
    assert of_shards["nats_per_token"] == of_text["nats_per_token"]
    assert of_shards["bits_per_byte"] == pytest.approx(of_text["bits_per_byte"])
    error = refused(capsys, "evaluate", folder / "mdlm", tmp_path / "other", "--split", "train")
    assert "was prepared with another tokenizer" in error


def test_compare_says_whether_numbers_differ_and_what_could_be_why(folder, tmp_path, capsys):
    text = folder / "text.txt"
    for name, more in (("a", ()), ("b", ("--seed", 5)), ("c", ("--length", 8)), ("d", ("--estimator", "order"))):
        asked(capsys, "evaluate", folder / "mdlm", text, "--json", "--out", tmp_path / f"{name}.json", *more)
    same = asked(capsys, "report", tmp_path / "a.json", tmp_path / "a.json", "--json")["result"]
    assert same["verdict"]["difference"] == 0
    assert same["differences"] == []
    seeds = asked(capsys, "report", tmp_path / "a.json", tmp_path / "b.json", "--json")["result"]
    assert [one["name"] for one in seeds["differences"]] == ["seed"]
    assert seeds["verdict"]["paired"]
    names = [
        one["name"]
        for one in asked(capsys, "report", tmp_path / "a.json", tmp_path / "c.json", "--json")["result"][
            "differences"
        ]
    ]
    assert "settings.length" in names
    assert main(["report", str(tmp_path / "a.json"), str(tmp_path / "d.json")]) == 0
    out = capsys.readouterr().out
    assert "settings.estimator: count -> order" in out
    assert "the error bars" in out


@pytest.mark.slow
def test_models_of_another_weight_differ_beyond_the_error_bars(folder, tmp_path, capsys):
    made(tmp_path / "other", scale=1.0)
    for name, model in (("a", folder / "mdlm"), ("b", tmp_path / "other")):
        line = ("evaluate", model, folder / "text.txt", "--json", "--estimator", "order", "--passes", 8)
        asked(capsys, *line, "--out", tmp_path / f"{name}.json")
    found = asked(capsys, "report", tmp_path / "a.json", tmp_path / "b.json", "--json")["result"]
    assert found["verdict"]["beyond"]
    assert found["differences"][0]["effect"].startswith("any")
    assert "model.weights" in [one["name"] for one in found["differences"]]


def test_the_suite_prints_one_table_and_keeps_what_could_be_measured(folder, tmp_path, capsys):
    (tmp_path / "ptb").mkdir()
    (tmp_path / "ptb" / "ptb.valid.txt").write_text("he did n't pay\n" * 8)
    (tmp_path / "lm1b_subset").mkdir()
    (tmp_path / "lm1b_subset" / "1b_benchmark.test.tokens").write_text("It 's late .\n" * 8)
    line = ("evaluate", folder / "mdlm", "--data-root", tmp_path, "--suite", "ptb", "lm1b", "arxiv", "--passes", 2)
    line = (*line, "--pack", "stream")
    found = asked(capsys, *line, "--json", "--write", tmp_path / "rows.jsonl", "--out", tmp_path / "all.json")
    assert [one["set"] for one in found["results"]] == ["ptb", "lm1b"]
    assert found["results"][1]["differs"] == "a course's subset, not the official shard"
    assert "holds no file for arxiv" in found["missing"]["arxiv"]
    assert found["results"][0]["record"]["data"]["detokenizer"] == "ptb"
    assert json.loads((tmp_path / "all.json").read_text()) == found
    assert {json.loads(row)["set"] for row in (tmp_path / "rows.jsonl").read_text().splitlines()} == {"ptb", "lm1b"}
    assert main([*map(str, line)]) == 0
    table = capsys.readouterr().out
    assert table.splitlines()[0].startswith("text   nats per token")
    assert "upper bound on -log p" in table
    (tmp_path / "empty").mkdir()
    missing = refused(
        capsys, "evaluate", folder / "mdlm", "--suite", "ptb", "lm1b", "--data-root", tmp_path / "empty"
    )
    assert [line.split()[0] for line in missing.splitlines()] == ["unmask:", *2 * [str(tmp_path / "empty")]]
    assert "Did you mean 'ptb'" in refused(capsys, "evaluate", folder / "mdlm", "--suite", "ptp")
    assert "what should be measured" in refused(capsys, "evaluate", folder / "mdlm", "text.txt", "--suite", "ptb")


def test_mistakes_are_told_in_a_sentence(folder, tmp_path, capsys):
    model, text = folder / "mdlm", folder / "text.txt"
    (tmp_path / "empty.txt").write_text("")
    assert "empty" in refused(capsys, "evaluate", model, tmp_path / "empty.txt")
    assert "not one row of 512" in refused(
        capsys, "evaluate", folder / "mdlm", text, "--pack", "wrap", "--length", 512
    )
    assert "give DATA, --pairs" in refused(capsys, "evaluate", model)
    assert "Did you mean 'count'" in refused(capsys, "evaluate", model, text, "--estimator", "cuont")
    assert "--passes must be 0 or more" in refused(capsys, "evaluate", model, text, "--passes", -1)
    for endless in ("--precision", "--seconds"):  # neither is ever reached
        for value in ("nan", "inf"):
            assert f"{endless} must be 0 or more" in refused(capsys, "evaluate", model, text, endless, value)
    assert "no folder" in refused(capsys, "evaluate", tmp_path / "nowhere", text)
    assert "cannot write" in refused(capsys, "evaluate", model, text, "--out", tmp_path / "no" / "where.json")
    (tmp_path / "bad.json").write_text("{}")
    assert "holds no result" in refused(capsys, "report", tmp_path / "bad.json", tmp_path / "bad.json")
    (tmp_path / "pairs.jsonl").write_text('{"sentence_good": "a"}\n')
    assert "no field is called 'sentence_bad'" in refused(
        capsys, "evaluate", model, "--pairs", tmp_path / "pairs.jsonl"
    )


def test_nan_weights_are_named_by_evaluate_and_inspect(folder, tmp_path, capsys):
    broken = tmp_path / "broken"
    assert main(["convert", str(folder / "timed"), str(broken), "--to", "official"]) == 0
    weights = load_file(broken / "model.safetensors")
    name = next(name for name in weights if "bias" in name)
    weights[name][0] = torch.nan
    save_file(weights, broken / "model.safetensors")
    message = refused(capsys, "evaluate", broken, folder / "text.txt")
    assert "the network gave NaN" in message
    assert "unmask inspect" in message
    assert main(["inspect", str(broken)]) == 0
    assert "NaN or infinite weights in " in capsys.readouterr().out
    assert main(["inspect", str(folder / "mdlm")]) == 0
    assert "NaN" not in capsys.readouterr().out
