"""MAUVE under a tiny judge. Collected only where mauve-text is installed (conftest.py)."""

import numpy as np
import pytest

import tiny
from unmask.evaluation.quality.judges import OwnJudge
from unmask.evaluation.quality.mauve import mauve

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of other libraries


def test_mauve_is_high_for_the_same_kind_of_text_and_low_for_another(tmp_path):
    judge = OwnJudge(tiny.model(tmp_path / "ar", objective="ar"))
    draws = np.random.default_rng(0)
    abc, fgh = ([draws.choice(judge.model.tokenizer.encode(some), 10) for _ in range(400)] for some in ("abc", "fgh"))
    alike, _ = mauve(judge, abc[:200], abc[200:])
    other, _ = mauve(judge, fgh[:200], abc[200:])
    assert 0 < other < 0.5 < alike <= 1


def test_where_there_is_no_mauve_the_reason_is_told(tmp_path):
    judge = OwnJudge(tiny.model(tmp_path / "ar", objective="ar"))
    rows = [np.array([1, 2, 3])] * 3
    assert mauve(judge, rows, rows) == (None, "it needs at least 200 samples; there are 3")
    assert mauve(None, rows, None)[0] is None
