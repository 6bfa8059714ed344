"""Blanks filled in several ways, best first."""

import math
import re

import pytest
import torch

import tiny
import unmask
from quick import first_few
from unmask.diffusion.mdlm import MDLM
from unmask.errors import UserError
from unmask.sampling.control import Control
from unmask.sampling.fitting import samplers_for
from unmask.sampling.tasks.lengths import rounds
from unmask.text.tokens.vocabulary import bpe


def test_what_the_template_gives_never_changes(model):
    for one in unmask.infill(model, "bad[3] [2]fee", n=5):
        assert one.text == f"bad{one.blanks[0]} {one.blanks[1]}fee"
        assert one.lengths == (3, 2)
        assert sorted(event.position for event in one.trace) == [3, 4, 5, 7, 8]
        assert one.calls == 5


def test_candidates_are_ranked_and_no_two_are_equal(model):
    found = unmask.infill(model, "ba[1]", n=20)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert len({tuple(one.tokens) for one in found}) == len(found) > 1


def test_the_log_likelihood_of_one_token_is_its_log_probability(model):
    x_t = torch.tensor([[*model.tokenizer.encode("ba"), model.mask]])
    log_p = model.log_probs(x_t)[0, 2]
    for one in unmask.infill(model, "ba[1]", n=20):
        assert one.log_likelihood == pytest.approx(log_p[one.tokens[2]].item(), abs=1e-4)


def test_candidates_depend_on_the_seed_and_not_on_the_batch(model):
    whole, apart = (unmask.infill(model, "b[4]d", n=6, seed=5, batch=batch) for batch in (32, 2))
    assert [one.tokens for one in whole] == [one.tokens for one in apart]
    assert whole[0].tokens != unmask.infill(model, "b[4]d", n=6, seed=6)[0].tokens


def test_a_free_length_is_chosen_among_those_allowed(model):
    found = unmask.infill(model, "b___d", n=60, shortest=2, longest=4)
    assert {one.lengths[0] for one in found} == {2, 3, 4}
    assert all(len(one.tokens) == 2 + one.lengths[0] for one in found)


def test_the_score_is_the_log_probability_of_the_lengths_and_the_distance_from_the_best_of_them(model):
    found = unmask.infill(model, "ba[1-3]d", n=12)
    assert found == sorted(found, key=lambda one: -one.score)
    assert len({one.lengths for one in found}) > 1
    for one in found:
        best = max(other.log_likelihood for other in found if other.lengths == one.lengths)
        assert one.score == pytest.approx(math.log(one.length_probability) + one.log_likelihood - best)


def test_how_well_the_given_text_fits_is_a_probability(model):
    letters = [id for id in range(model.spec.vocab) if id != model.mask]
    starts, blank = [torch.tensor([model.mask, last]) for last in letters], torch.tensor([True, False])
    fits = [rounds(model, start, blank, 0, 2, size=1, seed=0).mean() for start in starts]
    assert sum(map(math.exp, fits)) == pytest.approx(1, abs=1e-3)


def test_a_template_that_is_all_blank_is_a_sample(model):
    one = unmask.infill(model, "[5]")[0]
    assert one.text == unmask.sample(model, length=5)[0].text == one.blanks[0]


def test_equal_candidates_are_given_once_as_the_first_of_them_and_it_is_told(model):
    (one,) = unmask.infill(model, "ba[1]d", n=8, temperature=0)
    assert one.row == 0
    assert "gave only 1 different texts, not 8" in one.note


def test_more_is_drawn_until_there_are_as_many_different_texts_as_asked_for(model):
    found = unmask.infill(model, "ba[1]d", n=5, temperature=1.5)
    assert len({one.text for one in found}) == len(found) == 5
    assert max(one.row for one in found) >= 5, "no draw was a repetition: the test shows nothing"
    assert not found[0].note


def test_a_choice_of_lengths_that_has_no_more_texts_leaves_its_turns_to_the_others(model):
    found = unmask.infill(model, "ba___d", n=4, longest=4, temperature=0)
    assert sorted(one.lengths for one in found) == [(1,), (2,), (3,), (4,)]


def test_a_text_longer_than_the_model_was_trained_on_is_warned_of(model):
    with pytest.warns(UserWarning, match="has 14 tokens with its blanks and the model was trained on 12"):
        unmask.infill(model, "bad dad [6]", n=1)


@pytest.mark.parametrize(
    "template, options, told",
    [
        ("no blank", {}, "has no blank"),
        ("X [2]", {}, "no token for 'X'"),
        ("a[2]", {"n": 0}, "between 1 and 10,000,000; saw 0"),
        ("a[2]", {"tries": 0}, "at least one choice of lengths"),
        ("a[2]", {"passes": 1}, "at least 2 forward passes"),
        ("a___", {"shortest": 3, "longest": 2}, "a range from low to high; saw 3-2"),
        ("a[999999999]", {}, "1 to 1,000,000 tokens"),
        ("a[2]", {"sampler": "margn"}, "Did you mean 'margin'"),
        ("a[2]", {"steps": 0}, "at least 1; saw 0"),
    ],
)
def test_a_mistake_is_told_in_words(model, template, options, told):
    with pytest.raises(UserError, match=told):
        unmask.infill(model, template, **options)


def test_an_autoregressive_model_cannot_fill_blanks(tmp_path):
    with pytest.raises(UserError, match="sees both sides"):
        unmask.infill(tiny.model(tmp_path / "ar", objective="ar"), "a[2]b")


@pytest.fixture(scope="module")
def worded(tmp_path_factory):
    """A model whose words begin with their space."""
    return tiny.model(
        tmp_path_factory.mktemp("models") / "words", tokenizer=bpe(["the cat sat on the mat " * 9], 300)
    )


def given_of(tokens, parts, lengths):
    """The tokens that are not in the blanks of these lengths between the parts."""
    at, found = 0, []
    for part, length in zip(parts, [*lengths, 0], strict=True):
        found.append(tokens[at : at + len(part)])
        at += len(part) + length
    return found


@pytest.mark.parametrize("sampler", first_few(samplers_for(MDLM())))
def test_a_blank_behind_a_space_begins_with_it_and_the_text_stays_as_given(worded, sampler):
    steps = 5 if sampler.startswith(("remask", "gibbs")) or sampler in ("groups", "every-step", "rdm") else None
    for one in unmask.infill(worded, "the [2] sat[1] on [1-2].", n=6, sampler=sampler, steps=steps):
        a, b, c = one.blanks
        if "\ufffd" not in one.text:  # bytes that are no character have no text of their own
            assert one.text == f"the {a} sat{b} on {c}."
        parts = [worded.tokenizer.encode(part) for part in ("the", " sat", " on", ".")]
        assert given_of(one.tokens, parts, one.lengths) == parts
        for at in (len(parts[0]), len(one.tokens) - 1 - one.lengths[2]):
            assert one.tokens[at] in worded.tokenizer.spacers
        assert one.law.endswith("a blank after a space begins with it")


def test_a_pattern_is_for_what_stands_behind_the_space(worded):
    for one in unmask.infill(worded, "the [3] sat", n=6, control=Control(pattern="[a-z]+")):
        assert one.text == f"the {one.blanks[0]} sat"
        assert re.fullmatch("[a-z]+", one.blanks[0])
        assert "after a space" not in one.law
