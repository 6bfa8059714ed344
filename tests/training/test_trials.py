"""Trials: a run that was killed gives bit for bit what an uninterrupted one gives; several seeds are summed up."""

import csv
import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from forked import Forked
from tiny import LETTERS, checkpoint
from unmask.errors import UserError
from unmask.files import fingerprint
from unmask.model.checkpoint import load
from unmask.model.predictor import Predictor
from unmask.model.reading import Reading
from unmask.settings import dumps
from unmask.text.corpus.examples import Columns
from unmask.training.results import RESULT, results_of, summary_of
from unmask.training.split import Split
from unmask.training.state import steps_in
from unmask.training.trials import TrialLog, open_trials, trials
from unmask.training.tuning import Tune, Tuning

SMALL = Tune(epochs=2, batch=8, lr=3e-3, eval_every=3, save_every=2)


@pytest.fixture
def asked(tmp_path):
    checkpoint(tmp_path / "model")
    letters = LETTERS.strip()
    lines = [(letters[i % 9] + letters[i % 7] * (1 + i % 3), "good" if i % 9 < 4 else "bad") for i in range(40)]
    for name, some in (("train", lines), ("test", lines[:7])):
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + "".join(f"{a}\t{b}\n" for a, b in some))
    return Tuning(
        model=str(tmp_path / "model"),
        data=str(tmp_path / "train.tsv"),
        out=str(tmp_path / "run"),
        split=Split(test=str(tmp_path / "test.tsv")),
        tune=SMALL,
        device="cpu",
    )


def run(asked, *, resume=False, until=None):
    """A run; `until`: it gets a signal after so many updates of the first trial that is not over."""
    log, stop = Heard(), []
    with open_trials(asked, log.say, resume=resume) as (asked, model, data):
        for count, _ in enumerate(trials(asked, model, data, log, stop), 1):
            if count == until:
                stop.append(15)
    return log.lines


class Heard(TrialLog):
    """A log that remembers its lines."""

    def __init__(self):
        super().__init__(quiet=True)
        self.lines = []

    def say(self, line):
        self.lines.append(line)


def files(asked, *names, least=8):
    """The sha256 of a run's files."""
    found = [path for name in names for path in sorted(Path(asked.out).glob(name))]
    assert len(found) >= least
    return {path.relative_to(asked.out).as_posix(): fingerprint(path) for path in found}


KEPT = ("seed-*/model/*", "seed-*/*.csv", "seed-*/metrics.jsonl")


def scores_of(asked):
    return [{key: value for key, value in one.items() if key != "seconds"} for one in results_of(asked)]


@pytest.mark.slow
@pytest.mark.parametrize("until", [1, 6])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(asked, tmp_path, until):
    whole = replace(asked, out=str(tmp_path / "whole"), seeds=2)
    run(whole)
    parts = replace(asked, seeds=2)
    run(parts, until=until)
    assert not (tmp_path / "run" / "seed-1" / RESULT).exists()
    run(parts, resume=True, until=3)
    said = run(parts, resume=True)
    assert any("resumed at step" in line for line in said)
    assert scores_of(parts) == scores_of(whole)
    assert files(parts, *KEPT) == files(whole, *KEPT)


GUIDE = replace(SMALL, batch=4, eval_every=3, save_every=2, dropout=0.0, keep="last")


@pytest.mark.slow
@pytest.mark.parametrize("guide", [False, True])
def test_a_run_that_was_killed_goes_on_from_its_last_checkpoint(asked, tmp_path, guide):
    asked = replace(asked, guide=guide, tune=GUIDE if guide else SMALL)
    whole = replace(asked, out=str(tmp_path / "whole"))
    run(whole)
    (tmp_path / "asked.toml").write_text(dumps(asked))
    ended = Forked(tmp_path / "asked.toml", program="training.killed_trials")
    ended.communicate()
    assert ended.returncode == -signal.SIGKILL
    assert steps_in(tmp_path / "run" / "seed-1")[-1] == 4  # the last that was saved
    assert any("resumed at step 4" in line for line in run(asked, resume=True))
    assert scores_of(asked) == scores_of(whole)
    assert files(asked, *KEPT, least=4 if guide else 8) == files(whole, *KEPT, least=4 if guide else 8)


@pytest.mark.slow
def test_a_guide_is_held_by_one_process_and_its_checkpoints_hold_the_head_alone(asked, tmp_path):
    asked = replace(asked, guide=True, tune=GUIDE)
    with open_trials(asked, print, resume=False) as (fitting, model, data):
        steps = trials(fitting, model, data, TrialLog(quiet=True))
        next(steps), next(steps)
        with pytest.raises(UserError, match="is in use: process"):
            run(asked, resume=True)
        folder = tmp_path / "run/seed-1/checkpoints/step-00000002"
        before = {name: p.clone() for name, p in model.network.named_parameters()}
        assert {name for name in load_file(folder / "training.safetensors") if name.startswith("weight.")} == {
            "weight.parts.head.weight",
            "weight.parts.head.bias",
        }
        list(steps)
    assert sorted(path.name for path in (tmp_path / "run/best/").iterdir()) == ["classifier.json", "head.safetensors"]
    assert all(torch.equal(p, before[name]) for name, p in model.network.named_parameters())


@pytest.mark.slow
def test_a_caller_that_leaves_the_loop_finds_this_step_saved(asked, tmp_path):
    with open_trials(asked, print, resume=False) as (fitting, model, data):
        for progress in trials(fitting, model, data, TrialLog()):
            if progress.step == 5:
                break
    assert steps_in(tmp_path / "run" / "seed-1")[-1] == 5


def test_the_best_validation_is_kept_and_predictions_are_in_the_order_of_the_data(asked, tmp_path):
    run(asked)
    (result,) = results_of(asked)
    curve = [json.loads(line) for line in (tmp_path / "run/seed-1/metrics.jsonl").read_text().splitlines()]
    scores = {line["step"]: line["valid"]["accuracy"] for line in curve if "valid" in line}
    assert result["valid"]["accuracy"] == max(scores.values())
    assert result["best_step"] == min(step for step, score in scores.items() if score == max(scores.values()))
    with (tmp_path / "run/seed-1/test.csv").open() as file:
        lines = list(csv.DictReader(file))
    texts = [line.split("\t")[0] for line in (tmp_path / "test.tsv").read_text().splitlines()[1:]]
    said = Predictor.load(tmp_path / "run").predict(texts)
    assert [line["prediction"] for line in lines] == [one.label for one in said]
    assert float(lines[0]["p(good)"]) == pytest.approx(said[0].probabilities["good"], abs=1e-5)
    assert not list((tmp_path / "run").rglob("checkpoints"))


@pytest.mark.slow
def test_several_seeds_are_summed_up_and_the_best_is_linked(asked, tmp_path):
    asked = replace(asked, seeds=3)
    run(asked)
    results = results_of(asked)
    assert [one["seed"] for one in results] == [1, 2, 3]
    values = [one["test"]["accuracy"] for one in results]
    found = summary_of(results)["test"]["accuracy"]
    assert found["values"] == values
    assert found["mean"] == pytest.approx(sum(values) / 3)
    assert (found["lowest"], found["highest"]) == (min(values), max(values))
    best = max(results, key=lambda one: one["valid"]["accuracy"])["seed"]
    assert (tmp_path / "run/best").resolve() == (tmp_path / f"run/seed-{best}/model").resolve()
    more = replace(asked, seeds=4)  # a run may get more seeds later
    run(more, resume=True)
    assert scores_of(more)[:3] == [{k: v for k, v in one.items() if k != "seconds"} for one in results]


@pytest.mark.slow
def test_the_last_weights_are_kept_where_that_is_asked(asked):
    asked = replace(asked, tune=replace(SMALL, keep="last"))
    run(asked)
    (result,) = results_of(asked)
    assert result["best_step"] == result["steps"]


@pytest.mark.slow
def test_numbers_are_predicted(asked, tmp_path):
    lines = [("a" * (1 + i % 6), 1 + i % 6) for i in range(40)]
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "".join(f"{a}\t{b / 2}\n" for a, b in lines))
    asked = replace(
        asked, number=True, split=Split(), tune=replace(SMALL, epochs=20, eval_every=500, save_every=500, dropout=0.0)
    )
    run(asked)
    (result,) = results_of(asked)
    assert result["valid"]["spearman"] > 0.8
    assert (
        Predictor.load(asked.out).predict(["aaaaaa"])[0].number > Predictor.load(asked.out).predict(["a"])[0].number
    )


@pytest.mark.slow
def test_texts_that_are_too_long_are_cut_and_counted(asked):
    said = run(replace(asked, reading=Reading(length=5)))
    assert any("training texts have more than 5 tokens and were cut" in line for line in said)
    assert results_of(asked)[0]["test"]["cut"] > 0


@pytest.mark.slow
def test_a_folder_with_another_run_or_other_files_is_not_touched(asked, tmp_path):
    run(asked)
    with pytest.raises(UserError, match=r"already holds a run. Resume it with --resume"):
        run(asked)
    with pytest.raises(UserError, match=r"keeps its settings: tune.lr is 0.003, not 0.1"):
        run(replace(asked, tune=replace(SMALL, lr=0.1)), resume=True)
    (tmp_path / "train.tsv").write_text("text\tlabel\na\tgood\nb\tbad\nc\tbad\nd\tgood\n")
    with pytest.raises(UserError, match=r"the data changed since the run"):
        run(asked, resume=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/mine.txt").write_text("mine")
    with pytest.raises(UserError, match=r"is not empty and holds no run"):
        run(replace(asked, out=str(tmp_path / "other")))


@pytest.mark.slow
def test_mistakes_are_told_before_anything_is_written(asked, tmp_path):
    for wrong, message in (
        ({"columns": Columns(label="mood")}, "no field is called 'mood'"),
        ({"metrics": ("spearman",)}, "spearman does not score two classes"),
        ({"split": Split(folds=2), "seeds": 3}, "trial 3 has no fold"),
        ({"model": ""}, "unmask classify MODEL DATA --out FOLDER"),
    ):
        with pytest.raises(UserError, match=message):
            run(replace(asked, **wrong))
        assert not (tmp_path / "run").exists()
    shutil.rmtree(tmp_path / "model")
    with pytest.raises(UserError, match="model"):
        run(asked)


@pytest.mark.slow
def test_the_length_is_that_of_the_data_and_what_is_cut_is_said_with_the_remedy(asked, tmp_path):
    own = load(tmp_path / "model").spec.length
    lines = [f"{'ab'[i % 2] * own}\t{'good' if i % 2 else 'bad'}\n" for i in range(12)]
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "".join(lines))
    said = run(asked)
    assert not any("cut" in line for line in said)
    assert results_of(asked)[0]["test"]["cut"] == results_of(asked)[0]["valid"]["cut"] == 0
    assert Predictor.load(tmp_path / "run").reading.length == own + 2
    run(asked, resume=True)
    said = run(replace(asked, out=str(tmp_path / "short"), reading=Reading(length=own)))
    assert any(f"more than {own} tokens and were cut (--length {own + 2} keeps them whole)" in line for line in said)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, content", [("data.sha256", "[1]"), ("settings.toml", "[" * 9999), ("settings.toml", "{")]
)
def test_a_damaged_note_of_a_run_is_told(asked, name, content):
    run(asked, until=1)
    (Path(asked.out) / name).write_text(content)
    with pytest.raises(UserError, match="the data changed" if name == "data.sha256" else name):
        run(asked, resume=True)


@pytest.mark.slow
@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"seed": 1, "valid": {"accuracy": "much"}}'])
def test_a_damaged_result_of_a_seed_is_told(asked, content):
    run(asked)
    (Path(asked.out) / "seed-1" / RESULT).write_text(content)
    with pytest.raises(UserError, match=r"seed-1/result\.json"):
        run(asked, resume=True)


@pytest.mark.slow
def test_a_run_that_an_earlier_version_began_is_told(asked):
    run(asked, until=1)
    (Path(asked.out) / "data.sha256").unlink()
    with pytest.raises(UserError, match=r"an earlier version of unmask began it.* give another --out"):
        run(asked, resume=True)


@pytest.mark.slow
def test_drafts_of_killed_processes_are_removed(asked):
    run(asked, until=4)
    draft = Path(asked.out) / "seed-1" / ".model.draft-12345"
    draft.mkdir()
    (draft / "model.safetensors").write_bytes(b"many")
    run(asked, resume=True)
    assert not draft.exists()


@pytest.mark.parametrize("seed, seeds", [(2**63, 1), (2**64, 1), (2**62 - 1, 2)])
def test_a_seed_that_cannot_be_stored_is_refused(seed, seeds):
    with pytest.raises(UserError, match="seeds must be less than"):
        Tuning(seed=seed, seeds=seeds)


@pytest.mark.parametrize("epochs", [float("inf"), float("nan"), 0.0, -1.0])
def test_epochs_are_a_number_above_0(epochs):
    with pytest.raises(UserError, match="epochs must be a number above 0"):
        Tune(epochs=epochs)
