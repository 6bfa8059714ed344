"""A run, a judge and a text, for the verbs that judge and report."""

import json

import pytest

import tiny


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A folder with the run `mine`, the judge `ar` and text.txt."""
    folder = tmp_path_factory.mktemp("runs")
    tiny.checkpoint(folder / "mine" / "best")
    tiny.checkpoint(folder / "ar", objective="ar")
    steps = [{"step": s, "steps": 1, "loss": 9 - s, "bound": 9 - s, "seconds": 60.0} for s in range(1, 6)]
    (folder / "mine" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in steps))
    (folder / "text.txt").write_text("abba cab. bad, cafe\n" * 5)
    return folder


@pytest.fixture
def command(capsys):
    """Run a command: command("frontier", folder, ...) gives its exit code, output and errors."""
    from unmask.cli.main import main

    def call(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
