"""Imports point down the floors, and `import unmask` stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import unmask

HOUSE = Path(unmask.__file__).parent
FLOOR = {
    "processes": 0,
    "diffusion": 1,
    "text": 1,
    "model": 2,
    "sampling": 3,
    "training": 3,
    "evaluation": 3,
    "views": 4,
    "serving": 4,
    "cli": 5,
}
GROUND = {"errors", "files", "random", "registry", "settings", "shapes"}  # files that every room may use


def rooms_imported(path: Path) -> set[str]:
    """The rooms (or ground files) of unmask that a file imports."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            names += [f"{module}.{alias.name}" for alias in node.names] if module == "unmask" else [module]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    parts = [name.split(".") for name in names]
    return {part[1] for part in parts if part[0] == "unmask" and len(part) > 1 and part[1] != "__version__"}


def test_imports_point_down_the_floors_and_rooms_on_one_floor_do_not_know_each_other():
    wrong = []
    for room, floor in FLOOR.items():
        for path in (HOUSE / room).rglob("*.py"):
            for other in rooms_imported(path) - GROUND - {room}:
                if FLOOR[other] >= floor:
                    wrong.append(f"{path.relative_to(HOUSE)} on floor {floor} imports {other} on {FLOOR[other]}")
    assert not wrong, "\n".join(wrong)


def test_every_room_has_a_floor():
    assert {path.parent.name for path in HOUSE.glob("*/__init__.py")} <= set(FLOOR)


def test_import_unmask_is_light():
    heavy = "torch, transformers, fastapi, datasets, tokenizers, matplotlib"
    code = f"import sys, unmask; print([m for m in '{heavy}'.split(', ') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"
