"""The Markov chains of experiments/markov.py are mixtures of their orders, against counts by hand."""

from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

FILE = spec_from_file_location("markov", Path(__file__).parents[2] / "experiments" / "markov.py")
markov = module_from_spec(FILE)
FILE.loader.exec_module(markov)


@pytest.mark.slow
def test_a_chain_is_the_mixture_of_its_orders(monkeypatch):
    monkeypatch.setattr(markov, "PART", 7)
    dice = np.random.default_rng(0)
    ids = dice.choice(5, 300, p=[0.4, 0.2, 0.2, 0.15, 0.05])
    p = np.full(4, 0.25)
    order_0 = np.bincount(ids[ids < 4], minlength=4)
    p = (order_0 + 4 * p) / (order_0.sum() + 4)
    pairs = Counter((a, b) for a, b in zip(ids[:-1].tolist(), ids[1:].tolist(), strict=True) if a < 4 and b < 4)
    found = markov.chain([ids], 1)
    for a in range(4):
        row = np.array([pairs[a, b] for b in range(4)])
        kinds = (row > 0).sum()
        assert found[a] == pytest.approx((row + kinds * p) / (row.sum() + kinds))
    deep = markov.chain([ids], 3)
    assert deep.sum(1) == pytest.approx(np.ones(64))
    wanted = [-np.log(found[a, b]) for (a, b), count in pairs.items() for _ in range(count)]
    assert markov.nats(found, [ids], 1) == pytest.approx(np.mean(wanted))
