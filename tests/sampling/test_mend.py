"""Mending: the law by enumeration, the calls by count, and rows that do not depend on their neighbours."""

import pytest
import torch

import exact
from sampling.laws import last
from unmask.errors import UserError
from unmask.sampling.loop import fill
from unmask.sampling.mend import Mend
from unmask.text.canvas import blank, of_tokens

ENOUGH = 1e-4
ROWS = 40_000


def mended_law(world, policy):
    """Every path: the position of lowest entropy is drawn; when all stand, those least likely when written go."""
    law = {}

    def go_on(state, written, begun, chance):
        hidden = [i for i, token in enumerate(state) if token == world.mask]
        if not hidden and begun == policy.rounds:
            law[state] = law.get(state, 0.0) + chance
        elif not hidden:
            least = sorted(range(len(state)), key=lambda i: written[i])[: round(policy.eta * len(state))]
            go_on(tuple(world.mask if i in least else v for i, v in enumerate(state)), written, begun + 1, chance)
        else:
            log_p = {i: exact.log_p_hidden(world, torch.tensor(state), i) for i in hidden}
            place = min(hidden, key=lambda i: -float((log_p[i].exp() * log_p[i]).sum()))
            for token, nats in enumerate(log_p[place].tolist()):
                after = (*state[:place], token, *state[place + 1 :])
                new = (*written[:place], nats, *written[place + 1 :])
                go_on(after, new, begun, chance * float(log_p[place][token].exp()))

    go_on((world.mask,) * world.length, (0.0,) * world.length, 0, 1.0)
    return law


@pytest.mark.parametrize(("rounds", "eta"), [(1, 0.3), (2, 0.4), (1, 0.7)])
def test_what_is_mended_follows_the_enumerated_law(rounds, eta):
    policy = Mend(rounds=rounds, eta=eta)
    world = exact.TableWorld.random(4)
    draws = last(fill(world.network, blank(ROWS, world.length, mask=world.mask), policy)).canvas.tokens
    assert exact.chi_square_p(mended_law(world, policy), draws) > ENOUGH
    unmended = mended_law(world, Mend(rounds=1, eta=0))
    assert exact.chi_square_p(unmended, draws) < 1e-6


def test_a_round_takes_a_call_for_each_token_it_writes_anew_and_given_tokens_stay():
    start = torch.tensor([[0, *[3] * 10, 1, *[3] * 10, 2]]).repeat(6, 1)
    given = start[0] != 3
    world = exact.ChainWorld.random(0, length=23)
    steps = list(fill(world.network, of_tokens(start, mask=3), Mend(rounds=3, eta=0.2)))
    assert len(steps) == 20 + 3 * 4
    assert all(torch.equal(step.canvas.tokens[:, given], start[:, given]) for step in steps)
    assert bool((steps[-1].canvas.tokens != 3).all())


def test_a_row_does_not_depend_on_its_neighbours():
    world, policy = exact.ChainWorld.random(0, length=12), Mend(rounds=3, eta=0.25)
    start = blank(8, 12, mask=3).tokens
    start[5, :4] = 0  # a row that is done before the others
    many = last(fill(world.network, of_tokens(start, mask=3), policy)).canvas.tokens
    for i in range(8):
        one = of_tokens(start[i : i + 1], mask=3)
        assert torch.equal(last(fill(world.network, one, policy, ids=torch.tensor([i]))).canvas.tokens[0], many[i])


def test_a_blank_too_short_to_be_mended_takes_a_call_a_token():
    world = exact.ChainWorld.random(0, length=4)
    assert len(list(fill(world.network, blank(2, 4, mask=3), Mend(eta=0.12)))) == 4


@pytest.mark.parametrize("wrong", [{"eta": 1.5}, {"eta": float("nan")}, {"rounds": 0}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(UserError, match="saw"):
        Mend(**wrong)
