"""`unmask report` as a person meets it."""

import json
import re
import shutil

import pytest

pytestmark = pytest.mark.slow  # pictures


def test_a_report_shows_all_that_lies_in_the_folder_of_the_run(runs, command, tmp_path):
    mine = shutil.copytree(runs / "mine", tmp_path / "mine")
    options = ["--samplers", "ancestral", "--steps", 2, "--n", 3]
    command("frontier", mine, "--judge", runs / "ar", *options, "--out", mine / "frontier")
    command("evaluate", mine, runs / "text.txt", "--out", mine / "valid.json")
    command("quality", mine, "--judge", runs / "ar", "--n", 2, "--out", mine / "quality.json")
    code, printed, _ = command("report", mine, "--samples", 2)
    assert code == 0
    assert printed.startswith(f"{mine / 'report.html'}: Learning curves, Quality against cost, quality, valid")
    page = (mine / "report.html").read_text()
    assert not re.findall(r'(?:src|href)="(?!#)', page)
    assert "@import" not in page
    assert re.findall("<h2>(.*?)</h2>", page) == [
        "Learning curves",
        "Quality against cost",
        "quality",
        "valid",
        "Samples, as they emerge",
        "Record",
    ]
    bound = json.loads((mine / "valid.json").read_text())["nats_per_token"]
    assert f"{bound:.4f} ±" in page
    assert page.count("<iframe") == page.count("</iframe>") == 2


def test_a_checkpoint_without_a_run_has_a_report_too(runs, command, tmp_path):
    code, printed, _ = command("report", runs / "ar", "--samples", 0, "--out", tmp_path / "ar.html")
    assert code == 0
    assert printed.startswith(f"{tmp_path / 'ar.html'}: Record; ")
    assert '<p class="about">ar, ' in (tmp_path / "ar.html").read_text()


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["{runs}/nowhere"], "no folder"),
        (["{runs}/mine", "--results", "{runs}/text.txt"], "not JSON"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_words(runs, command, arguments, words):
    code, _, err = command("report", *(argument.format(runs=runs) for argument in arguments))
    assert code == 2
    assert words in err
