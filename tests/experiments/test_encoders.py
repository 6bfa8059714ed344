"""experiments/encoders.py counts right predictions at hidden tokens alone, and its probe is a logistic regression."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from unmask.diffusion.clean import CleanRows
from unmask.errors import UserError
from unmask.random import Noise

FILE = spec_from_file_location("encoders", Path(__file__).parents[2] / "experiments" / "encoders.py")
encoders = module_from_spec(FILE)
FILE.loader.exec_module(encoders)

MASK, VOCAB = 5, 12


def test_the_share_of_right_predictions_is_that_at_hidden_tokens():
    dice = torch.Generator().manual_seed(0)
    x0 = torch.randint(6, VOCAB, (7, 20), generator=dice)
    frozen = torch.zeros_like(x0, dtype=torch.bool)
    frozen[:, [0, -1]] = True
    frozen[3, 5:] = True  # four free tokens: 15 % of them are one
    asked = []

    def network(x, sigma, rows):
        """Right at even positions; elsewhere the mask is the most likely id, and the wrong id 0 the next."""
        hidden = x == MASK
        assert not (hidden & frozen).any()
        assert torch.equal(rows, hidden.flatten().nonzero().squeeze(1))
        asked.append(hidden)
        logits = F.one_hot(x0.flatten(), VOCAB).float()
        odd = torch.arange(20).expand(7, -1).flatten() % 2 == 1
        logits[odd] = F.one_hot(torch.zeros_like(x0.flatten()[odd]), VOCAB).float()
        logits[odd, MASK] = 2.0
        return logits[rows]

    t, u = torch.rand(7, generator=dice), torch.rand(7, 20, generator=dice).double()
    found = encoders.Hits(0.15).nats(network, CleanRows(x0, noise=Noise(t, u), mask=MASK, frozen=frozen))
    (hidden,) = asked
    free = (~frozen).sum(1)
    assert hidden.sum(1).tolist() == [3, 3, 3, 1, 3, 3, 3]  # of 18 and of 4
    even = torch.arange(20) % 2 == 0
    share = (hidden & even).sum(1) / hidden.sum(1)
    torch.testing.assert_close((found.sum(1) / free).float(), share)
    assert 0 < share.mean() < 1


def test_the_probe_separates_what_a_line_separates():
    dice = torch.Generator().manual_seed(0)
    x = torch.randn(300, 4, generator=dice, dtype=torch.float64)
    y = (x @ torch.tensor([1.0, -2.0, 0.0, 0.5], dtype=torch.float64) > 0.3).long()
    weights = encoders.fitted(x[:200], y[:200], 2)
    guess = (encoders.with_one(x[200:]) @ weights).argmax(1)
    assert (guess == y[200:]).double().mean() > 0.93
    slope = weights[:, 1] - weights[:, 0]
    assert slope[1].item() == pytest.approx(-2 * slope[0].item(), rel=0.25)
    assert slope[4] < 0


def test_a_task_whose_labels_are_scores_is_refused_before_a_model_is_read():
    with pytest.raises(UserError, match=r"the probe is a classifier, and STS-B has scores"):
        encoders.main(encoders.Settings(("nowhere",), "x.txt", probe=("sts-b",)))
