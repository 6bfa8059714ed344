"""The command line as a person meets it: real processes, exit codes, no tracebacks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from forked import Forked
from unmask.cli import stored_help
from unmask.cli.main import main, verbs
from unmask.errors import UserError


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "unmask", *arguments]
    return subprocess.run(line, capture_output=True, text=True)


def test_help_names_every_verb():
    out = command("--help")
    assert out.returncode == 0
    assert all(verb in out.stdout for verb in verbs())


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_explains_itself_in_its_help(verb, capsys):
    assert main([verb, "--help"]) == 0
    out = capsys.readouterr().out
    assert verbs()[verb].rstrip(".").split()[0] in out
    assert f"unmask {verb}" in out.partition("examples:")[2], "an example at the end"
    assert len(out.splitlines()) <= 110, "two screens"
    assert max(len(line) for line in out.splitlines() if "toy-" not in line) <= 118


def test_an_unknown_verb_exits_with_2_and_a_guess():
    out = command("inspct")
    assert out.returncode == 2
    assert "Did you mean 'inspect'?" in out.stderr
    assert "Traceback" not in out.stderr


def test_an_unknown_option_exits_with_2_and_a_guess():
    out = command("sample", "stories", "--temprature", "0.9")
    assert out.returncode == 2
    assert "no option --temprature. Did you mean --temperature?" in out.stderr
    assert "Traceback" not in out.stderr


@pytest.mark.parametrize(
    ("seen", "meant"),
    [
        ("--pull", "--classifier-weight"),
        ("--towards", "--classifier-label"),
        ("--exact-pull", "--classifier-exact"),
        ("--no-repat", "--no-repeat"),
        ("--no-jsn", "--json"),
    ],
)
def test_an_option_that_had_another_name_or_is_mistyped_is_answered_with_the_name_to_type(seen, meant, capsys):
    assert main(["sample", "stories", seen, "2"]) == 2
    assert f"no option {seen}. Did you mean {meant}?" in capsys.readouterr().err


def test_a_wrong_value_is_told_in_one_line_where_nobody_reads_boxes():
    out = Forked("sample", "stories", "--length", "abc", LC_ALL="C").finish()
    assert out.returncode == 2
    assert out.stderr == "unmask: --length: 'abc' is not a whole number.\n"


@pytest.mark.parametrize("arguments", [("train", "--help"), ("train", "--optim.lrr", "3"), ("study", "-h")])
def test_help_and_a_mistyped_option_import_no_torch(arguments):
    code = (
        f"import sys; from unmask.cli.main import main; main({list(arguments)!r}); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_the_stored_help_is_that_of_the_settings():
    code = "import json, sys; from write_help import help_of_verbs; json.dump(help_of_verbs(), sys.stdout)"
    tests = Path(__file__).parents[1]
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tests)
    assert stored_help.read_stored() == json.loads(out.stdout), (
        "run `make help`"
    )  # without the components of other tests


def test_components_of_other_files_are_never_judged_by_what_is_stored(monkeypatch):
    stored_help.check_flags("train", ["--objective.ramp", "1", "--model.no-tied", "--optim.weight_decay=0"])
    with pytest.raises(UserError, match=r"no option --objective\.mine"):
        stored_help.check_flags("train", ["--objective.mine", "1"])
    monkeypatch.setenv("UNMASK_PLUGINS", "mine.py")
    stored_help.check_flags("train", ["--objective.mine", "1"])
    assert stored_help.stored_help("train", ["--help"]) is None


@pytest.mark.slow
def test_inspect_without_a_model_survives_a_cpu_on_which_bf16_kills_the_process():
    out = command("inspect")
    assert out.returncode == 0
    assert "bf16 on CPU" in out.stdout
    assert "torch" in out.stdout
