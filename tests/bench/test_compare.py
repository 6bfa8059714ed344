"""The watch on speed: what is said to be slower is, and noise alone is rarely reported."""

import json
import random
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

spec = spec_from_file_location("bench_compare", Path(__file__).parents[2] / "bench" / "compare.py")
compare = sys.modules["bench_compare"] = module_from_spec(spec)
spec.loader.exec_module(compare)
Settings, change, main, verdict = compare.Settings, compare.change, compare.main, compare.verdict


def rounds(pace: float, seed: int, *, count: int = 9, noise: float = 0.05) -> list[float]:
    dice = random.Random(seed)
    return [pace * (1 + noise * dice.gauss(0, 1)) for _ in range(count)]


def test_a_change_is_found_and_noise_is_rarely_taken_for_one():
    told = [verdict(change(rounds(1, 2 * i), rounds(1, 2 * i + 1)), 0.03) for i in range(100)]
    assert told.count("as before") >= 85
    assert all(verdict(change(rounds(1, i), rounds(1.3, i + 500)), 0.03) == "slower" for i in range(30))
    assert all(verdict(change(rounds(1, i), rounds(0.7, i + 500)), 0.03) == "faster" for i in range(30))


def test_the_machine_s_own_pace_is_divided_out(tmp_path, capsys):
    """A machine twice as slow in everything is no change; a job twice as slow is, and the exit code says so."""
    old = {"jobs": {"a": {"seconds": rounds(4, 1), "products": [2.0] * 9}, "gone": {"seconds": [1], "products": [1]}}}
    same = {"jobs": {"a": {"seconds": [2 * v for v in rounds(4, 1)], "products": [4.0] * 9}}}
    slow = {"jobs": {"a": {"seconds": [2 * v for v in rounds(4, 1)], "products": [2.0] * 9}}}
    for name, one in (("old", old), ("same", same), ("slow", slow)):
        (tmp_path / name).write_text(json.dumps(one))
    assert main(Settings(tmp_path / "old", tmp_path / "same")) == 0
    assert "as before" in (said := capsys.readouterr().out)
    assert "gone: only in the old record" in said
    assert main(Settings(tmp_path / "old", tmp_path / "slow")) == 1
    assert "slower" in capsys.readouterr().out
