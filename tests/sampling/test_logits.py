"""Temperature, truncation, bans and hooks do what they say, and no more."""

import pytest
import torch

import exact
from sampling.laws import draws
from unmask.errors import UserError
from unmask.sampling.logits import LogitOptions, nucleus
from unmask.sampling.masked import fill
from unmask.sampling.policies.confidence import Ordered
from unmask.sampling.policies.parallel import EntropyBound
from unmask.sampling.policies.planned import FirstHitting
from unmask.text.prompt.canvas import blank

P = torch.tensor([[0.5, 0.3, 0.15, 0.05]])


def kept(options):
    return torch.isfinite(options.sharpen(P.log())[0]).tolist()


def test_top_p_keeps_the_crossing_token_unless_told_otherwise():
    assert kept(LogitOptions(top_p=0.6)) == [True, True, False, False]
    assert kept(LogitOptions(top_p=0.6, keep_crossing=False)) == [True, False, False, False]
    assert kept(LogitOptions(top_p=0.85, keep_crossing=False)) == [True, True, False, False]
    assert (
        kept(LogitOptions(top_p=0.1))
        == kept(LogitOptions(top_p=0.1, keep_crossing=False))
        == [True, False, False, False]
    )
    assert kept(LogitOptions(top_p=1.0)) == [True] * 4


def test_top_p_leaves_the_kept_logits_as_they_were_in_any_order():
    logits = torch.tensor([[0.1, 2.0, -1.0, 1.5, 2.0]])
    out = nucleus(logits, 0.8)
    assert out[0, [0, 2]].tolist() == [-torch.inf, -torch.inf]
    assert torch.equal(out[0, [1, 3, 4]], logits[0, [1, 3, 4]])


def test_top_k_and_temperature():
    assert kept(LogitOptions(top_k=3)) == [True, True, True, False]
    assert kept(LogitOptions(top_k=9)) == [True] * 4
    assert kept(LogitOptions(temperature=0)) == [True, False, False, False]
    assert torch.allclose(LogitOptions(temperature=0.5).sharpen(P.log()).softmax(-1), P**2 / (P**2).sum())


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_shapes_every_conditional_and_not_the_order(temperature):
    world = exact.TableWorld.random(1)
    warmer = exact.TableWorld(world.table / temperature)
    sample = draws(world, FirstHitting(), options=LogitOptions(temperature=temperature))
    assert exact.chi_square_p(exact.law_of_random_order(warmer), sample) > 1e-3


def test_temperature_does_not_change_what_the_model_is_sure_of():
    world = exact.TableWorld.random(1)
    canvas = blank(50, 3, mask=3)
    calm, wild = (
        next(fill(world.network, canvas, Ordered(), options=LogitOptions(temperature=t))).rows.tolist()
        for t in (1.0, 5.0)
    )
    assert calm == wild


def test_banned_tokens_never_appear_and_the_rest_keeps_its_proportions():
    world = exact.TableWorld.random(2)
    table = world.table.clone()
    table[..., 1] = -60.0
    sample = draws(world, FirstHitting(), options=LogitOptions(banned=(1,)))
    assert not bool((sample == 1).any())
    law = {text: p for text, p in exact.law_of_random_order(exact.TableWorld(table)).items() if 1 not in text}
    assert exact.chi_square_p(law, sample) > 1e-3


def test_a_hook_sees_the_question_and_changes_the_answer():
    world = exact.TableWorld.random(0)

    def hook(ask, logits):
        assert ask.tokens.shape == (5, 3)
        assert bool((ask.tokens.flatten()[ask.rows] == 3).all())
        assert torch.equal(ask.position, ask.rows % 3)
        return logits.index_fill(-1, torch.tensor([0, 1]), -torch.inf)

    assert bool((draws(world, FirstHitting(), rows=5, options=LogitOptions(hook=hook)) == 2).all())


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"temperature": -1}, "temperature must be 0"),
        ({"temperature": float("nan")}, "temperature must be 0"),
        ({"temperature": float("inf")}, "temperature must be 0"),
        ({"temperature": 1e-300}, "temperature must be 0"),
        ({"top_k": 0}, "at least one token"),
        ({"top_p": 0}, "top-p must lie"),
        ({"top_p": 1.5}, "top-p must lie"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        LogitOptions(**settings)


@pytest.mark.parametrize("settings", [{"banned": (99,)}, {"banned": (-1,)}])
def test_ids_outside_the_vocabulary_are_refused(settings):
    world = exact.TableWorld.random()
    with pytest.raises(UserError, match=r"must lie in 0\.\.3"):
        draws(world, FirstHitting(), rows=2, options=LogitOptions(**settings))


def test_banning_everything_is_an_error_that_says_so():
    for policy in (FirstHitting(), Ordered("confidence"), Ordered("margin"), Ordered("entropy"), EntropyBound()):
        with pytest.raises(UserError, match="all are banned"):
            draws(exact.TableWorld.random(), policy, rows=2, options=LogitOptions(banned=(0, 1, 2)))
