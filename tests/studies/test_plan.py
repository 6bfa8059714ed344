"""A plan: every command's folder depends on all that determines its result, and on nothing else."""

import shutil

import pytest
from tiny_study import TINY, written

from unmask.errors import UserError
from unmask.model.model import shipped_models
from unmask.studies.plan import StudyPlace, options, plan_tasks, slug, steps_of, tokens_seen, total_flops
from unmask.studies.study import read_study


def folders(path, out="out"):
    tasks = plan_tasks(read_study(path), StudyPlace(path.parent / out, path.parent))
    return {task.name: task.folder.relative_to(path.parent / out) for task in tasks}


def moved(before, after):
    return {name for name in before if before[name] != after.get(name)}


def test_a_change_touches_just_the_rows_it_concerns(tmp_path):
    rows = [*TINY["row"], {"name": "tuned", "after": "AR"}]
    before = folders(written(tmp_path, row=rows))
    assert moved(before, folders(written(tmp_path, row=rows))) == set()
    assert moved(before, folders(written(tmp_path, row=rows, title="Another"))) == set()
    ar = {"name": "AR", "train": {"objective": {"name": "ar"}, "steps": 5}}
    changed = folders(written(tmp_path, row=[rows[0], ar, rows[2]]))
    of_ar = {"train AR, seed 1", "test of AR, seed 1"}
    assert moved(before, changed) == of_ar | {"train tuned, seed 1", "test of tuned, seed 1"}
    measure = {"test": {**TINY["measure"]["test"], "options": {"passes": 2}}}
    assert moved(before, folders(written(tmp_path, row=rows, measure=measure))) == {
        name for name in before if name.startswith("test of")
    }
    assert moved(before, folders(written(tmp_path, row=rows, threads=2))) == set(before) - {"data"}
    assert moved(before, folders(written(tmp_path, row=rows), out="elsewhere")) == set()


def test_changed_text_touches_everything(tmp_path):
    path = written(tmp_path)
    before = folders(path)
    (tmp_path / "test.txt").write_text("another text")
    assert moved(before, folders(path)) == set(before)


def test_missing_data_is_named_with_where_to_put_it(tmp_path):
    path = written(tmp_path)
    (tmp_path / "test.txt").unlink()
    with pytest.raises(UserError, match=r"missing: .*test\.txt.*--data-root"):
        folders(path)


def test_unknown_words_in_braces_are_refused(tmp_path):
    measure = {"test": {"verb": "evaluate", "arguments": ["{tset}"]}}
    with pytest.raises(UserError, match="Did you mean 'test'"):
        folders(written(tmp_path, measure=measure))


def test_a_judge_may_be_another_row(tmp_path):
    measure = {"judged": {"verb": "quality", "options": {"judge": "{row:AR}", "n": 2}}}
    column = [{"name": "gen", "measure": "judged", "value": "generative_perplexity"}]
    path = written(tmp_path, measure=measure, column=column)
    tasks = {task.name: task for task in plan_tasks(read_study(path), StudyPlace(tmp_path / "out", tmp_path))}
    judged = tasks["judged of MDLM, seed 1"]
    assert str(tasks["train AR, seed 1"].folder / "run") in judged.command
    assert set(judged.needs) >= {"train AR, seed 1", "train MDLM, seed 1"}


def test_equal_flops_give_a_smaller_network_more_steps(tmp_path):
    small = {"name": "small", "train": {"model": {"width": 8}}}
    train = {**TINY["train"], "steps": 400}
    study = read_study(written(tmp_path, row=[{"name": "large"}, small], train=train, budget="flops", like="large"))
    large, small = study.rows
    steps = steps_of(study, small)
    assert steps > 400
    ratio = total_flops(study, small, steps=steps) / total_flops(study, large)
    assert abs(ratio - 1) < 0.02
    assert tokens_seen(study, small) == steps * 4 * 16


def test_tokens_of_the_rows_before_are_counted(tmp_path):
    study = read_study(written(tmp_path, row=[{"name": "first"}, {"name": "second", "after": "first"}]))
    assert tokens_seen(study, study.row("second")) == 2 * 4 * 4 * 16


def test_settings_become_flags():
    found = list(options({"top_p": 0.9, "json": True, "model.tied": False, "sets": ["ptb", "lm1b"]}))
    assert found == ["--top-p", "0.9", "--json", "--model.no-tied", "--sets", "ptb", "lm1b"]


def test_names_that_differ_in_signs_only_have_other_folders():
    assert slug("mdlm") == "mdlm"
    assert slug("MDLM (T = 10)") != slug("MDLM, T = 10")
    assert slug("ε") != slug("δ")


def test_a_model_is_measured_again_with_other_options(tmp_path):
    rows = [
        {"name": "MDLM"},
        {"name": "{options.test.passes} passes", "of": "MDLM", "over": {"options.test.passes": [2, 3]}},
    ]
    tasks = plan_tasks(read_study(written(tmp_path, row=rows)), StudyPlace(tmp_path / "out", tmp_path))
    assert [task.name for task in tasks if task.kind == "train"] == ["train MDLM, seed 1"]
    commands = [task.command for task in tasks if task.kind == "measure"]
    assert len({command[1] for command in commands}) == 1, "one model"
    assert [command[command.index("--passes") + 1] for command in commands] == ["1", "2", "3"]


def test_a_row_s_own_flops_set_its_steps(tmp_path):
    rows = [{"name": "AR {flops}, {model.width}", "over": {"flops": [1e9, 3e9], "model.width": [16, 32]}}]
    study = read_study(written(tmp_path, row=rows))
    assert [row.name for row in study.rows] == ["AR 1e+09, 16", "AR 1e+09, 32", "AR 3e+09, 16", "AR 3e+09, 32"]
    for row in study.rows:
        spent = total_flops(study, row, steps=steps_of(study, row))
        assert abs(spent / row.flops - 1) < 0.1


def test_a_base_in_the_data_folder_is_measured_tuned_and_gives_its_tokenizer(tmp_path):
    """A plan does not need it; a run does, and another base is another run."""
    data = {**TINY["data"], "prepare": {"tokenizer": "{root}/base", "workers": 1}}
    rows = [{"name": "base", "checkpoint": "{root}/base"}, {"name": "tuned", "after": "base"}]
    study = read_study(written(tmp_path, row=rows, data=data))
    place = StudyPlace(tmp_path / "out", tmp_path)
    with pytest.raises(UserError, match=r"there is no folder .*base"):
        plan_tasks(study, place)
    before = {task.name: task for task in plan_tasks(study, place, there=False)}
    shutil.copytree(shipped_models()["stories-ar"], tmp_path / "base")
    tasks = {task.name: task for task in plan_tasks(study, place)}
    base = str(tmp_path / "base")
    command = tasks["data"].command
    assert command[command.index("--tokenizer") + 1] == base
    assert tasks["test of base, seed 1"].command[1] == base
    assert tasks["train tuned, seed 1"].config["init"] == base
    assert tasks["train tuned, seed 1"].folder != before["train tuned, seed 1"].folder
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(base, elsewhere / "base")
    for name in ("train.txt", "test.txt"):
        shutil.copy(tmp_path / name, elsewhere)
    moved = {task.name: task for task in plan_tasks(study, StudyPlace(elsewhere / "out", elsewhere))}
    assert [t.folder.name for t in moved.values()] == [t.folder.name for t in tasks.values()]
