"""docs/why/design.md names every seam of the house, its file and its members."""

import re
from importlib import import_module
from pathlib import Path

import pytest

import unmask
from unmask.registry import Registry

ROOT = Path(__file__).parent.parent
HOUSE = Path(unmask.__file__).parent
PAGE = (ROOT / "docs/why/design.md").read_text(encoding="utf-8")
SEAMS = {
    place: members for place, members in re.findall(r"^\| [^|]+ \| [^|]+ \| `([\w/]+\.py)` \| (.+) \|$", PAGE, re.M)
}


def registries() -> dict[str, Registry]:
    """Every registry of the house by the file that holds it."""
    holding = {}
    for path in HOUSE.rglob("*.py"):
        if name := re.search(r"^(\w+): Registry\[", path.read_text(encoding="utf-8"), re.M):
            place = path.relative_to(HOUSE)
            holding[place.as_posix()] = getattr(
                import_module(f"unmask.{'.'.join(place.with_suffix('').parts)}"), name[1]
            )
    return holding


def own_members(registry: Registry) -> set[str]:
    """The members that the house itself brings: tests register toys."""
    return {name for name in registry if registry[name].__module__.startswith("unmask.")}


@pytest.mark.parametrize("place", sorted(registries()))
def test_every_registry_is_a_seam_of_the_page_with_its_members(place):
    members, known = SEAMS[place], own_members(registries()[place])
    if rooms := re.findall(r"`([\w/]+)/`", members):
        files = {path.stem for room in rooms for path in (HOUSE / room).glob("*.py")}
        modules = {registries()[place][name].__module__.rsplit(".", 1)[-1] for name in known}
        assert modules <= files
    elif "help`" not in members:
        assert set(re.findall(r"[a-z][a-z-]+", re.sub(r"\(.*\)|: the objective's", "", members))) == known


def test_every_file_and_room_that_the_page_names_exists():
    for name in re.findall(r"`([a-z_]+/[\w/]+(?:\.py|/)?)`", PAGE):
        assert any((top / name).exists() for top in (HOUSE, HOUSE.parent, ROOT)), name
