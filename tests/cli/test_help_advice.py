"""Advice in errors works when it is typed."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

import unmask
from unmask.cli.help import help_text
from unmask.cli.main import main, verbs

HOUSE = Path(unmask.__file__).parent
FLAG = re.compile(r"(?<![\w-])--([a-z][\w.-]*[a-z\d])")
# Options of other programs, and of the server's requests, that errors name.
ELSEWHERE = {"help", "plugin", "upgrade", "editable", "index-url", "nproc-per-node"}


def flags(verb: str) -> set[str]:
    module = import_module(f"unmask.cli.{verb}")
    text = help_text(module, module.default([]) if hasattr(module, "default") else None)
    return set(FLAG.findall(text.replace("[no-]", "")))


def advice() -> dict[str, set[str]]:
    """Every flag that an error names, with the files that do."""
    found: dict[str, set[str]] = {}
    for path in HOUSE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Raise) or node.exc is None:
                continue
            texts = [
                one.value
                for one in ast.walk(node.exc)
                if isinstance(one, ast.Constant) and isinstance(one.value, str)
            ]
            for flag in FLAG.findall(" ".join(texts)):
                found.setdefault(flag, set()).add(path.relative_to(HOUSE).as_posix())
    return found


def test_every_flag_that_an_error_names_is_one_of_a_verb():
    known = set().union(*(flags(verb) for verb in verbs()))
    named = advice()
    assert len(named) > 20
    wrong = {flag: files for flag, files in named.items() if flag not in known | ELSEWHERE}
    assert not wrong, wrong


def test_messages_name_an_option_by_its_short_name():
    shown = help_text(import_module("unmask.cli.train"), import_module("unmask.cli.train").default([]))
    short = {long: name for name, long in re.findall(r"(--[\w-]+), (--\w+\.[\w.-]+)", shown.replace("[no-]", ""))}
    assert short["--text.pack"] == "--pack"
    texts = {path: path.read_text(encoding="utf-8") for path in HOUSE.rglob("*.py") if path.name != "settings.py"}
    wrong = [
        (path.name, long) for path, text in texts.items() for long in short if re.search(rf"{long}\b(?!-)", text)
    ]
    assert not wrong


def test_what_errors_about_data_advise_exists_in_every_verb_that_reads_data():
    # What is wrong with --stretch and --window is told to those who gave them: verbs that have them.
    named = {flag for flag, files in advice().items() if "text/corpus/documents.py" in files}
    named -= {"stretch", "window", "length"}
    assert {"field", "documents"} <= named
    for verb in ("train", "prepare", "evaluate"):
        assert named <= flags(verb), verb


@pytest.mark.parametrize("verb", ["train", "prepare", "evaluate", "classify"])
def test_a_wrong_column_is_cured_by_the_flag_that_the_error_names(verb, tmp_path, capsys):
    data, out = tmp_path / "products.csv", tmp_path / "out"
    data.write_text("description,label\n" + "".join(f"a thing of number {i},{i % 2}\n" for i in range(40)))
    small = ["--model.width", "8", "--model.blocks", "1", "--model.heads", "1", "--steps", "2", "--run.preview", "0"]
    command = {
        "train": ["--data", str(data), "--tokenizer", "byte", "--out", str(out), *small],
        "prepare": [str(data), "--tokenizer", "byte", "--workers", "1", "--out", str(out)],
        "evaluate": ["stories", str(data), "--rows", "2", "--passes", "1"],
        "classify": ["stories", str(data), "--guide", "--steps", "1", "--out", str(out)],
    }[verb]
    assert main([verb, *command]) == 2
    error = capsys.readouterr().err
    assert "Known: description, label" in error
    assert not out.exists()
    flag = FLAG.findall(error)[0]
    assert main([verb, *command, f"--{flag}", "description"]) == 0


@pytest.mark.parametrize(
    "value, said", [("three", "'three' is not a whole number"), ("1.5", "'1.5' is not a whole number")]
)
def test_a_number_that_is_none_is_told_in_words(value, said, capsys):
    assert main(["sample", "stories", "--n", value]) == 2
    shown = "".join(capsys.readouterr())
    assert said in shown
    assert "literal" not in shown


def test_a_mistake_in_the_network_is_told_before_any_data_is_read(tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["train", "--data", str(tmp_path / "nowhere"), "--out", str(out), "--model.width", "65"]) == 2
    assert "width 65 cannot be split" in " ".join("".join(capsys.readouterr()).split())
    assert not out.exists()
