"""What a release has to be. `python tests/release.py dist` checks the wheel and tries it in a new environment."""

import json
import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
SOURCE = HERE / "src" / "unmask"
KINDS = {".py", ".safetensors", ".json", ".md", ".html", ".css", ".js", ".svg", ".toml", ".typed", ".txt", ""}
LARGEST = 40_000_000  # bytes: three story models of 10.5 MB each and a reserve


def built(folder: Path) -> Path:
    """The only wheel of a folder."""
    wheels = sorted(folder.glob("*.whl"))
    assert len(wheels) == 1, f"one wheel expected in {folder}; found {[one.name for one in wheels]}"
    return wheels[0]


def check_contents(wheel: Path) -> None:
    """Exactly the files of src/unmask under version control's eye, a licence, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        note = next(name for name in names if name.endswith(".dist-info/METADATA"))
        facts = Parser().parsestr(archive.read(note).decode())
    inside = {name.removeprefix("unmask/") for name in names if name.startswith("unmask/")}
    expected = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert inside == expected, f"missing {sorted(expected - inside)}, unexpected {sorted(inside - expected)}"
    outside = {name for name in names if not name.startswith("unmask/")}
    assert all(".dist-info/" in name for name in outside), f"files outside the package: {sorted(outside)}"
    assert any(name.endswith("licenses/LICENSE") for name in outside), "the licence is missing"
    strange = {name for name in inside if Path(name).suffix not in KINDS}
    assert not strange, f"files of unexpected kinds: {sorted(strange)}"
    for must in (
        "shipped/stories/model.safetensors",
        "shipped/stories/NOTICE",
        "shipped/stories-any-order/model.safetensors",
        "shipped/stories-ar/model.safetensors",
    ):
        assert must in inside, f"{must} is missing"
    assert wheel.stat().st_size < LARGEST, f"{wheel.stat().st_size:,} bytes are more than {LARGEST:,}"
    assert facts["Name"] == "unmask"
    assert facts["License-Expression"] == "Apache-2.0"
    assert wheel.name.startswith(f"unmask-{facts['Version']}-py3-none-any")


def check_changes(version: str) -> None:
    """The changelog speaks of this version."""
    heads = [
        line for line in (HERE / "CHANGELOG.md").read_text(encoding="utf-8").splitlines() if line.startswith("## ")
    ]
    assert heads, "CHANGELOG.md has no version"
    assert heads[0].startswith(f"## {version}"), f"CHANGELOG.md begins with {heads[0]!r}, the release is {version}"


def try_out(wheel: Path) -> None:
    """Install the wheel alone into a new environment, away from the source, and use it."""
    with tempfile.TemporaryDirectory(prefix="unmask-release-") as name:
        folder = Path(name)
        venv.create(folder / "venv", with_pip=True)
        scripts = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}

        def run(*command: str) -> str:
            done = subprocess.run(command, cwd=folder, env=clean, text=True, stdout=subprocess.PIPE, check=True)
            return done.stdout

        run(
            *(str(scripts / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"),
            *("-c", str(HERE / "constraints.txt"), f"{wheel}[serve]"),
        )
        assert "unmask" in run(str(scripts / "unmask"), "--version")
        asked = ("--prompt", "Once upon a time", "--length", "16", "--json")
        sampled = json.loads(run(str(scripts / "unmask"), "sample", "stories", *asked).splitlines()[0])
        assert sampled["text"].startswith("Once upon a time"), sampled
        where = run(str(scripts / "python"), "-c", "import unmask, unmask.serving.http.app; print(unmask.__file__)")
        assert Path(where.strip()).is_relative_to(folder), where


def main() -> None:
    wheel = built(Path(sys.argv[1]).resolve())
    check_contents(wheel)
    check_changes(wheel.name.split("-")[1])
    print(f"{wheel.name}: contents as expected, {wheel.stat().st_size:,} bytes")
    try_out(wheel)
    print(f"{wheel.name}: installed alone, samples from the included model")


if __name__ == "__main__":
    main()
