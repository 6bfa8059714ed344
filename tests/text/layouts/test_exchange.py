"""exchange: what is given is never hidden, the answer and its end are learned, the room after it is drawn."""

import json

import numpy as np
import pytest

from unmask.errors import UserError
from unmask.text.corpus.batches import Batches, in_order
from unmask.text.corpus.corpus import Corpus
from unmask.text.corpus.documents import FileLayout as Files
from unmask.text.corpus.packed import pack_corpus
from unmask.text.corpus.prepare import prepare
from unmask.text.corpus.shards import Division
from unmask.text.corpus.sources import gather
from unmask.text.layout import Marks, cut, layout_of
from unmask.text.row import Role
from unmask.text.stretch import Document
from unmask.text.tokens.vocabulary import character

TOKENIZER = character(["abcdefgh"])
LETTER = {Role.GIVEN: "g", Role.MARK: "m", Role.FREE: "f", Role.END: "e", Role.PAD: "."}


def corpus_of(folder, pairs):
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps({"q": q, "a": a}) + "\n" for q, a in pairs))
    layout = Files(given="q", answer="a")
    with gather(str(path), layout) as sources:
        list(prepare(sources, TOKENIZER, folder / "data", layout=layout, division=Division(0), workers=1))
    return Corpus.open(folder / "data")


def letters(roles):
    return "".join(LETTER[Role(role)] for role in roles.tolist())


def layout(word="exchange", **marks):
    return layout_of(word, Marks.of(TOKENIZER, **marks))


def test_rows_of_training_token_by_token(tmp_path):
    rows = pack_corpus(corpus_of(tmp_path, [("ab", "cde"), ("", "ab"), ("abcdefgh", "c")]), 12, "exchange").rows(
        [0, 1, 2]
    )
    assert [letters(roles) for roles in rows.roles] == ["mggmffffeeee", "mfffeeeeeeee", "mggggggggmff"]
    bos, eos = TOKENIZER.bos, TOKENIZER.eos
    assert rows.tokens[0].tolist() == [bos, *TOKENIZER.encode("ab"), eos, *TOKENIZER.encode("cde"), *[eos] * 5]
    frozen = rows.frozen
    assert frozen is not None
    assert frozen.equal((rows.roles == Role.GIVEN) | (rows.roles == Role.MARK))
    assert rows.real.sum(1).tolist() == [4, 3, 2]  # the answer and one end


def test_the_room_of_an_answer_is_drawn_between_its_own_size_and_the_rest_of_the_row(tmp_path):
    batches = Batches(pack_corpus(corpus_of(tmp_path, [("ab", "cde")]), 40, "exchange"), 8, seed=3)
    rooms = []
    for step in range(60):
        rows = batches.at(step)
        for roles in rows.roles:
            drawn = letters(roles).rstrip(".")
            assert drawn.startswith("mggmffff")
            assert set(drawn[8:]) <= {"e"}
            rooms.append(len(drawn) - 4)
    assert min(rooms) == 4
    assert max(rooms) == 36
    share = np.mean(np.array(rooms) <= 12)  # half of them: 4 · (36 / 4)^(1/2) is 12
    assert 0.42 < share < 0.58
    again = batches.at(7)
    assert again.roles.equal(batches.at(7).roles)
    halves = [batches.at(7, rank=rank, world=2).roles for rank in (0, 1)]
    assert again.roles[:4].equal(halves[0])
    assert again.roles[4:].equal(halves[1])
    (whole,) = in_order(batches.packed, 4)
    assert letters(whole.roles[0]) == "mggmffff" + "e" * 32


def test_evaluation_has_the_row_of_training_and_scores_the_answer(tmp_path):
    corpus = corpus_of(tmp_path, [("ab", "cde")])
    document = Document.of("cde", corpus.document(0), 3)
    (row,), left_out = cut([document], layout(), length=12)
    trained = pack_corpus(corpus, 12, "exchange").rows([0])
    assert row.tokens.tolist() == trained.tokens[0].tolist()
    assert row.roles.tolist() == trained.roles[0].tolist()
    assert (row.scored, row.bytes, left_out) == (4, 3, 2 + 1)
    (causal,), _ = cut([document], layout(leads=True), length=12)
    assert letters(causal.roles) == "mggmffff"


def test_a_prompt_and_a_template_stand_as_in_training():
    made = layout()
    given = made.asked(TOKENIZER.encode("ab"))
    assert made.asked(given) == given
    row = made.prompt(given, 4, [], mask=TOKENIZER.mask, document=True)
    assert letters(row.roles) == "mggmffff"
    template = [*given, TOKENIZER.encode("c")[0], TOKENIZER.mask]
    assert letters(made.filled(template, mask=TOKENIZER.mask, length=40).roles) == "mggmgfm"


def test_long_prompts_lose_their_beginning(tmp_path):
    whole = pack_corpus(corpus_of(tmp_path, [("abcdefgh" * 3, "cde"), ("a", "b")]), 12, "exchange")
    rows = whole.rows([0, 1])
    assert letters(rows.roles[0]) == "mggggggmffff"
    assert rows.tokens[0, 1:7].tolist() == TOKENIZER.encode("cdefgh")
    assert "1 of 2 pairs" in whole.spans.left_out
    assert "cut" in whole.spans.left_out
    row = layout().exchange(
        TOKENIZER.encode("abcdefgh" * 3), Document.of("cde", TOKENIZER.encode_batch(["cde"])[0]), length=12
    )
    assert row.tokens.tolist() == rows.tokens[0].tolist()


def test_pairs_that_do_not_fit_are_dropped_or_refused_by_rule(tmp_path):
    corpus = corpus_of(tmp_path, [("abcdefgh" * 3, "cde"), ("a", "b"), ("a", "abcdefghab")])
    dropped = pack_corpus(corpus, 12, "exchange:long=drop")
    assert len(dropped) == 1
    assert letters(dropped.rows([0]).roles[0]) == "mgmff" + "e" * 7
    assert "2 of 3 pairs" in dropped.spans.left_out
    with pytest.raises(UserError, match="--length 30 or more"):
        pack_corpus(corpus, 12, "exchange:long=refuse")
    with pytest.raises(UserError, match=r"pair 3 .* has 10 tokens, and rows of 12 have room for 9: give --length 13"):
        pack_corpus(corpus, 12, "exchange")
    assert len(pack_corpus(corpus, 13, "exchange")) == 3
    with pytest.raises(UserError, match="never"):
        pack_corpus(corpus, 12, "exchange:long=never")


def test_texts_that_look_like_marks_are_letters(tmp_path):
    """The text of a special token in a prompt or an answer is text: no turn ends there."""
    names = [TOKENIZER.pieces[id] for id in (TOKENIZER.eos, TOKENIZER.mask)]
    tokenizer = character(["".join(names)])
    for name in names:
        ids = tokenizer.encode(name)
        assert len(ids) == len(name)
        assert not {*ids} & {*tokenizer.specials}
