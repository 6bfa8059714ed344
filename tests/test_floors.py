"""Imports point down the floors, rooms on one floor do not know each other, and `import unmask` stays light."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import unmask
from unmask.diffusion.objective import OBJECTIVES

HOUSE = Path(unmask.__file__).parent
FLOOR = {
    "processes": 0,
    "diffusion": 1,
    "text": 1,
    "model": 2,
    "sampling": 3,
    "evaluation": 3,
    "training": 4,
    "views": 5,
    "serving": 5,
    "studies": 5,
    "cli": 6,
}
# Files that every room may use.
GROUND = {
    "errors",
    "files",
    "hub",
    "openmp",
    "plugins",
    "random",
    "registry",
    "settings",
    "shapes",
    "storage",
    "untrusted",
}
# Of two sub-rooms of a room the left one may use the right one, and never the other way round.
WITHIN = [
    ("text.corpus", "text.tokens"),
    ("text.prompt", "text.tokens"),
    ("model.formats", "model.backbones"),
    ("sampling.tasks", "sampling.policies"),
    ("sampling.tasks", "sampling.patterns"),
    ("evaluation.quality", "evaluation.likelihood"),
]
APART = [("text.corpus", "text.prompt"), ("sampling.policies", "sampling.patterns")]


# Tests of several modules at once, by what they are about; all others bear the name of a module.
ACROSS = {
    "cli": {"newcomer_tasks", "rivals", "sequences", "verbs"},
    "diffusion": {"baselines", "reference_losses"},
    "evaluation": {"commands"},
    "model/backbones": {"golden"},
    "sampling": {"bad_input", "independence", "laws"},
    "serving/http": {"balancer", "fuzz", "openai", "page"},
    "studies": {"paper"},
    "training": {"command", "configs", "learning", "many_processes"},
    "": {"design_page", "extend", "floors", "paper_map", "readme", "recipes", "results_page", "supply", "typecheck"},
}


def modules_imported(path: Path) -> set[str]:
    """The modules of unmask that a file imports, without the package's name."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            names += [module, *(f"{module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    found = {name.removeprefix("unmask.") for name in names if name.startswith("unmask.")}
    return {name for name in found if name != "__version__"}


def rooms_imported(path: Path) -> set[str]:
    return {name.split(".")[0] for name in modules_imported(path)}


def test_imports_point_down_the_floors_and_rooms_on_one_floor_do_not_know_each_other():
    wrong = []
    for room, floor in FLOOR.items():
        for path in (HOUSE / room).rglob("*.py"):
            for other in rooms_imported(path) - GROUND - {room}:
                if FLOOR[other] >= floor:
                    wrong.append(f"{path.relative_to(HOUSE)} on floor {floor} imports {other} on {FLOOR[other]}")
    assert not wrong, "\n".join(wrong)


def test_files_on_the_ground_use_nothing_above():
    for name in GROUND:
        assert rooms_imported(HOUSE / f"{name}.py") <= GROUND, name


def test_sub_rooms_are_used_in_one_direction():
    wrong = []
    pairs = [(low, high) for high, low in WITHIN] + [(a, b) for pair in APART for a, b in (pair, pair[::-1])]
    for low, high in pairs:
        for path in HOUSE.joinpath(*low.split(".")).rglob("*.py"):
            if any(name.startswith(high) for name in modules_imported(path)):
                wrong.append(f"{path.relative_to(HOUSE)} imports {high}")
    assert not wrong, "\n".join(wrong)


def test_every_room_has_a_floor():
    assert {path.parent.name for path in HOUSE.glob("*/__init__.py")} <= set(FLOOR)


def test_the_tour_of_the_code_shows_every_room_on_its_floor():
    page = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| (.+?) \| (.+?) \|$", page, re.M)
    named = r"`(\w+)(?:/|\.py)`"
    shown = {name: (int(floor), about) for floor, names, about in rows for name in re.findall(named, names)}
    assert {name: floor for name, (floor, _) in shown.items()} == FLOOR | dict.fromkeys(GROUND, 0)
    for room in FLOOR:
        inner = {path.parent.name for path in (HOUSE / room).glob("*/__init__.py")}
        assert set(re.findall(r"`(\w+)/`", shown[room][1])) == inner, room


def test_no_module_imports_itself_in_a_circle():
    graph = {}
    for path in HOUSE.rglob("*.py"):
        name = ".".join(path.relative_to(HOUSE).with_suffix("").parts)
        graph[name] = modules_imported(path)
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join([*trail, name])
        if name not in done and name in graph:
            for other in graph[name]:
                visit(other, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_nothing_outside_the_model_room_names_a_concrete_network():
    for path in HOUSE.rglob("*.py"):
        if path.relative_to(HOUSE).parts[0] != "model":
            assert not any(name.startswith("model.backbones") for name in modules_imported(path)), path


def test_no_sampler_imports_an_objective():
    """What both need, a kernel, a schedule, continuous vectors, is a file of its own."""
    members = {OBJECTIVES[name].__module__.removeprefix("unmask.") for name in OBJECTIVES}
    for path in (HOUSE / "sampling").rglob("*.py"):
        for name in modules_imported(path):
            assert not any(name == one or name.startswith(f"{one}.") for one in members), f"{path} imports {name}"


def test_no_two_test_files_have_one_name():
    """pytest would collect only one of them where folders are no packages."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert not {name for name in names if names.count(name) > 1}


def test_tests_mirror_the_source():
    tests = Path(__file__).parent
    for path in tests.rglob("test_*.py"):
        folder, name = path.parent.relative_to(tests).as_posix(), path.stem.removeprefix("test_")
        folder = "" if folder == "." else folder
        if folder in ("attack", "contracts", "bench", "experiments", "reference") or name in ACROSS.get(
            folder, set()
        ):
            continue
        modules = {one.stem for one in (HOUSE / folder).glob("*.py")}
        assert any(name == one or name.startswith(f"{one}_") for one in modules), (
            f"{path} tests no module of its name"
        )


def test_import_unmask_is_light():
    heavy = "torch, transformers, fastapi, datasets, tokenizers, matplotlib"
    code = f"import sys, unmask; print([m for m in '{heavy}'.split(', ') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"
