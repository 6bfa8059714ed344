from dataclasses import replace

import pytest

from unmask import settings as toml
from unmask.cli import train as verb
from unmask.cli.claiming import write_settings
from unmask.errors import UserError
from unmask.training.settings import Objective, Optim, Run, Shape, Text, Train, Warm

ODD = Train(
    data='C:\\texts "of" mine\n',
    out="ünïcode",
    steps=7,
    text=Text(length=9, separator="\t\u2028"),
    model=Shape(width=8, dropout=0.1),
    objective=Objective(times="bell", bell_mean=-0.25),
    optim=Optim(lr=1e-7, eps=1e-12, ema=0.0),
    run=Run(tensorboard=True),
)


@pytest.mark.parametrize("settings", [Train(), ODD])
def test_settings_written_as_toml_read_back_equal(settings, tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text(toml.dumps(settings), encoding="utf-8")
    assert toml.read(path, Train(steps=99, seed=99)) == settings


def test_a_file_sets_what_it_names_and_leaves_the_rest(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("steps = 3\n[optim]\nlr = 1\n")
    assert toml.read(path, ODD) == replace(ODD, steps=3, optim=replace(ODD.optim, lr=1.0))


@pytest.mark.parametrize(
    "content, said",
    [
        ("[optim]\nwarmpu = 3\n", "no setting in [optim] is called 'warmpu'. Did you mean 'warmup'?"),
        ("stepz = 3\n", "Did you mean 'steps'?"),
        ("steps = 3.5\n", "steps must be a int, not 3.5"),
        ("steps = true\n", "steps must be a int, not True"),
        ("optim = 3\n", "write [optim]"),
        ("[objective]\nname = 'mdml'\n", "Did you mean 'mdlm'?"),
        ("steps = 0\n", "steps must be at least 1, not 0"),
        ("[optim]\nema = 1.5\n", "ema is a share"),
        ("steps =\n", "is not TOML"),
        ("[objective]\nname = 'sedd'\n", "sedd needs the noise level"),
        ("[model]\ncond = 8\ntime_conditioning = true\n", "times = count has no noise level"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_the_file(content, said, tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(content)
    with pytest.raises(UserError) as error:
        toml.read(path, Train())
    assert said in str(error.value)
    assert str(path) in str(error.value)


def test_a_missing_file_is_named():
    with pytest.raises(UserError, match=r"cannot read nowhere\.toml"):
        toml.read("nowhere.toml", Train())


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_warm_start_needs_two_phases(share):
    with pytest.raises(UserError, match="between 0 and 1"):
        Warm(share=share)


def test_flags_come_after_the_file_and_a_resumed_run_keeps_its_settings(tmp_path):
    config, out = tmp_path / "a.toml", tmp_path / "run"
    config.write_text("seed = 5\n[optim]\nlr = 0.5\n")
    assert verb.default(["--config", str(config)]).train == replace(Train(), seed=5, optim=Optim(lr=0.5))
    assert verb.default([f"--config={config}", "--resume", "--out", str(out)]).train.seed == 5
    write_settings(out, ODD)
    assert verb.default(["--resume", "--out", str(out)]).train == ODD
