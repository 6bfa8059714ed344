"""What is installed: every dependency pinned, and a wheel with the package and nothing else."""

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import release

HERE = Path(__file__).resolve().parent.parent


def pins() -> dict[str, str]:
    lines = (HERE / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = [
        re.fullmatch(r"([a-z0-9.-]+)==([a-z0-9.]+)", line) for line in lines if line and not line.startswith("#")
    ]
    assert all(found), "every line of constraints.txt is name==version"
    return {canonicalize_name(one[1]): one[2] for one in found if one}


def reached(name: str, extras: frozenset[str]) -> dict[str, str]:
    """The installed distributions that one asks for, directly or not, with their versions."""
    seen: set[tuple[str, frozenset[str]]] = set()
    versions: dict[str, str] = {}
    todo = [(name, extras)]
    while todo:
        name, extras = todo.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            there = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # an extra that this environment does not have
        versions[canonicalize_name(name)] = there.version.partition("+")[0]
        for text in there.requires or []:
            asked = Requirement(text)
            if asked.marker is None or any(asked.marker.evaluate({"extra": extra}) for extra in ["", *extras]):
                todo.append((canonicalize_name(asked.name), frozenset(asked.extras)))
    return versions


def test_every_dependency_is_pinned():
    extras = frozenset(metadata.metadata("unmask").get_all("Provides-Extra") or [])
    needed = reached("unmask", extras)
    needed.pop("unmask")
    assert len(needed) > 60, "the walk over requirements found too little to mean anything"
    free = sorted(needed.keys() - pins().keys())
    assert not free, f"constraints.txt does not pin {free}"


def test_what_unmask_asks_for_agrees_with_the_pins():
    pinned = pins()
    for text in metadata.requires("unmask") or []:
        asked = Requirement(text)
        if canonicalize_name(asked.name) == "unmask":
            continue
        assert asked.specifier.contains(pinned[canonicalize_name(asked.name)]), text


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=HERE, check=True, capture_output=True)
    release.check_contents(release.built(tmp_path))


def test_the_changelog_begins_with_the_version():
    release.check_changes(metadata.version("unmask"))
