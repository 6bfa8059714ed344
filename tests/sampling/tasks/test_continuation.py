"""Samples as a person asks for them: text, trace, law, and the mistakes that can be made."""

from dataclasses import replace

import pytest
import torch

import tiny
import unmask
from unmask.errors import UserError
from unmask.sampling.control import Control
from unmask.sampling.recipe import Recipe
from unmask.sampling.tasks.continuation import Sample, generate
from unmask.sampling.tasks.rows import Moment
from unmask.text.tokens.vocabulary import bpe


def test_a_sample_has_the_length_asked_for_and_no_mask(model):
    for one in unmask.sample(model, n=3, length=9):
        assert len(one.tokens) == 9
        assert model.mask not in one.tokens
        assert one.text == model.tokenizer.decode(one.tokens)


def test_a_path_serves_as_well_as_a_model(model):
    assert unmask.sample(model.folder)[0].tokens == unmask.sample(model)[0].tokens
    assert len(unmask.sample(model)[0].tokens) == tiny.LENGTH


def test_seed_and_row_fix_a_sample_whatever_the_batch(model):
    together = unmask.sample(model, n=5, seed=3)
    apart = unmask.sample(model, n=5, seed=3, batch=2)
    assert [one.tokens for one in together] == [one.tokens for one in apart]
    assert [one.row for one in apart] == [0, 1, 2, 3, 4]
    assert len({tuple(one.tokens) for one in together}) > 1
    assert unmask.sample(model, seed=4)[0].tokens != together[0].tokens


def test_the_trace_says_which_token_came_at_which_call(model):
    one = unmask.sample(model, prompt="abc", length=10)[0]
    assert [event.call for event in one.trace] == list(range(1, 8))
    assert sorted(event.position for event in one.trace) == list(range(3, 10))
    assert all(one.tokens[event.position] == event.token for event in one.trace)
    assert all(event.log_prob < 0 for event in one.trace)
    assert one.calls == 7


def test_the_log_probability_in_a_trace_is_the_models_at_that_moment(model):

    one = unmask.sample(model, length=6, temperature=0.5)[0]
    tokens = torch.full((1, 6), model.mask)
    for event in one.trace:
        told = model.log_probs(tokens)[0, event.position, event.token].item()
        assert event.log_prob == pytest.approx(told, abs=1e-4)
        tokens[0, event.position] = event.token


@pytest.mark.parametrize("objective", ["mdlm", "ar"])
def test_behind_a_prompt_that_ends_in_a_space_stands_a_word_with_its_space(tmp_path, objective):
    words = bpe(["the cat sat on the mat " * 9], 300)
    model = tiny.model(tmp_path / "words", tokenizer=words, objective=objective)
    for one in unmask.sample(model, n=6, prompt="the cat ", length=9):
        at = len(one.tokens) - len(one.trace)
        assert model.tokenizer.decode(one.tokens[:at]) == "the cat"
        assert one.tokens[at] in model.tokenizer.spacers
        assert "begins with it" in one.law
    plain = unmask.sample(model, prompt="the cat ", length=9, control=Control(pattern="[a-z ]*"))[0]
    assert model.tokenizer.decode(plain.tokens[: len(plain.tokens) - len(plain.trace)]) == "the cat "


def test_a_prompt_stays_and_the_text_begins_with_it(model):
    for one in unmask.sample(model, n=4, prompt="bad.", length=11):
        assert one.text.startswith("bad.")
    ids = model.tokenizer.encode("bad.")
    assert unmask.sample(model, prompt=ids)[0].tokens == unmask.sample(model, prompt="bad.")[0].tokens


def test_until_cuts_the_text_before_its_mark_and_the_tokens_after_it(model):
    whole = unmask.sample(model, n=20, seed=1)
    cut = unmask.sample(model, n=20, seed=1, until="a")
    assert any(len(one.tokens) < tiny.LENGTH for one in cut)
    for long, short in zip(whole, cut, strict=True):
        assert "a" not in short.text
        assert short.text == long.text.split("a")[0]
        assert short.tokens == long.tokens[: len(short.tokens)]
        assert all(event.position < len(short.tokens) for event in short.trace)


def test_until_does_not_look_at_the_prompt(model):
    for one in unmask.sample(model, n=4, prompt="cab", until="a"):
        assert one.text.startswith("cab")


def test_until_a_special_token_cuts_at_its_id(model):
    end = model.tokenizer.eos
    for one in unmask.sample(model, n=30, until="<|endoftext|>"):
        assert end not in one.tokens[:-1]
        assert len(one.tokens) == tiny.LENGTH or one.tokens[-1] == end


def test_a_text_read_from_left_to_right_stops_once_every_row_has_ended(tmp_path):
    reader = tiny.model(tmp_path / "ar", objective="ar")
    whole, cut = (
        unmask.sample(reader, n=2, length=60, window=12),
        unmask.sample(reader, n=2, length=60, window=12, until="f"),
    )
    assert all("f" in one.text for one in whole)
    assert [one.text for one in cut] == [one.text.split("f")[0] for one in whole]
    assert max(one.calls for one in cut) == max(len(one.tokens) for one in cut) - 1 < 59


@pytest.mark.slow
@pytest.mark.parametrize(("sampler", "eta"), [("remask-forward-backward", 1.0), ("remask-rescale", 0.9)])
def test_a_text_whose_tokens_may_still_change_is_not_ended_early(model, sampler, eta):
    how = {"n": 8, "seed": 1, "steps": 40, "sampler": f"{sampler}:eta={eta}"}
    together = unmask.sample(model, until="a", **how)
    alone = unmask.sample(model, until="a", batch=1, **how)
    assert [one.text for one in alone] == [one.text for one in together]
    for one, whole in zip(alone, unmask.sample(model, **how), strict=True):
        assert one.text == whole.text.partition("a")[0]


def test_windows_let_a_text_be_longer_than_what_the_model_saw(model):
    one = unmask.sample(model, length=40, window=12, stride=6)[0]
    assert len(one.tokens) == 40
    assert model.mask not in one.tokens
    assert one.law == "exact, within windows of 12 tokens, 6 new in each"


def test_a_text_longer_than_the_model_was_trained_on_is_warned_of_with_the_way_out(model):
    with pytest.warns(UserWarning, match="--window 12 --stride 6"):
        unmask.sample(model, length=20)
    with pytest.warns(UserWarning, match="trained on 12 tokens and is shown 16"):
        unmask.sample(model, length=20, window=16)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["mdlm", "d3pm", "sedd", "ar"])
def test_every_kind_of_model_has_a_sampler_of_its_own(tmp_path, objective):
    own = {
        "mdlm": ("first-hitting", "exact"),
        "d3pm": ("d3pm", "grid-1000"),
        "sedd": ("analytic", "grid-1000"),
        "ar": ("autoregressive", "exact for an autoregressive model"),
    }
    one = unmask.sample(tiny.model(tmp_path / "m", objective=objective), length=5)[0]
    assert (one.sampler, one.law) == own[objective]
    assert len(one.tokens) == 5


def test_the_law_says_what_was_changed(model):
    one = unmask.sample(model, sampler="ancestral", steps=4, temperature=0.8, top_k=3, top_p=0.9)[0]
    assert one.law == "grid-4, with temperature 0.8, top-p 0.9, top-k 3"


def test_a_sedd_model_drawn_by_another_sampler_is_not_called_exact(tmp_path):
    one = unmask.sample(tiny.model(tmp_path / "m", objective="sedd"), sampler="first-hitting", length=4)[0]
    assert one.law == "approximate (a sedd model drawn as if it were mdlm)"


def test_an_autoregressive_sample_is_what_reading_it_token_by_token_gives(tmp_path):
    reader = tiny.model(tmp_path / "ar", objective="ar")
    one = unmask.sample(reader, prompt="ab", length=10, temperature=0)[0]
    assert one.tokens[0] == reader.tokenizer.bos
    assert one.text.startswith("ab")

    for i in range(3, 10):  # the log-probabilities at i - 1 are those of token i
        given = torch.tensor([one.tokens[:i]])
        assert int(reader.log_probs(given)[0, -1].argmax()) == one.tokens[i]


def test_ids_without_a_token_are_never_drawn(tmp_path):
    roomy = tiny.model(tmp_path / "roomy", spare=200)
    for one in unmask.sample(roomy, n=20):
        assert max(one.tokens) < roomy.tokenizer.size


def test_generate_yields_a_moment_a_call_and_then_the_samples(model):
    events = list(generate(model, Recipe(batch=2), n=3, length=5))
    assert [type(event) for event in events] == [Moment] * 5 + [Sample] * 2 + [Moment] * 5 + [Sample]
    assert [event.first for event in events if isinstance(event, Moment)] == [0] * 5 + [2] * 5
    assert events[-2].step.canvas.tokens[0].tolist() == events[-1].tokens


@pytest.mark.parametrize(
    "options, told",
    [
        ({"n": 0}, "between 1 and 10,000,000; saw 0"),
        ({"length": 0}, "1 to 1,000,000 tokens; saw 0"),
        ({"length": 10**12}, "1 to 1,000,000 tokens"),
        ({"prompt": "a" * 12}, "the prompt has 12 tokens and the canvas 12"),
        ({"prompt": "aXb"}, "no token for 'X'"),
        ({"prompt": [99]}, "saw 99"),
        ({"steps": 0}, "at least 1; saw 0"),
        ({"sampler": "ancestrl"}, "Did you mean 'ancestral'"),
        ({"sampler": "autoregressive"}, "not for this model: it needs next token, and the objective mdlm gives"),
        ({"sampler": "analytic"}, "it needs scores"),
        ({"steps": 8}, "has no number of steps"),
        ({"until": ""}, "end mark is empty"),
        ({"temperature": -1}, "temperature must be 0"),
        ({"top_p": 0}, "top-p must lie in"),
        ({"batch": 0}, "at least one sample"),
        ({"stride": 4}, "give the window too"),
        ({"window": 1}, "at least two tokens; saw 1"),
        ({"window": 8, "stride": 9}, "the stride must lie in 1..8"),
    ],
)
def test_a_mistake_is_told_in_words(model, options, told):
    with pytest.raises(UserError, match=told):
        unmask.sample(model, **options)


def test_a_model_without_a_tokenizer_is_told_what_is_missing(tmp_path):
    mute = tiny.model(tmp_path / "mute", tokenizer=False)
    with pytest.raises(UserError, match=r"no tokenizer.*tokenizer\.json"):
        unmask.sample(mute)


def test_a_diffusion_sampler_is_not_for_an_autoregressive_model(tmp_path):
    reader = tiny.model(tmp_path / "ar", objective="ar")
    with pytest.raises(UserError, match="Known for it: autoregressive"):
        unmask.sample(reader, sampler="first-hitting")
    with pytest.raises(UserError, match="one forward pass per token"):
        unmask.sample(reader, steps=8)


def test_a_model_of_a_stream_of_documents_writes_one_from_beginning_to_end(model):
    streamed = replace(model, settings={"text": {"pack": "stream"}})
    eos = model.tokenizer.eos
    mark = model.tokenizer.pieces[eos]
    by_hand = unmask.sample(model, n=40, prompt=[eos], until=mark, seed=5)
    whole = unmask.sample(streamed, n=40, seed=5)
    assert [one.tokens for one in whole] == [one.tokens for one in by_hand]
    assert {one.tokens[0] for one in whole} == {eos}
    ended = [one for one in whole if len(one.tokens) < tiny.LENGTH]
    assert ended, "no text of 40 came to its end"
    assert all(one.tokens[-1] == eos and eos not in one.tokens[1:-1] for one in ended)
    assert unmask.sample(streamed, document=False, seed=5)[0].tokens == unmask.sample(model, seed=5)[0].tokens
    assert unmask.sample(streamed, prompt="bad", seed=5)[0].text.startswith("bad")
