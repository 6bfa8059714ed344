"""N stands for no base: it is seen and never scored, in answers and in pairs; marks between sequences neither."""

import json

import pytest

from contracts.members import network_of
from unmask.cli.main import main
from unmask.model.backbones.caduceus import CaduceusSpec
from unmask.model.checkpoint import save
from unmask.text.tokens import vocabulary

pytestmark = pytest.mark.slow

DNA = vocabulary.dna()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    network = network_of(CaduceusSpec(vocab=DNA.size, length=16, width=16, blocks=1))
    return save(tmp_path_factory.mktemp("dna") / "m", network, mask=DNA.mask, objective="mlm", tokenizer=DNA)


def told(capsys, *words):
    capsys.readouterr()
    code = main([*map(str, words)])
    out = capsys.readouterr()
    return (code, json.loads(out.out)) if code == 0 else (code, out.err)


def test_an_answer_counts_its_bases_only(folder, tmp_path, capsys):
    path = tmp_path / "qa.jsonl"
    path.write_text(json.dumps({"q": "AC", "a": "GNNT"}) + "\n" + json.dumps({"q": "AC", "a": "NN"}) + "\n")
    code, found = told(capsys, "evaluate", folder, path, "--json", "--given", "q", "--field", "a")
    assert (code, found["tokens"], found["rows"]) == (0, 2, 1)


def test_pairs_differ_only_by_their_bases(folder, tmp_path, capsys):
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"sentence_good": "ACGN", "sentence_bad": "NNN"}) + "\n")
    code, error = told(capsys, "evaluate", folder, "--pairs", path, "--json")
    assert code == 2
    assert "no letter that is scored" in error
    path.write_text(json.dumps({"sentence_good": "ACGNNN", "sentence_bad": "ACGNNN"}) + "\n")
    code, found = told(capsys, "evaluate", folder, "--pairs", path, "--json")
    assert (code, found["accuracy"]) == (0, 0.5)


@pytest.mark.parametrize("tokenizer", [DNA, vocabulary.caduceus()], ids=["dna", "caduceus"])
def test_of_a_fasta_file_only_bases_are_scored_if_no_packing_is_recorded(tokenizer, tmp_path, capsys):
    network = network_of(CaduceusSpec(vocab=tokenizer.size, length=16, width=16, blocks=1))
    folder = save(tmp_path / "m", network, mask=tokenizer.mask, objective="mlm", tokenizer=tokenizer)
    path = tmp_path / "g.fa"
    path.write_text(">a\nACGTNACGTA\n>b\nGATTACA\n")
    code, found = told(capsys, "evaluate", folder, path, "--json", "--passes", "1")
    assert (code, found["tokens"], found["bytes"]) == (0, 16, 16)
    assert found["record"]["settings"]["pack"] == "windows"
    code, found = told(capsys, "evaluate", folder, path, "--json", "--passes", "1", "--pack", "stream")
    assert (code, found["tokens"]) == (0, 18)


def test_letters_that_were_replaced_are_counted_apart_and_sequences_have_no_perplexity_per_word(
    folder, tmp_path, capsys
):
    (tmp_path / "a.fa").write_text(">one\n" + "ACGT" * 200 + "RRYNN\n")
    words = ["evaluate", folder, tmp_path / "a.fa", "--passes", "1", "--estimator", "count"]
    code, found = told(capsys, *words, "--json")
    assert code == 0
    assert found["record"]["data"]["replaced"] == {"R as N": 2, "Y as N": 1}
    assert found["perplexity_per_word"] is None
    assert main([*map(str, words)]) == 0
    printed = capsys.readouterr().out
    assert "3 letters that the vocabulary does not have were replaced (R as N: 2, Y as N: 1)" in printed
    assert "per word" not in printed
