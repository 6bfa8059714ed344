"""A few hundred steps on a text of known entropy: every objective learns what there is to learn."""

from dataclasses import replace

import pytest
import torch

from training.small import LENGTH, MASK, OBJECTIVES, Chain, network
from unmask.text.row import Rows
from unmask.training import ema
from unmask.training.loop import begin, train
from unmask.training.phases import phases
from unmask.training.validation import validate

CHAIN = Chain.make()
STEPS = {"mdlm": 300, "d3pm": 300, "sedd": 300, "ar": 100}


def held_out():
    return [Rows.of(CHAIN.rows(512, 10_000 + i), torch.ones(512, LENGTH, dtype=torch.bool)) for i in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[pytest.mark.long] * (one == "d3pm")) for one in OBJECTIVES]
)
def test_a_few_hundred_steps_beat_the_unigram_entropy_and_approach_the_entropy(name):
    asked = replace(OBJECTIVES[name], steps=STEPS[name])
    asked = replace(asked, optim=replace(asked.optim, batch=64, lr=5e-3, ema=0.98))
    state = begin(network(asked), asked)
    list(train(state, phases(asked)[0], asked, CHAIN.batch(64), mask=MASK))
    with ema.in_place(state.shadow, list(state.network.parameters())):
        score = validate(state.learner, held_out(), asked.objective, mask=MASK, seed=0)
    least = CHAIN.next if name == "ar" else CHAIN.entropy  # ar is given the first letter
    assert score.error < 0.05
    assert score.bound < CHAIN.unigram - 0.2
    assert least - 4 * score.error < score.bound < least + 0.35 * (CHAIN.unigram - least) + 2 * score.error
