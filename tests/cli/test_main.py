"""The command line as a person meets it: real processes, exit codes, no tracebacks."""

import subprocess
import sys

import pytest

from unmask.cli.main import main, verbs


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "unmask", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=120)


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


def test_an_unknown_option_exits_with_2():
    out = command("inspect", "--frobnicate")
    assert out.returncode == 2
    assert "Traceback" not in out.stderr


@pytest.mark.slow
def test_inspect_without_a_model_survives_a_cpu_on_which_bf16_kills_the_process():
    out = command("inspect")
    assert out.returncode == 0
    assert "bf16 on CPU" in out.stdout
    assert "torch" in out.stdout
