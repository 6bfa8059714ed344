"""The score of a validation against the objective itself, row by row."""

from dataclasses import replace

import pytest
import torch

from training.small import LENGTH, MASK, OBJECTIVES, Chain, network
from unmask.diffusion.times import Stratified
from unmask.text.row import Rows
from unmask.training import noise
from unmask.training.loop import DROPOUT, TRAIN, VALID
from unmask.training.validation import validate

CHAIN = Chain.make()


def batches():
    """Rows of many lengths, so that a mean of means is not the mean."""
    real = torch.arange(LENGTH) < torch.arange(3, LENGTH + 1, 2)[:, None]
    return [Rows.of(CHAIN.rows(7, 1), real), Rows.of(CHAIN.rows(4, 2), torch.ones(4, LENGTH, dtype=torch.bool))]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_score_is_nats_over_tokens_with_its_error_over_rows(name):
    asked = OBJECTIVES[name]
    denoiser = network(replace(asked, model=replace(asked.model, dropout=0.3)))
    for parameter in denoiser.parameters():  # a new network says nothing: its head is zero
        torch.nn.init.normal_(parameter, std=0.2)
    trained = asked.objective if name == "ar" else replace(asked.objective, times=Stratified(low=0.01))
    score = validate(denoiser.train(), batches(), trained, mask=MASK, seed=5)
    nats, tokens = [], []
    for number, rows in enumerate(batches()):
        drawn = noise.draw(*rows.tokens.shape, seed=5, step=number, use=VALID)
        with torch.no_grad():
            found, _ = denoiser.eval()(
                rows.tokens,
                drawn,
                mask=MASK,
                objective=trained.precise(),
                frozen=~rows.real,
                lengths=rows.real.sum(1),
            )
        nats.append(found.bound.double().sum(1))
        tokens.append(rows.real.sum(1).double() - int(name == "ar"))
    n, c = torch.cat(nats), torch.cat(tokens)
    mean = n.sum() / c.sum()
    assert score.bound == pytest.approx(float(mean), rel=1e-5)
    assert score.error == pytest.approx(float((n - mean * c).square().sum().sqrt() / c.sum()), rel=1e-4)


def learned_padding() -> Rows:
    """Rows as the packing `rows` makes them: the first token is given, padding is learned and not counted."""
    place, ends = torch.arange(LENGTH), torch.arange(3, LENGTH + 1, 2)[:, None]
    free = (place > 0).expand(len(ends), LENGTH)
    return Rows.of(CHAIN.rows(len(ends), 3), free & (place < ends), free)


@pytest.mark.parametrize("name", ["mdlm", "ar"])
def test_the_nats_of_learned_padding_count_and_its_tokens_do_not(name):
    asked, rows = OBJECTIVES[name], learned_padding()
    denoiser = network(asked)
    for parameter in denoiser.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    score = validate(denoiser, [rows], asked.objective, mask=MASK, seed=5)
    drawn = noise.draw(*rows.tokens.shape, seed=5, step=0, use=VALID)
    with torch.no_grad():  # every position is seen, and all but the first are predicted
        found, _ = denoiser(rows.tokens, drawn, mask=MASK, objective=asked.objective.precise(), frozen=rows.frozen)
    assert score.bound == pytest.approx(float(found.bound.sum() / rows.real.sum()), rel=1e-5)
    assert rows.lengths is None  # the network is not told where a row ends


def test_training_dropout_and_validation_do_not_share_random_numbers():
    drawn = [noise.draw(4, LENGTH, seed=1, step=0, use=use) for use in (TRAIN, DROPOUT, VALID)]
    assert len({one.t[0].item() for one in drawn}) == len({one.u[0, 0].item() for one in drawn}) == 3
