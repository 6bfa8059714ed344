from dataclasses import fields, replace
from typing import get_type_hints

import pytest

from unmask import settings as toml
from unmask.cli import train as verb
from unmask.cli.flags import without_flags
from unmask.diffusion.mdlm import MDLM
from unmask.diffusion.objective import OBJECTIVES
from unmask.diffusion.schedule import Cosine
from unmask.diffusion.times import Bell, Count
from unmask.errors import UserError
from unmask.model.backbones.transformer import Architecture
from unmask.training.optim import OPTIMIZERS
from unmask.training.optimizers.adamw import AdamW
from unmask.training.optimizers.auto import Auto
from unmask.training.optimizers.muon import Muon
from unmask.training.settings import Run, Text, Train, Warm, settle_training

ODD = Train(
    data='C:\\texts "of" mine\n',
    out="ünïcode",
    steps=7,
    text=Text(length=9, separator="\t\u2028"),
    model=Architecture(width=8, dropout=0.1),
    objective=MDLM(schedule=Cosine(eps=0), times=Bell(mean=-0.25)),
    optim=Auto(lr=1e-7, eps=1e-12, ema=0.0),
    run=Run(track="tensorboard"),
)


@pytest.mark.parametrize("settings", [Train(), ODD])
def test_settings_written_as_toml_read_back_equal(settings, tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text(toml.dumps(settings), encoding="utf-8")
    assert toml.read_toml(path, Train(steps=99, seed=99)) == settings


def test_a_file_sets_what_it_names_and_leaves_the_rest(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("steps = 3\n[optim]\nlr = 1\n")
    assert toml.read_toml(path, ODD) == replace(ODD, steps=3, optim=replace(ODD.optim, lr=1.0))


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
        ("[optim]\nema = 1.5\n", "ema must be a share"),
        ("steps =\n", "is not TOML"),
        ("[model]\ntime_conditioning = true\n", "needs features for the noise level"),
        ("[model]\nvocab = 9\n", "model.vocab cannot be set"),
        ("[objective]\nname = 'sedd'\nweight = 'flat'\n", "no setting in [objective] is called 'weight'"),
        ("[objective]\nschedule = 'cosin'\n", "Did you mean 'cosine'?"),
        ("[objective]\ntimes = 'bell:maen=0'\n", "Did you mean 'mean'?"),
        ("recipe = 'warm'\n[objective]\nname = 'sedd'\n", "does not allow it"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_the_file(content, said, tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(content)
    with pytest.raises(UserError) as error:
        toml.read_toml(path, Train())
    assert said in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("table", [Train(), *(getattr(Train(), name) for name in ("text", "optim", "warm", "run"))])
def test_numbers_are_written_as_they_are_read(table):
    """A default 1 of a float would be written as 1, read as 1.0 and written as 1.0 when the run is resumed."""
    hints = get_type_hints(type(table))
    wrong = [one.name for one in fields(table) if hints[one.name] is float and type(getattr(table, one.name)) is int]
    assert not wrong
    assert toml.dumps(toml.merge_settings(Train(), toml.describe_settings(Train()))) == toml.dumps(Train())


def test_a_missing_file_is_named():
    with pytest.raises(UserError, match=r"cannot read nowhere\.toml"):
        toml.read_toml("nowhere.toml", Train())


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_warm_start_needs_two_phases(share):
    with pytest.raises(UserError, match="between 0 and 1"):
        Warm(share=share)


def test_flags_come_after_the_file_and_a_resumed_run_keeps_its_settings(tmp_path):
    config, out = tmp_path / "a.toml", tmp_path / "run"
    config.write_text("seed = 5\n[optim]\nlr = 0.5\n")
    assert asked("--config", str(config)) == replace(Train(), seed=5, optim=Auto(lr=0.5))
    assert asked(f"--config={config}", "--resume", "--out", str(out)).seed == 5
    out.mkdir()
    (out / "settings.toml").write_text(toml.dumps(ODD), encoding="utf-8")
    assert asked("--resume", "--out", str(out)) == replace(ODD, out=str(out))  # which may have moved


def asked(*arguments: str) -> Train:
    return without_flags(verb.default(list(arguments)).train)


def test_a_component_that_a_flag_names_brings_the_values_that_train_it_best():
    assert asked("--objective.name", "sedd").objective == OBJECTIVES.usual("sedd")
    assert asked().objective == MDLM(times=Count(), weight="flat")
    assert asked().model == Architecture(tied=True)


def test_what_is_left_to_auto_is_the_best_recipe_that_was_measured():
    plain = settle_training(Train())
    assert (plain.recipe, plain.optim.name, plain.optim.lr) == ("warm", "muon", 5e-3)
    assert plain.model.tied
    assert plain.objective == MDLM(times=Count(), weight="flat")


def test_auto_needs_no_further_option_for_another_objective_or_a_checkpoint():
    sedd = settle_training(Train(objective=OBJECTIVES.usual("sedd")))
    assert (sedd.recipe, sedd.optim.name, sedd.optim.lr) == ("plain", "adamw", 1e-3)
    assert sedd.model.shown_sigma
    tuned = settle_training(Train(init="somewhere"))
    assert (tuned.recipe, tuned.optim.name, tuned.optim.lr) == ("plain", "muon", 1e-3)
    causal = settle_training(Train(objective=OBJECTIVES.usual("ar")))
    assert (causal.recipe, causal.optim.name) == ("plain", "muon")
    modulated = settle_training(Train(model=Architecture(cond=8)))
    assert modulated.recipe == "plain"


def test_what_was_asked_for_is_not_changed_by_auto():
    said = Train(recipe="plain", optim=AdamW(lr=2e-3), model=Architecture(cond=8, tied=False))
    assert settle_training(said) == said


def test_an_optimizer_has_fields_of_its_own_and_takes_over_those_of_another(tmp_path):
    config = tmp_path / "a.toml"
    config.write_text("[optim]\nname = 'muon'\nmomentum = 0.9\nlr = 0.5\n")
    assert asked("--config", str(config)).optim == Muon(momentum=0.9, lr=0.5)
    assert asked("--config", str(config), "--optim.name", "adamw").optim == AdamW(lr=0.5)
    config.write_text("[optim]\nname = 'adamw'\nmomentum = 0.9\n")
    with pytest.raises(UserError, match=r"no setting in \[optim\] is called 'momentum'"):
        asked("--config", str(config))


def test_settings_written_when_all_optimizers_had_the_same_fields_are_read(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text(
        "[optim]\nname = 'muon'\nbatch = 16\nmicro = 0\nlr = 0.005\nschedule = 'cosine'\nwarmup = 100\nfloor = 0.1\n"
        "reference = false\nbeta1 = 0.9\nbeta2 = 0.95\neps = 1e-08\nweight_decay = 0.0\nclip = 1.0\nema = 0.999\n"
    )
    assert toml.read_toml(path, Train()).optim == Muon(batch=16, lr=0.005)


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_every_optimizer_turns_into_every_other_and_back(name):
    mine = replace(OPTIMIZERS.usual(name), lr=0.25, batch=3)
    for other in OPTIMIZERS:
        turned = OPTIMIZERS.turned(mine, other)
        assert (turned.name, turned.lr, turned.batch) == (other, 0.25, 3)
        assert OPTIMIZERS.turned(turned, name) == mine


@pytest.mark.parametrize("name", ["sedd", "d3pm-uniform"])
def test_a_network_without_modulation_stays_one_whatever_the_objective_prefers(name):
    asked = toml.merge_settings(Train(), {"objective": {"name": name}, "model": {"cond": 0}})
    assert (settle_training(asked).model.cond, settle_training(asked).model.shown_sigma) == (0, False)
    assert settle_training(toml.merge_settings(Train(), {"objective": {"name": name}})).model.cond == 128
    assert (
        settle_training(toml.merge_settings(Train(), {"objective": {"name": name}, "model": {"cond": 8}})).model.cond
        == 8
    )
    assert settle_training(Train()).model.cond == 0
