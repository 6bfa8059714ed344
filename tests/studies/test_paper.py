"""The paper's tables: each runs end to end at the scale `smoke`, and quotes the paper's own numbers."""

import json
import tomllib
from pathlib import Path

import pytest

from unmask.cli.main import main
from unmask.studies.plan import StudyPlace, plan_tasks
from unmask.studies.study import VERBS, read_study

HERE = Path(__file__).parent
PAPER = Path(__file__).parents[2] / "configs" / "paper"
FILES = sorted(PAPER.glob("*.toml"))
OTHERS = sorted((PAPER.parent / "studies").glob("*.toml"))
QUOTED = json.loads((HERE / "paper_tables.json").read_text())
IN_ITS_TEXT = {"table4": {22.0, 78.0, 35.0}}  # the perplexities on C4 of AR, BERT and BERT + MDLM


def numbers(content):
    """Every number in a table of the paper."""
    if isinstance(content, dict):
        return {number for value in content.values() for number in numbers(value)}
    if isinstance(content, list):
        return {number for value in content for number in numbers(value)}
    return {float(content)} if type(content) in (int, float) else set()


def test_there_are_tables():
    assert len(FILES) >= 2


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_published_numbers_are_those_of_the_paper_s_table(path):
    said = {
        float(value) for row in tomllib.loads(path.read_text())["row"] for value in row.get("published", {}).values()
    }
    assert said <= numbers(QUOTED[path.stem]) | IN_ITS_TEXT.get(path.stem, set())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.parametrize("scale", ["smoke", "cpu", "paper"])
def test_every_scale_reads(path, scale):
    study = read_study(path, scale)
    assert study.rows
    assert study.columns


@pytest.mark.parametrize("path", [*FILES, *OTHERS], ids=lambda path: path.stem)
def test_every_scale_of_every_study_reads_and_plans(path, tmp_path):
    """Before hours of training: settings, steps by FLOPs, options of rows, and which row begins with which."""
    for scale in tomllib.loads(path.read_text()).get("scale", {}) or [""]:
        study = read_study(path, scale)
        assert plan_tasks(study, StudyPlace(tmp_path, tmp_path), there=False)


CHEAP = {"table2", "table3", "table8", "visible_keys"}  # the others take up to half a minute: `make long`


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[] if path.stem in CHEAP else pytest.mark.long) for path in [*FILES, *OTHERS]],
    ids=lambda path: path.stem,
)
def test_smoke(path, tmp_path):
    assert main(["study", str(path), "--scale", "smoke", "--out", str(tmp_path), "--jobs", "0"]) == 0
    table = json.loads((tmp_path / "table.json").read_text())
    assert all(row["complete"] and not row["failure"] for row in table["rows"])
    assert all(
        cell["value"] is not None for row in table["rows"] for cell in row["cells"] if cell["published"] is not None
    )
    assert (tmp_path / "table.png").is_file()


NO_PATHS = ("prepare", "field", "join", "documents", "detokenize", "given", "answer", "between")


def data_folders(content, *, within=False):
    """The folders of the files that the tables `data` of a study name, in any scale."""
    if isinstance(content, dict):
        return {
            folder
            for key, value in content.items()
            if key not in NO_PATHS or not within
            for folder in data_folders(value, within=within or key == "data")
        }
    if isinstance(content, list):
        return {folder for value in content for folder in data_folders(value, within=within)}
    named = within and isinstance(content, str) and not content.startswith(("{here}", "hf:", "python-topics:"))
    return {content.split("/")[0]} if named else set()


@pytest.mark.parametrize("path", [*FILES, *OTHERS], ids=lambda path: path.stem)
def test_the_page_lists_every_data_folder_of_a_study_and_its_smoke_scale(path):
    page = (PAPER.parents[1] / "docs" / "how" / "study.md").read_text()
    content = tomllib.loads(path.read_text())
    listed = {line.split("/")[0].strip("| `") for line in page.splitlines() if line.startswith("| `")}
    assert data_folders(content) <= listed
    assert "smoke" in content["scale"]
    assert "--scale smoke" in page


def test_the_page_lists_the_verbs_that_measure():
    page = (PAPER.parents[1] / "docs" / "how" / "study.md").read_text()
    assert f"`verb` ({', '.join(VERBS)})" in page
