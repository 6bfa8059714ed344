"""A study's file: what it may say, and what is refused with the nearest name that is right."""

import pytest
from tiny_study import TINY, written

from unmask.errors import UserError
from unmask.studies.checks import over
from unmask.studies.study import only, read_study


def test_rows_share_the_settings_and_override_their_own(tmp_path):
    study = read_study(written(tmp_path))
    assert [row.name for row in study.rows] == ["MDLM", "AR"]
    assert study.row("AR").train == {**TINY["train"], "objective": {"name": "ar"}}


def test_a_table_that_names_another_component_replaces_it():
    below = {"objective": {"name": "mdlm", "weight": "flat"}, "optim": {"lr": 1.0, "batch": 2}}
    above = {"objective": {"name": "sedd"}, "optim": {"lr": 2.0}}
    assert over(below, above) == {"objective": {"name": "sedd"}, "optim": {"lr": 2.0, "batch": 2}}
    assert over(below, {"objective": {"weight": "bound"}})["objective"] == {"name": "mdlm", "weight": "bound"}


def test_another_optimizer_keeps_the_batch_of_all_rows():
    below = {"optim": {"name": "adamw", "lr": 1.0, "batch": 64}}
    assert over(below, {"optim": {"name": "muon", "lr": 2.0}})["optim"] == {"name": "muon", "lr": 2.0, "batch": 64}


def test_scales_are_laid_over_the_file_and_over_rows(tmp_path):
    rows = [
        {"name": "MDLM", "scale": {"large": {"train": {"model": {"width": 64}}}}},
        {"name": "AR", "only": ["large"], "train": {"objective": {"name": "ar"}}},
    ]
    path = written(tmp_path, row=rows, scale={"small": {}, "large": {"seeds": [1, 2], "train": {"steps": 9}}})
    small, large = read_study(path, "small"), read_study(path, "large")
    assert [row.name for row in small.rows] == ["MDLM"]
    assert small.seeds == (1,)
    assert large.seeds == (1, 2)
    assert large.row("MDLM").train["model"]["width"] == 64
    assert large.row("AR").train["model"]["width"] == 16
    assert large.row("AR").train["steps"] == 9
    with pytest.raises(UserError, match="choose a scale: --scale small, --scale large"):
        read_study(path)
    with pytest.raises(UserError, match="Did you mean 'large'"):
        read_study(path, "larg")


def test_a_row_over_several_values_becomes_several_rows(tmp_path):
    one = {
        "name": "{objective.name} of {model.width}",
        "over": {"model.width": [16, 32], "objective.name": ["ar", "mdlm"]},
    }
    study = read_study(written(tmp_path, row=[one]))
    assert [row.name for row in study.rows] == ["ar of 16", "mdlm of 16", "ar of 32", "mdlm of 32"]
    assert study.row("ar of 32").train["model"]["width"] == 32
    assert study.row("ar of 32").changes == {"model.width": 32, "objective.name": "ar"}


def test_some_rows_bring_those_they_begin_with(tmp_path):
    rows = [{"name": "first"}, {"name": "second", "after": "first"}, {"name": "other"}]
    study = read_study(written(tmp_path, row=rows))
    assert [row.name for row in only(study, ["second"]).rows] == ["first", "second"]
    with pytest.raises(UserError, match="Did you mean 'other'"):
        only(study, ["othr"])


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"sedes": [1]}, "Did you mean 'seeds'"),
        ({"seeds": [1.5]}, "seeds must be whole numbers"),
        ({"row": []}, "no rows"),
        ({"row": [{"name": "a"}, {"name": "a"}]}, "two rows are called 'a'"),
        ({"row": [{"name": "a", "trian": {}}]}, "Did you mean 'train'"),
        ({"row": [{"name": "a", "train": {"stepz": 1}}]}, "row 'a', train: .*Did you mean 'steps'"),
        ({"row": [{"name": "a", "train": {"objective": {"name": "mdml"}}}]}, "Did you mean 'mdlm'"),
        ({"row": [{"name": "a", "train": {"out": "x"}}]}, "set by the study"),
        ({"row": [{"name": "a", "after": "b"}]}, "no row is called 'b'"),
        ({"row": [{"name": "a", "after": "b"}, {"name": "b", "after": "a"}]}, "begins after itself"),
        ({"row": [{"name": "a", "checkpoint": "stories", "train": {}}]}, "which is it"),
        ({"row": [{"name": "a", "of": "b"}]}, "no row for `of` of 'a' is called 'b'"),
        ({"row": [{"name": "a", "options": {"tset": {}}}]}, "Did you mean 'test'"),
        ({"row": [{"name": "a", "published": {"perplexty": 1.0}}]}, "Did you mean 'perplexity'"),
        ({"row": [{"name": "a", "over": {"steps": 3}}]}, "must be a list"),
        ({"column": [{"name": "x", "measure": "tset", "value": "y"}]}, "Did you mean 'test'"),
        ({"column": [{"name": "x", "measure": "test"}]}, "needs a name, a measure and a value"),
        ({"column": {"name": "x"}}, "with two brackets"),
        ({"measure": {}}, "nothing is measured"),
        ({"measure": {"test": {"verb": "evalute"}}}, "Did you mean 'evaluate'"),
        ({"data": {"trian": []}}, "Did you mean 'train'"),
        ({"data": {}}, "no \\[data\\]"),
        ({"data": {"train": "a", "source": "b"}}, "which is it"),
        ({"budget": "time"}, "no budget is called 'time'"),
        ({"budget": "seconds"}, "belong together"),
        ({"like": "MDML"}, "Did you mean 'MDLM'"),
        ({"compare": {"to": "ar", "measure": "test"}}, "no row for compare.to is called 'ar'"),
    ],
)
def test_mistakes_are_named(tmp_path, changes, told):
    path = written(tmp_path, **changes)
    with pytest.raises(UserError, match=told) as caught:
        read_study(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_no_toml(tmp_path):
    (tmp_path / "study.toml").write_text("title = ")
    with pytest.raises(UserError, match="is not TOML"):
        read_study(tmp_path / "study.toml")
    with pytest.raises(UserError, match="cannot read"):
        read_study(tmp_path / "none.toml")


def test_a_study_over_another_shares_what_it_does_not_change(tmp_path):
    written(tmp_path).rename(tmp_path / "below.toml")
    (tmp_path / "above.toml").write_text('base = "below.toml"\ntitle = "Above"\ntrain = { steps = 9 }\n')
    study = read_study(tmp_path / "above.toml")
    assert study.title == "Above"
    assert study.row("AR").train == {**TINY["train"], "steps": 9, "objective": {"name": "ar"}}
    (tmp_path / "above.toml").write_text('base = "none.toml"\n')
    with pytest.raises(UserError, match=r"cannot read .*none\.toml"):
        read_study(tmp_path / "above.toml")
