"""`unmask classify` from a file to a model that answers; the same in Python; mistakes end with code 2."""

import csv
import gzip
import json
from dataclasses import replace

import pytest

import unmask
from contracts.members import network_of
from model.encoders import small_bert
from tiny import checkpoint
from unmask.cli.classify import Settings, default
from unmask.cli.main import main
from unmask.model.backbones.caduceus import CaduceusSpec
from unmask.model.checkpoint import save
from unmask.model.reading import Reading
from unmask.text.corpus.examples import Columns
from unmask.text.tokens import vocabulary

pytestmark = pytest.mark.slow
QUICK = ["--epochs", "1", "--batch", "8", "--device", "cpu"]


@pytest.fixture
def reviews(tmp_path):
    checkpoint(tmp_path / "model")
    lines = [f"{'ab' if i % 3 else 'cd'}{'efgh'[i % 4]},{'good' if i % 3 else 'bad'}\n" for i in range(30)]
    (tmp_path / "reviews.csv").write_text("text,label\n" + "".join(lines))
    return tmp_path


def classify(folder, *more, out="run", data="reviews.csv"):
    data = str(folder / data) if (folder / data).exists() else data
    return main(["classify", str(folder / "model"), data, "--out", str(folder / out), *QUICK, *more])


def test_a_run_prints_its_scores_over_the_seeds_and_new_texts_are_answered(reviews, capsys):
    assert classify(reviews, "--seeds", "2") == 0
    said = capsys.readouterr()
    assert "validation accuracy" in said.out
    assert "2 seeds) on 3 texts" in said.out
    assert "2 labels: bad, good; 27 texts for training, 3 for validation" in said.err
    result = json.loads((reviews / "run/result.json").read_text())
    assert result["labels"] == ["bad", "good"]
    assert len(result["valid"]["accuracy"]["values"]) == 2
    assert result["model"]["weights"]
    (reviews / "new.jsonl").write_text('{"text": "abe"}\n{"text": "cdf"}\n')
    command = ["classify", str(reviews / "run"), str(reviews / "new.jsonl"), "--predict", "--out"]
    assert main([*command, str(reviews / "answers.csv")]) == 0
    with (reviews / "answers.csv").open() as file:
        lines = list(csv.DictReader(file))
    python = unmask.Predictor.load(reviews / "run").predict(["abe", "cdf"])
    assert [line["prediction"] for line in lines] == [one.label for one in python]
    (reviews / "new.csv").write_text("text,label\nabe,great\n")
    assert main(["classify", str(reviews / "run"), str(reviews / "new.csv"), "--predict", "--out", "x.csv"]) == 2
    assert "the label 'great' was not in the training data: bad, good" in capsys.readouterr().err


def test_python_gives_the_numbers_of_the_command(reviews):
    assert classify(reviews, "--seed", "3", "--lr", "0.01") == 0
    files = [reviews / "model", reviews / "reviews.csv", reviews / "again"]
    found = unmask.classify(*files, epochs=1.0, batch=8, seed=3, lr=0.01, device="cpu", quiet=True)
    assert found["valid"] == json.loads((reviews / "run/result.json").read_text())["valid"]
    with pytest.raises(unmask.UserError, match=r"no setting is called 'epoch'. Did you mean 'epochs'"):
        unmask.classify(*files, epoch=1)


def test_a_benchmark_has_its_protocol_and_a_submission(reviews, capsys):
    for name, lines in (("train", 12), ("dev", 4), ("test", 3)):
        rows = ["sentence\tlabel", *(f"ab{'cd'[i % 2]}\t{i % 2}" for i in range(lines))]
        rows = ["index\tsentence", *(f"{i}\tabc" for i in range(lines))] if name == "test" else rows
        folder = reviews / "glue" / "SST-2"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.tsv.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    assert classify(reviews, "--data-root", str(reviews), data="sst2") == 0
    assert "the published SST-2 has 67,349 train texts, this one 12" in capsys.readouterr().err
    result = json.loads((reviews / "run/result.json").read_text())
    assert result["settings"]["tune"]["keep"] == "last"
    assert result["settings"]["tune"]["lr"] == 2e-5
    assert result["settings"]["tune"]["batch"] == 8  # said on the command line
    assert "test" not in result
    lines = (reviews / "run/seed-1/SST-2.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction"
    assert [line[:2] for line in lines[1:]] == ["0\t", "1\t", "2\t"]


@pytest.fixture
def rte(reviews):
    """A classifier of a benchmark of pairs, and the benchmark."""
    folder = reviews / "glue" / "RTE"
    folder.mkdir(parents=True)
    rows = [f"{i}\tab{'cd'[i % 2]}\tef\t{('', 'not_')[i % 2]}entailment" for i in range(12)]
    for name, some in (("train", rows), ("dev", rows[:5])):
        (folder / f"{name}.tsv").write_text("\n".join(["index\tsentence1\tsentence2\tlabel", *some]))
    (folder / "test.tsv").write_text("index\tsentence1\tsentence2\n0\tab\tcd\n1\tgh\tab\n")
    assert classify(reviews, "--data-root", str(reviews), "--steps", "2", data="RTE") == 0
    return reviews


def test_a_benchmark_is_predicted_by_its_name(rte, capsys):
    scores = json.loads((rte / "run/result.json").read_text())["valid"]["accuracy"]["mean"]
    command = ["classify", str(rte / "run"), "RTE", "--predict", "--data-root", str(rte)]
    capsys.readouterr()
    assert main(command) == 0
    said = capsys.readouterr().out
    assert f"accuracy  {scores:.4f}" in said
    assert "test: 2 texts without labels" in said
    (rte / "sent").mkdir()
    assert main([*command, "--out", str(rte / "sent" / "dev.csv")]) == 0
    assert f"{rte / 'sent' / 'dev.csv'}: 5 answers (valid)" in capsys.readouterr().out
    own = (rte / "run/seed-1/RTE.tsv").read_text()
    assert (rte / "sent" / "RTE.tsv").read_text() == own
    assert (rte / "sent" / "dev.csv").read_text() == (rte / "run/seed-1/valid.csv").read_text()
    assert main(["classify", str(rte / "run"), "RTF", "--predict", "--out", "x.csv"]) == 2
    assert "no benchmark is called 'RTF'. Did you mean 'RTE'" in capsys.readouterr().err


def test_columns_of_the_training_are_the_defaults_of_a_prediction_and_single_texts_are_refused(rte, capsys):
    (rte / "new.tsv").write_text("sentence1\tsentence2\tlabel\nab\tcd\tentailment\n")
    (rte / "one.csv").write_text("text\nab\n")
    command = ["classify", str(rte / "run"), str(rte / "new.tsv"), "--predict", "--out", str(rte / "a.csv")]
    assert default(command[1:]).columns == Columns("sentence1", "sentence2", "label")
    assert default([str(rte / "run"), "new.tsv"]).columns == Columns()
    assert main(command) == 0
    assert "accuracy" in capsys.readouterr().out
    command[2] = str(rte / "one.csv")
    assert main(command) == 2
    assert "no field is called 'sentence1'" in capsys.readouterr().err
    assert main([*command, "--field", "text", "--pair", ""]) == 2
    assert "was trained on pairs of texts, and these are single texts" in capsys.readouterr().err
    said = json.loads((rte / "run/best/classify.json").read_text())["texts"]
    assert said["pairs"] is True
    assert said["columns"]["pair"] == "sentence2"


def test_a_classifier_of_an_encoder_without_a_head_is_not_advised_to_train_it(tmp_path, caplog):
    model = small_bert(tmp_path)
    save(tmp_path / "model", model.network, mask=model.mask, tokenizer=model.tokenizer, new_head=True)
    (tmp_path / "a.csv").write_text("text,label\n" + "the cat sat,1\na big dog,0\n" * 4)
    (tmp_path / "held.txt").write_text("the cat sat on the mat .\n")
    run = str(tmp_path / "run")
    caplog.clear()
    assert classify(tmp_path, data="a.csv") == 0
    assert main(["classify", run, str(tmp_path / "a.csv"), "--predict", "--out", str(tmp_path / "x.csv")]) == 0
    assert not caplog.text
    assert main(["evaluate", run, str(tmp_path / "held.txt"), "--documents", "line", "--passes", "1"]) == 0
    assert "is new and was never trained" in caplog.text


def test_protocols_are_the_published_ones():
    caduceus, mdlm = default(["--protocol", "caduceus"]), default(["--protocol=mdlm"])
    assert (caduceus.seeds, caduceus.split.held_out, caduceus.tune.epochs, caduceus.tune.keep) == (5, 0.1, 10, "best")
    assert (mdlm.seeds, mdlm.split.folds, mdlm.tune.steps, mdlm.reading.pool) == (5, 5, 16_000, "mean")
    assert default(["runs/x", "human_ocr_ensembl"]) == replace(caduceus, reading=Reading(512, strands="published"))
    assert default(["--protocol", "hyenadna"]).tune.lr == 6e-4
    assert default(["x", "human_ocr_ensembl", "--protocol", "plain"]) == Settings()
    assert default(["runs/x", "mine.csv"]) == Settings()


def test_only_the_data_is_taken_for_a_benchmark_and_no_file_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for more in (["--out", "RTE"], ["--out=sst2"], ["--metrics", "cola", "--label", "qqp"]):
        assert default(["stories", "my.csv", *more]) == Settings()
    assert default(["RTE", "my.csv"]) == Settings()
    assert default(["--out", "runs", "stories", "RTE", "--steps", "2"]).tune.lr == 2e-5
    (tmp_path / "RTE").mkdir()
    assert default(["stories", "RTE"]) == Settings()


def test_texts_are_answered_and_written_some_at_a_time(reviews, monkeypatch, capsys):
    assert classify(reviews) == 0
    capsys.readouterr()
    command = ["classify", str(reviews / "run"), str(reviews / "reviews.csv"), "--predict", "--out"]
    assert main([*command, str(reviews / "whole.csv")]) == 0
    whole = capsys.readouterr().out
    sizes, real = [], unmask.Predictor.encode_whole
    monkeypatch.setattr("unmask.training.answers.PART", 7)
    monkeypatch.setattr(
        unmask.Predictor, "encode_whole", lambda self, some: sizes.append(len(some)) or real(self, some)
    )
    assert main([*command, str(reviews / "parts.csv")]) == 0
    assert sizes == [7, 7, 7, 7, 2]
    assert (reviews / "parts.csv").read_text() == (reviews / "whole.csv").read_text()
    assert capsys.readouterr().out.splitlines()[1:] == whole.splitlines()[1:]


@pytest.mark.parametrize(
    "more, content, message",
    [
        (["--label", "mood"], "text,label\na,1\nb,0\n", "no field is called 'mood'"),
        ([], "", "holds no labelled text"),
        ([], "text,label\na,1\nb,1\n", "have the label '1': nothing to learn"),
        (["--metrics", "pearson"], "text,label\na,1\nb,0\n", "pearson does not score two classes"),
        (
            ["--protocol", "caducous"],
            "text,label\na,1\nb,0\n",
            "no protocol is called 'caducous'. Did you mean 'caduceus'",
        ),
        (["--strands", "both"], "text,label\na,1\nb,0\n" * 9, "only DNA has two strands"),
    ],
)
def test_mistakes_end_with_code_2_and_nothing_is_written(reviews, capsys, more, content, message):
    (reviews / "bad.csv").write_text(content.replace("\ntext,label", ""))
    assert classify(reviews, *more, data="bad.csv") == 2
    assert message in capsys.readouterr().err
    assert not (reviews / "run").exists()


def test_the_predictions_of_fasta_records_have_their_names_and_replaced_letters_are_counted(tmp_path, capsys):
    dna = vocabulary.dna()
    network = network_of(CaduceusSpec(vocab=dna.size, length=16, width=8, blocks=1))
    save(tmp_path / "model", network, mask=dna.mask, objective="mlm", tokenizer=dna)
    lines = [f">s{i} label={i % 2}\n{'ACGT'[i % 4] * 3}{'ACGT'[i // 4] * 2}R\n" for i in range(16)]
    (tmp_path / "a.fa").write_text("".join(lines) + lines[0])
    assert classify(tmp_path, data="a.fa") == 0
    said = capsys.readouterr().err
    assert "warning: 17 letters that the vocabulary does not have were replaced (R as N: 17)" in said
    assert "warning: 1 texts occur more than once, 2 times in all" in said
    line = ["classify", str(tmp_path / "run"), str(tmp_path / "a.fa"), "--predict", "--out", str(tmp_path / "p.csv")]
    assert main(line) == 0
    assert "(R as N: 17)" in capsys.readouterr().err
    with (tmp_path / "p.csv").open() as file:
        assert [row["name"] for row in csv.DictReader(file)] == [*(f"s{i}" for i in range(16)), "s0"]


def test_labels_with_control_characters_are_shown_with_dots_and_formulas_are_written_as_text(reviews, capsys):
    lines = [f"{'ab' if i % 3 else 'cd'}{'efgh'[i % 4]},{'=1+1' if i % 3 else chr(27) + ']0;x'}\n" for i in range(30)]
    (reviews / "odd.csv").write_text("text,label\n" + "".join(lines))
    assert classify(reviews, data="odd.csv") == 0
    shown = capsys.readouterr().err
    assert "2 labels: ·]0;x, =1+1;" in shown
    assert "\x1b" not in shown
    with (reviews / "run/seed-1/valid.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["label"] for row in rows} | {row["prediction"] for row in rows} <= {"'=1+1", "\x1b]0;x"}
    assert any(row["label"] == "'=1+1" for row in rows)
    (reviews / "new.csv").write_text("text,label\nabe,\x1b]0;y\n")
    assert main(["classify", str(reviews / "run"), str(reviews / "new.csv"), "--predict", "--out", "x.csv"]) == 2
    assert "\x1b" not in capsys.readouterr().err
