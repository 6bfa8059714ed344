"""Running a study: what is finished is kept, what fails is told, a kill changes nothing."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_study import TINY, ran, written

from unmask.cli.main import main
from unmask.processes.lock import hold_lock
from unmask.studies.plan import slug

pytestmark = pytest.mark.slow


def table(out):
    return json.loads((out / "table.json").read_text())


def values(out):
    return {row["name"]: [cell["values"] for cell in row["cells"]] for row in table(out)["rows"]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The tiny study, run without a stop."""
    folder = tmp_path_factory.mktemp("whole")
    path = written(folder)
    assert ran(path, folder / "out") == 0
    return folder / "out"


def test_the_table_has_every_row_as_json_markdown_page_and_picture(whole):
    rows = table(whole)["rows"]
    assert [row["name"] for row in rows] == ["MDLM", "AR"]
    assert all(row["complete"] and row["cells"][0]["value"] > 1 for row in rows)
    assert rows[0]["trained"]["tokens"] == 4 * 4 * 16
    text = (whole / "table.md").read_text()
    assert "| MDLM |" in text
    assert f"{rows[1]['cells'][0]['value']:.2f}" in text
    assert "<svg" in (whole / "table.html").read_text()
    assert (whole / "table.png").read_bytes().startswith(b"\x89PNG")
    record = whole / rows[0]["cells"][0]["records"][0]
    assert json.loads(record.read_text())["perplexity"] == rows[0]["cells"][0]["value"]


def test_what_is_finished_is_kept(whole, tmp_path, capsys):
    path = written(whole.parent)
    before = {file: file.stat().st_mtime_ns for file in whole.rglob("result.json")}
    assert ran(path, whole) == 0
    assert {file: file.stat().st_mtime_ns for file in whole.rglob("result.json")} == before
    assert "started" not in capsys.readouterr().err


def test_drafts_of_killed_measurements_are_removed(tmp_path):
    path = written(tmp_path)
    assert ran(path, tmp_path / "out") == 0
    result = next((tmp_path / "out").glob("rows/*/seed-1/*/result.json"))
    for file in result.parent.iterdir():  # killed before it was done
        file.unlink()
    drafts = [result.with_name(".result.json.draft-12345"), tmp_path / "out" / ".table.html.draft-12345"]
    for draft in drafts:
        draft.write_text("{")
    assert ran(path, tmp_path / "out") == 0
    assert result.is_file()
    assert not any(draft.exists() for draft in drafts)


def test_training_seconds_are_those_of_all_steps_though_a_stop_came_between(whole):
    for row in table(whole)["rows"]:
        [metrics] = (whole / "rows" / slug(row["name"]) / "seed-1").glob("train-*/run/metrics.jsonl")
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        timed = [line for line in lines if "seconds" in line]
        assert sum(line["steps"] for line in timed) == 4
        assert row["train_seconds"] == pytest.approx(sum(line["seconds"] for line in timed))


def test_a_broken_row_is_in_the_table_with_its_reason_and_stops_no_other(tmp_path, capsys):
    rows = [
        {"name": "wrong", "train": {"optim": {"lr": 1e30, "clip": 0.0}}},
        {"name": "after it", "after": "wrong"},
        TINY["row"][0],
    ]
    path = written(tmp_path, row=rows)
    assert ran(path, tmp_path / "out") == 2
    wrong, after, right = table(tmp_path / "out")["rows"]
    assert right["complete"]
    assert not wrong["complete"]
    assert wrong["failure"]
    assert wrong["cells"][0]["value"] is None
    assert after["failure"]
    said = capsys.readouterr()
    assert "train wrong, seed 1" in said.err
    assert "skipped  train after it, seed 1: train wrong, seed 1 failed\n" in said.err
    (log,) = (tmp_path / "out" / "rows").glob("wrong*/seed-1/train*/log.txt")
    assert said.err.count(f"(log: {log})") == 2, "where it fails, and in the end"
    assert wrong["failure"] in said.out


def test_a_measurement_that_fails_leaves_the_row_s_others_in_the_table(tmp_path, capsys):
    measure = {**TINY["measure"], "other": {"verb": "evaluate", "arguments": ["{root}/nowhere.txt"]}}
    column = [*TINY["column"], {"name": "elsewhere", "measure": "other", "value": "perplexity"}]
    path = written(tmp_path, measure=measure, column=column)
    assert ran(path, tmp_path / "out") == 2
    said = capsys.readouterr()
    rows = table(tmp_path / "out")["rows"]
    assert all(row["cells"][0]["value"] > 1 for row in rows)
    first = next(line for line in said.out.splitlines() if line.startswith("MDLM "))
    assert f"{rows[0]['cells'][0]['value']:.2f}" in first
    assert "failed" in first
    assert said.err.count("nowhere.txt") == 3, "one line per event, and one reason for both in the end"


@pytest.mark.parametrize("key, told", [("value", "perplexity"), ("error", "standard_error")])
def test_a_column_whose_number_is_in_no_result_is_told_and_mended_without_new_work(tmp_path, capsys, key, told):
    column = {"name": "perplexity", "measure": "test", "value": "perplexity", "error": "standard_error"}
    out, row = tmp_path / "out", TINY["row"][:1]
    assert ran(written(tmp_path, row=row, column=[{**column, key: told[:-2] + "y"}]), out) == 2
    said = capsys.readouterr()
    assert f"no number in the results of 'test' is called '{told[:-2]}y'. Did you mean '{told}'?" in said.err
    assert "MDLM" in said.out
    assert ran(written(tmp_path, row=row, column=[column]), out) == 0
    assert "started" not in capsys.readouterr().err


@pytest.mark.parametrize("where", ["measure", "row"])
def test_options_that_a_verb_does_not_have_are_refused_before_anything_runs(tmp_path, capsys, where):
    wrong = {"pases": 2}
    if where == "measure":
        path = written(tmp_path, measure={"test": {**TINY["measure"]["test"], "options": wrong}})
    else:
        path = written(tmp_path, row=[{"name": "MDLM"}, {"name": "again", "of": "MDLM", "options": {"test": wrong}}])
    assert ran(path, tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert "measure.test: Unrecognized options: --pases, 2; Perhaps you meant: --passes INT" in said
    assert not (tmp_path / "out").exists()


def test_options_of_the_data_that_prepare_does_not_have_are_refused_before_anything_runs(tmp_path, capsys):
    path = written(tmp_path, data={**TINY["data"], "prepare": {**TINY["data"].get("prepare", {}), "lenght": 32}})
    assert ran(path, tmp_path / "out") == 2
    assert "data.prepare: Unrecognized options: --lenght, 32" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_name_in_the_markdown_table_is_no_html(tmp_path, capsys):
    path = written(tmp_path, title="a <script>", row=[{"name": "MDLM <b>&"}])
    assert ran(path, tmp_path / "out") == 0
    text = (tmp_path / "out" / "table.md").read_text()
    assert "a &lt;script>" in text
    assert "| MDLM &lt;b>&amp; |" in text


@pytest.mark.parametrize("kilobytes", [pytest.param(1, marks=pytest.mark.long), 8])
def test_on_a_full_disk_finished_rows_are_kept_and_with_room_the_rest_goes_on(whole, tmp_path, kilobytes):
    path, out = written(tmp_path), tmp_path / "out"
    assert ran(path, out, "--rows", "MDLM") == 0
    before = {file: file.read_bytes() for file in out.rglob("result.json")}
    study = f"{sys.executable} -m unmask study {path} --out {out} --data-root {tmp_path} --jobs 0"
    command = f"ulimit -f {kilobytes}; exec {study}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True)  # no file can grow beyond it
    assert ended.returncode == 2, ended.stderr
    assert "could not write" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert {file: file.read_bytes() for file in before} == before
    assert ran(path, out) == 0
    assert values(out) == values(whole)


def test_a_row_is_written_by_one_study_at_a_time(tmp_path, capsys):
    path = written(tmp_path, row=TINY["row"][:1])
    with hold_lock(next_folder(path, tmp_path) / ".lock"):
        assert ran(path, tmp_path / "out") == 2
    assert "is in use" in capsys.readouterr().err
    assert ran(path, tmp_path / "out") == 0


def next_folder(path, tmp_path):
    from unmask.studies.plan import StudyPlace, plan_tasks
    from unmask.studies.study import read_study

    return next(
        task.folder
        for task in plan_tasks(read_study(path), StudyPlace(tmp_path / "out", tmp_path))
        if task.kind == "train"
    )


def test_a_dry_run_prints_costs_and_writes_nothing(tmp_path, capsys):
    path = written(tmp_path)
    assert ran(path, tmp_path / "out", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "MDLM" in said
    assert "0 of 2" in said
    assert not (tmp_path / "out").exists()


def test_commands_for_a_cluster_are_one_per_row(tmp_path, capsys):
    path = written(tmp_path)
    assert ran(path, tmp_path / "out", "--print-commands") == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("unmask study")]
    assert len(lines) == 2
    assert lines[1].endswith("--rows AR")


def test_one_row_alone_leaves_the_others_unmeasured(tmp_path):
    path = written(tmp_path)
    assert ran(path, tmp_path / "out", "--rows", "AR") == 0
    mdlm, ar = table(tmp_path / "out")["rows"]
    assert ar["complete"]
    assert mdlm["cells"][0]["value"] is None


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["--rows", "MDML"], "Did you mean 'MDLM'"),
        (["--jobs", "-1"], "--jobs must be 0 or more"),
        (["--scale", "cpu"], "the study has no scales"),
    ],
)
def test_mistakes_on_the_command_line(tmp_path, capsys, arguments, told):
    assert ran(written(tmp_path), tmp_path / "out", *arguments) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_equal_seconds_measure_the_number_of_steps_once(tmp_path):
    path = written(tmp_path, row=TINY["row"][:1], budget="seconds", seconds=0.3)
    assert ran(path, tmp_path / "out") == 0
    (config,) = (tmp_path / "out").rglob("train-*/settings.toml")
    steps = config.read_text()
    assert "steps = " in steps
    assert ran(path, tmp_path / "out") == 0
    assert config.read_text() == steps


def finished(out: Path) -> int:
    """How many commands of a study are done, without a look into the folders that are being written."""
    return len([*out.glob("data/*/done.json"), *out.glob("rows/*/*/*/done.json")])


@pytest.mark.slow
def test_kills_at_random_moments_and_two_jobs_give_the_same_table(whole, tmp_path):
    path = written(tmp_path)
    out, chance = tmp_path / "out", random.Random(5)
    command = [sys.executable, "-m", "unmask", "study", str(path), "--out", str(out), "--data-root", str(tmp_path)]
    kills = 0
    while kills < 2:
        process = subprocess.Popen([*command, "--jobs", "2"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        began, done = time.monotonic(), finished(out)
        # Kill after some progress, whatever the speed of the machine.
        wait = chance.uniform(0.1, 2)
        while process.poll() is None and (finished(out) == done and time.monotonic() - began < 120):
            time.sleep(0.05)
        time.sleep(wait)
        if process.poll() is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    assert kills > 0
    done = subprocess.run([*command, "--jobs", "2"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert values(out) == values(whole)


def test_the_words_of_a_launcher_come_before_trainings_and_measurements(tmp_path):
    path, seen = written(tmp_path / "study", row=[{"name": "MDLM"}]), tmp_path / "seen.txt"
    script = tmp_path / "launch.sh"
    script.write_text(f'echo "$4 $OMP_NUM_THREADS" >> {seen}\nexec "$@"\n')
    command = ["study", str(path), "--out", str(tmp_path / "out"), "--data-root", str(path.parent)]
    assert main([*command, "--launcher", f"sh {script} {sys.executable}"]) == 0
    assert seen.read_text().splitlines() == ["train 1", "evaluate 1"]
    assert main([*command, "--rows", "MDLM"]) == 0, "nothing is left to do"
