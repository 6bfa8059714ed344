"""Verbs share what they share through views/ and the files of cli/ that are no verbs."""

import ast
from pathlib import Path

import pytest

import unmask
from unmask.cli.main import verbs

FOLDER = Path(unmask.__file__).parent / "cli"


@pytest.mark.parametrize("verb", sorted(verbs()))
def test_a_verb_imports_no_other_verb(verb):
    imported = set()
    for node in ast.walk(ast.parse((FOLDER / f"{verb}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "unmask.cli":
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("unmask.cli."):
            imported.add(node.module.split(".")[2])
    assert not imported & set(verbs())
