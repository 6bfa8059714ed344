"""What the README tells a newcomer to type works, and what it links to exists."""

import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from unmask.cli.main import main, verbs

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_is_short():
    assert len(README.splitlines()) <= 120


def test_every_make_target_in_the_docs_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    for page in (README, (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")):
        assert set(re.findall(r"\bmake ([a-z]+)\b *(?:#|`|$)", page, re.M)) <= targets


def test_every_verb_in_the_docs_exists():
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        for verb in re.findall(r"(?:^ {4,}|`|^)unmask ([a-z]+)", page.read_text(encoding="utf-8"), re.M):
            assert verb in verbs(), f"{page.name} names `unmask {verb}`"


def test_every_link_leads_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]:
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_every_import_in_the_docs_works():
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        for module, names in re.findall(
            r"^ *from (unmask[\w.]*) import ([\w, ]+)$", page.read_text(encoding="utf-8"), re.M
        ):
            for name in names.split(", "):
                found = import_module(module)
                assert hasattr(found, name) or find_spec(f"{module}.{name}"), f"{page.name}: {module} has no {name}"


@pytest.mark.parametrize("snippet", re.findall(r"```python\n(.*?)```", README, re.S))
def test_the_python_in_the_readme_runs(snippet):
    subprocess.run([sys.executable, "-c", snippet], check=True, timeout=120, cwd=ROOT)


@pytest.mark.slow
def test_the_demo_shows_a_story_fills_a_blank_trains_and_bounds(tmp_path, capsys):
    assert main(["demo", "--steps", "4", "--out", str(tmp_path / "demo")]) == 0
    out = "".join(capsys.readouterr())
    for said in (
        "Once upon a time",
        "network calls",
        "Lily went to the park",
        "mdlm: steps 2 to 4",
        "nats per token",
        "unmask serve",
    ):
        assert said in out
