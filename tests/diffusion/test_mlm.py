"""The masked-language-model loss equals its enumeration and the recorded draws, and never passes for a likelihood."""

import json
from itertools import product
from pathlib import Path

import pytest
import torch

from exact import DOUBLE, TableWorld
from unmask.diffusion.bound import exact_bound
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.mlm import MLM, Ids, replace_chosen
from unmask.errors import UserError
from unmask.evaluation.likelihood.estimators import estimator
from unmask.random import Noise

CASES = json.loads((Path(__file__).parent.parent / "golden/dna/dna_data_cases.json").read_text())


def noise_of(u: torch.Tensor) -> Noise:
    return Noise(torch.zeros(len(u), dtype=DOUBLE), u, torch.arange(len(u)))


def test_the_loss_is_the_mean_over_every_choice_of_tokens():
    """With rate 1/2 and masks only, all sets of chosen tokens are equally likely: here are all of them."""
    world, x0 = TableWorld.random(), torch.tensor([[0, 2, 1]])
    u = torch.tensor(list(product([0.25, 0.75], repeat=3)), dtype=DOUBLE)
    found = MLM(0.5, masked=1.0, random=0.0).nats(
        world.network, CleanRows(x0.expand(8, -1), noise=noise_of(u), mask=3)
    )
    wanted = torch.zeros(8, 3, dtype=DOUBLE)
    for number, chosen in enumerate(u < 0.5):
        for i in chosen.nonzero().flatten().tolist():
            logits = world.network(torch.where(chosen, 3, x0), torch.zeros(1), torch.tensor([i]))[0]
            wanted[number, i] = -logits[:3].log_softmax(0)[x0[0, i]] / 0.5
    torch.testing.assert_close(found.loss, wanted)
    assert torch.equal(found.loss, found.bound)


def test_chosen_tokens_become_masks_or_random_tokens_or_stay_in_the_shares_that_are_set():
    seen = []

    def network(x, sigma, rows):
        seen.append((x.clone(), rows.clone()))
        return torch.zeros(len(rows), 10, dtype=DOUBLE)

    x0, u = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[0.124, 0.126, 0.31, 0.51]], dtype=DOUBLE)
    noise, parts = noise_of(u), {"ids": Ids(10)}
    nats = MLM(0.5, masked=0.25, random=0.25).nats(network, CleanRows(x0, noise=noise, mask=9, parts=parts))
    drawn = int(noise.uniform(4)[0, 1] * 10)
    assert seen[0][0].tolist() == [[9, drawn, 3, 4]]
    assert seen[0][1].tolist() == [0, 1, 2]
    torch.testing.assert_close(nats.loss, torch.tensor([[1.0, 1, 1, 0]], dtype=DOUBLE) * torch.tensor(9.0).log() * 2)
    frozen = torch.tensor([[True, False, False, False]])
    again = MLM(0.5, masked=0.25, random=0.25).nats(
        network, CleanRows(x0, noise=noise, mask=9, parts=parts, frozen=frozen)
    )
    assert seen[1][0].tolist() == [[1, drawn, 3, 4]]
    assert (again.loss[0] != 0).tolist() == [False, True, True, False]


def test_the_recorded_draws_of_caduceus_give_its_input():
    case = CASES["mlm"]
    (_, _, chosen), (_, _, masks), (_, _, random), (_, size, drawn) = case["draws"]
    kind = [
        1 - 1e-9 if not c else 0.0 if m else 0.85 if r else 0.95
        for c, m, r in zip(chosen, masks, random, strict=True)
    ]
    ids = torch.tensor([case["after_N_to_pad"][: len(chosen)]])
    found = replace_chosen(ids, torch.tensor([kind]), torch.tensor([drawn]), mask=3, masked=0.8, random=0.1)
    assert found[0].tolist() == case["data"]
    assert size == len(CASES["vocab"])


def test_a_network_trained_with_it_has_the_any_order_bound_of_its_conditionals():
    world, x0 = TableWorld.random(1), torch.tensor([0, 2, 1])
    own, count = estimator(objective="mlm"), estimator("count", objective="mlm")
    assert not own.likelihood
    assert "not a likelihood" in own.means
    assert count.likelihood
    t, u = torch.rand(60_000, dtype=DOUBLE), torch.rand(60_000, 3, dtype=DOUBLE)
    rows, frozen = x0.expand(len(t), -1), torch.zeros(len(t), 3, dtype=torch.bool)
    nats = count.nats(world.network, CleanRows(rows, noise=Noise(t, u), mask=3, frozen=frozen)).sum(1)
    wanted = exact_bound(world.network, x0, mask=3)
    assert abs(float(nats.mean() - wanted)) < 5 * float(nats.std()) / len(t) ** 0.5


@pytest.mark.parametrize("values", [{"rate": 0.0}, {"rate": 1.5}, {"masked": 0.0}, {"masked": 0.8, "random": 0.3}])
def test_shares_that_do_not_add_up_are_refused(values):
    with pytest.raises(UserError, match="share"):
        MLM(**values)
