"""experiments/recipe.py from text to its record."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "experiments" / "recipe.py"


@pytest.mark.slow
@pytest.mark.long
def test_the_script_compares_both_recipes_on_a_corpus(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat and the dog sat on the cat.\n" * 2000)
    line = [sys.executable, str(SCRIPT), str(text), "--minutes", "0.02", "--shares", "0.5", "--length", "16"]
    line += ["--rows", "8", "--prepare", "--documents line --tokenizer byte", "--out", str(tmp_path / "out")]
    told = subprocess.run(line, check=True, capture_output=True, text=True).stdout
    (found,) = json.loads((tmp_path / "out" / "recipe.json").read_text())
    assert found["reference"]["steps"] >= 20
    assert 0 < found["ours"]["0.5"]["bound"] < 6
    share = found["share of the time"]
    below = found["ours"]["0.5"]["bound"] < found["reference"]["bound"]
    assert (share is not None) == below
    assert ("passed after" in told) == below
