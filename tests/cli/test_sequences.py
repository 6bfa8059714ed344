"""Sequences from the command line: masked language models, SEDD on Caduceus, FASTA with intervals, variants."""

import json

import pytest
import torch
from safetensors.torch import load_file

from unmask.cli.main import main

SMALL = ["--optim.batch", "8", "--text.length", "16", "--steps", "3", "--run.preview", "0"]


@pytest.mark.slow
def test_a_masked_language_model_trains_and_reports_no_likelihood_and_others_start_from_it(tmp_path, capsys):
    text, out = tmp_path / "a.fa", tmp_path / "mlm"
    text.write_text("".join(f">{i}\n{'ACGGTCATTGCA' * 8}\n" for i in range(20)))
    caduceus = ["--model.name", "caduceus", "--model.width", "8", "--model.blocks", "1", "--model.equivariant"]
    common = ["--data", str(text), "--tokenizer", "dna", "--pack", "stream", "--valid", "0.2", *SMALL]
    told = ["--run.log-every", "1"]
    assert main(["train", *common, *told, "--out", str(out), "--objective.name", "mlm", *caduceus]) == 0
    said = capsys.readouterr().err
    assert "not a likelihood" in said
    assert "bound" not in said
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert all("bound" not in line for line in lines)
    assert main(["report", str(out), str(out), "--out", str(tmp_path / "curve")]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(out), str(text), "--rows", "4", "--estimator", "mlm"]) == 0
    said = capsys.readouterr().out
    assert "not a likelihood" in said
    assert "perplexity" not in said
    assert "bits per byte" not in said
    assert main(["evaluate", str(out), str(text), "--rows", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["means"].startswith("upper bound on -log p")
    assert found["perplexity"] > 1
    assert main(["sample", str(out), "--length", "12"]) == 0
    for objective, steps in (("mdlm", []), ("sedd", ["--steps", "8"])):
        options = ["--init", str(out), "--out", str(tmp_path / objective), "--objective.name", objective]
        assert main(["train", *common, *options]) == 0
        capsys.readouterr()
        assert main(["evaluate", str(tmp_path / objective), str(text), "--rows", "4", "--json"]) == 0
        assert "bound on -log p" in json.loads(capsys.readouterr().out)["means"]
        assert main(["sample", str(tmp_path / objective), "--length", "12", *steps]) == 0


@pytest.mark.slow
def test_plaid_starts_from_a_masked_language_model_that_reads_one_strand(tmp_path, capsys):
    text, out = tmp_path / "a.fa", tmp_path / "mlm"
    text.write_text("".join(f">{i}\n{'ACGGTCATTGCA' * 8}\n" for i in range(20)))
    common = ["--data", str(text), "--tokenizer", "dna", "--pack", "stream", "--valid", "0.2", *SMALL]
    caduceus = ["--model.name", "caduceus", "--model.width", "8", "--model.blocks", "1"]
    assert main(["train", *common, *caduceus, "--out", str(out), "--objective.name", "mlm"]) == 0
    plaid = ["--init", str(out), "--out", str(tmp_path / "plaid"), "--objective.name", "plaid"]
    assert main(["train", *common, *plaid, "--steps", "1", "--optim.lr", "1e-9", "--optim.ema", "0"]) == 0
    one, other = (load_file(tmp_path / name / "last/model.safetensors") for name in ("mlm", "plaid"))
    shared = [key for key in one if key in other and "layers" in key]
    assert len(shared) > 10
    for key in shared:
        torch.testing.assert_close(other[key], one[key], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("strands", [[], ["--model.equivariant"]])
def test_sedd_trains_a_caduceus_without_the_noise_level_as_input(strands, tmp_path, capsys):
    text, out = tmp_path / "a.fa", tmp_path / "sedd"
    text.write_text(">1\n" + "ACGGTCATTGCA" * 40 + "\n")
    caduceus = ["--model.name", "caduceus", "--model.width", "8", "--model.blocks", "1", *strands]
    common = ["--data", str(text), "--tokenizer", "dna", "--out", str(out), "--objective.name", "sedd", *SMALL]
    assert main(["train", *common, *caduceus]) == 0
    config = json.loads((out / "last/config.json").read_text())["backbone"]
    assert (config["cond"], config["time_conditioning"]) == (0, False)
    capsys.readouterr()
    assert main(["evaluate", str(out), str(text), "--rows", "4", "--json"]) == 0
    assert "score entropy" in json.loads(capsys.readouterr().out)["means"]
    assert main(["sample", str(out), "--length", "12", "--steps", "8"]) == 0


@pytest.mark.slow
def test_a_fasta_file_with_intervals_is_trained_on_and_evaluated_split_by_split(tmp_path, capsys):
    genome, listed, out = tmp_path / "g.fa", tmp_path / "splits.bed", tmp_path / "run"
    genome.write_text(">one\n" + "N" * 32 + "ACGGTCATRGCA" * 40 + "\n>two\n" + "GATTACA" * 40 + "\n")
    listed.write_text("one\t0\t300\ttrain\none\t300\t400\tvalid\ntwo\t0\t100\ttest\ntwo\t100\t110\ttrain\n")
    network = ["--model.name", "caduceus", "--model.width", "8", "--model.blocks", "1"]
    common = ["--data", str(genome), "--intervals", str(listed), "--tokenizer", "caduceus", "--out", str(out)]
    assert main(["train", *common, "--reverse-complement", *network, *SMALL]) == 0
    said = capsys.readouterr().err
    assert "cut within the intervals" in said
    assert "letters that the vocabulary does not have were replaced (R as [UNK]" in said
    assert "validation" in said
    assert "warning: 1 of 2 training sequences are shorter than a row of 16 and are left out" in said
    evaluate = ["evaluate", str(out), str(genome), "--intervals", str(listed), "--json", "--passes", "1"]
    assert main([*evaluate, "--split", "train"]) == 0
    found = json.loads(capsys.readouterr().out)
    ambiguous = genome.read_text().split("\n")[1][:300].count("R")
    assert found["tokens"] == 300 - 32 - ambiguous + 10
    assert found["bytes"] == found["tokens"]
    assert found["record"]["settings"]["pack"] == "windows"
    assert main([*evaluate, "--split", "test"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == 100
    assert (
        main(["train", *common[:-1], str(tmp_path / "bpe"), "--tokenizer", "byte", "--reverse-complement", *SMALL])
        == 2
    )
    assert "not one of DNA" in capsys.readouterr().err
