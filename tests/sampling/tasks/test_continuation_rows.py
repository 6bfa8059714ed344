"""The row that a continuation asks for, as Python, the command line and the server build it."""

from dataclasses import replace

import tiny
from unmask.sampling.tasks.continuation import Continue
from unmask.text.tokens.vocabulary import bpe


def test_a_model_of_documents_begins_behind_an_eos_unless_told_otherwise(model):
    streamed = replace(model, settings={"text": {"pack": "stream"}})
    ids, eos = model.tokenizer.encode("bad"), model.tokenizer.eos
    assert Continue("bad", 9).row(streamed).tokens == [eos, *ids, *[model.mask] * 5]
    assert Continue("bad", 9, document=False).row(streamed).tokens == [*ids, *[model.mask] * 6]
    assert Continue("bad", 9).row(model).tokens == [*ids, *[model.mask] * 6]
    assert Continue("bad", 9, document=True).row(model).start == 4


def test_new_tokens_are_counted_behind_the_prompt_and_before_the_suffix(model):
    row = Continue("bad", new=2, suffix=" face", document=True).row(model)
    ids = [model.tokenizer.eos, *model.tokenizer.encode("bad")]
    assert row.tokens == [*ids, model.mask, model.mask, *model.tokenizer.encode(" face")]
    assert row.start == len(ids)


def test_a_space_at_the_end_of_a_prompt_is_left_to_the_next_word(tmp_path):
    model = tiny.model(tmp_path / "words", tokenizer=bpe(["the cat sat on the mat " * 9], 300))
    ids = model.tokenizer.encode("the cat")
    row = Continue("the cat ", 9).row(model)
    assert row.tokens[: row.start] == ids
    assert row.spaced == [i == len(ids) for i in range(9)]
    assert row.healed
    plain = Continue("the cat ", 9).row(model, constrained=True)
    assert plain.tokens[: plain.start] == model.tokenizer.encode("the cat ")
    assert not plain.heals
