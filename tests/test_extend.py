"""The code of docs/how/extend.md works as the page says, from entry points of another package."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/how/extend.md").read_text(encoding="utf-8")
GROUPS = {"sampler": "unmask.samplers", "objective": "unmask.objectives", "backbone": "unmask.backbones"}


@pytest.fixture
def installed(tmp_path):
    """A package with the page's three files and its entry points, as pip would lay it out."""
    site = tmp_path / "site"
    (site / "my_package").mkdir(parents=True)
    (site / "my_package" / "__init__.py").write_text("")
    found = re.findall(r"```python\n# (\w+): (\w+\.py)\n(.*?)```", PAGE, re.S)
    assert {kind for kind, _, _ in found} == set(GROUPS)
    for _, name, code in found:
        (site / "my_package" / name).write_text(code)
    points = re.search(r"```toml\n(.*?)```", PAGE, re.S)[1]
    entries = "\n".join(
        line.replace('[project.entry-points."', "[").replace('"]', "]").replace('"', "")
        for line in points.splitlines()
        if not line.startswith("#")
    )
    info = site / "my_package-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(entries)
    return site


def unmask(site: Path, *arguments: str) -> str:
    paths = os.pathsep.join([str(site), *([os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else [])])
    ran = subprocess.run(
        [sys.executable, "-m", "unmask", *arguments],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_the_three_examples_work_from_another_package(installed, tmp_path):
    text, out = tmp_path / "text.txt", tmp_path / "run"
    text.write_text("a cab had a bad bead. a fed hag hid. " * 80)
    chosen = ["--objective.name", "masked-lm", "--objective.schedule", "cosine:eps=0", "--model.name", "mixer"]
    small = ["--model.reach", "5", "--text.tokenizer", "character", "--text.length", "16", "--optim.batch", "4"]
    unmask(installed, "train", "--data", str(text), "--out", str(out), "--steps", "3", *chosen, *small)
    said = unmask(installed, "inspect", str(out))
    assert "masked-lm" in said
    assert "reach 5" in said
    measured = json.loads(unmask(installed, "evaluate", str(out), str(text), "--rows", "4", "--json"))
    assert measured["means"] == "upper bound on -log p, continuous time"
    flags = ["--sampler", "from-the-right:calls=4", "--length", "12", "--json"]
    drawn = json.loads(unmask(installed, "sample", str(out), *flags))
    assert drawn["law"] == "approximate (from right to left)"
    assert drawn["calls"] == 4


@pytest.mark.slow
def test_a_package_that_cannot_be_loaded_is_named(installed):
    (installed / "my_package" / "my_sampler.py").write_text("raise ImportError('it needs a GPU')")
    line = [sys.executable, "-m", "unmask", "sample", "stories", "--sampler", "from-the-right"]
    env = os.environ | {"PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(line, env=env, capture_output=True, text=True)
    assert ran.returncode == 2
    assert "my_package.my_sampler" in ran.stderr
    assert "it needs a GPU" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.slow
@pytest.mark.long
def test_the_commands_of_the_page_work_as_typed_and_a_missing_plugin_is_named(installed, tmp_path):
    files, text = installed / "my_package", tmp_path / "my_texts" / "a.txt"
    text.parent.mkdir()
    text.write_text("a cab had a bad bead. a fed hag hid. " * 80)
    lines = [line.split() for line in re.findall(r"^    unmask ((?:sample|train) .*--plugin .*)$", PAGE, re.M)]
    assert len(lines) == 3
    small = ["--steps", "2", "--text.tokenizer", "character", "--text.length", "16", "--optim.batch", "4"]
    plain = {name: value for name, value in os.environ.items() if name != "UNMASK_PLUGINS"}

    def ran(*words: str, **more: str) -> subprocess.CompletedProcess:
        line = [sys.executable, "-m", "unmask", *words]
        return subprocess.run(line, cwd=tmp_path, env=plain | more, capture_output=True, text=True)

    for name in ("my_sampler.py", "my_objective.py", "my_backbone.py"):
        (tmp_path / name).write_text((files / name).read_text())
    for line in lines:
        more = small if line[0] == "train" else ["--length", "24"]
        done = ran(*line, *more)
        assert done.returncode == 0, done.stderr
    missing = ran("inspect", "runs/mixer")
    assert missing.returncode == 2
    assert "no backbone is called 'mixer'" in missing.stderr
    assert "give --plugin FILE. It was written with --plugin 'my_backbone.py'." in missing.stderr
    assert ran("inspect", "runs/mixer", UNMASK_PLUGINS=str(tmp_path / "my_backbone.py")).returncode == 0
    assert ran("inspect", "--plugin", "nowhere.py", "runs/mixer").returncode == 2
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "json.py").write_text("")
    assert "rename it" in ran("inspect", "--plugin", "more/json.py", "stories").stderr
    (tmp_path / "broken.py").write_text("1 / 0\n")
    broken = ran("inspect", "--plugin=broken.py", "stories")
    assert broken.returncode == 2
    assert "cannot be loaded: ZeroDivisionError" in broken.stderr
