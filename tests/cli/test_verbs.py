"""Verbs share what they share through views/ and the files of cli/ that are no verbs."""

import ast
import re
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


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_help_texts_are_comments_in_one_dialect(path):
    """A comment after the field, in lower case, without a full stop."""
    text = path.read_text(encoding="utf-8")
    for kind in ast.walk(ast.parse(text)):
        if isinstance(kind, ast.ClassDef):
            strings = [node for node in kind.body[1:] if isinstance(node, ast.Expr)]
            assert not strings, f"{path.name}: {ast.unparse(strings[0])}"
    for comment in re.findall(r"^    \w+: .*  # (.*)$", text, re.M):
        first = comment.split()[0]
        assert not comment.endswith("."), comment
        assert first.islower() or first.isupper() or not first.isalpha(), comment
