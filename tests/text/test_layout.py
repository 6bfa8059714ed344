"""Rows out of documents: every token scored once, bytes that add up, the reference's blocks."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.errors import UserError
from unmask.text.layout import Marks, cut, layout_of
from unmask.text.layouts.stream import StreamLayout
from unmask.text.row import Role
from unmask.text.stretch import Document, tokens_fingerprint, windows

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "detokenizers.json").read_text())
EOS = 99
MARKS = Marks(98, EOS)


def documents(*sizes: int) -> list[Document]:
    """Documents of consecutive ids, three bytes a token."""
    starts = np.cumsum([0, *sizes])
    return [Document(np.arange(a, a + n), 3 * n) for a, n in zip(starts, sizes, strict=False)]


@given(total=st.integers(0, 60), length=st.integers(2, 12), overlap=st.integers(0, 11), given=st.integers(0, 1))
def test_windows_score_every_token_that_is_not_given_exactly_once(total, length, overlap, given):
    stride = max(1, length - overlap)
    scored = [
        i
        for start, skip, stop in windows(total, length=length, stride=stride, given=given)
        for i in range(start + skip, stop)
    ]
    assert scored == list(range(given, total))
    assert all(stop - start <= length for start, _, stop in windows(total, length=length, stride=stride, given=given))


@pytest.mark.parametrize("case", GOLDEN["wrapped"], ids=lambda case: f"length {case['block_size']}")
def test_wrapped_rows_are_those_of_the_reference(case):
    bos, eos = case["bos"], case["eos"]
    docs = [Document(np.array(doc[:-1]), 1) for doc in case["docs"]]  # the recorded ones end in eos
    how, length = layout_of("wrap", Marks(bos, eos)), case["block_size"]
    if not case["out"]:
        with pytest.raises(UserError, match="not one row"):
            cut(docs, how, length=length)
        return
    rows, dropped = cut(docs, how, length=length)
    assert [row.tokens.tolist() for row in rows] == case["out"]
    assert dropped == sum(map(len, case["docs"])) - sum(len(row) - 2 for row in case["out"])


def test_what_is_left_of_every_thousand_documents_is_dropped_when_wrapping():
    rows, dropped = cut(documents(*[3] * 2500), layout_of("wrap", MARKS), length=302)
    assert [len(row.tokens) for row in rows] == [302] * (13 + 13 + 6)  # 4000, 4000 and 2000 tokens, each cut apart
    assert dropped == 2500 * 4 - 32 * 300


def test_padded_rows_are_those_of_training_and_count_documents_and_their_ends():
    """Documents of 2, 5 and 0 tokens in rows of 5: the second goes on in another row."""
    rows, dropped = cut(documents(2, 5, 0), layout_of("rows", MARKS), length=5)
    assert [row.tokens.tolist() for row in rows] == [[98, 0, 1, EOS, EOS], [98, 2, 3, 4, 5], [98, 6, EOS, EOS, EOS]]
    mark, free, end = Role.MARK, Role.FREE, Role.END
    assert [(row.roles.tolist(), row.document) for row in rows] == [
        ([mark, free, free, free, end], 0),
        ([mark, free, free, free, free], 1),
        ([mark, free, free, end, end], 1),
    ]
    assert [row.bytes for row in rows] == [6, 12, 3]
    assert dropped == 0
    with pytest.raises(UserError, match="have no stride"):
        cut(documents(2), layout_of("rows", MARKS), length=5, stride=2)


@pytest.mark.parametrize("way", ["stream", "rows"])
@pytest.mark.parametrize("causal", [False, True])
def test_stream_and_rows_drop_nothing_and_their_bytes_add_up(way, causal):
    docs = documents(5, 0, 11, 2)
    rows, dropped = cut(docs, StreamLayout(separated=way == "rows", marks=Marks(eos=EOS, leads=causal)), length=4)
    assert dropped == 0
    scored = np.concatenate([row.tokens[~row.frozen] for row in rows]).tolist()
    assert scored == [*range(5), EOS, *range(5, 16), EOS, 16, 17, EOS]
    assert sum(row.bytes for row in rows) == pytest.approx(3 * 18)
    if causal:
        assert all(row.frozen[0] for row in rows)
        assert rows[0].tokens[0] == EOS  # something to look at before the first token


def test_rows_belong_to_their_documents():
    rows, _ = cut(documents(5, 0, 3, 9), StreamLayout(separated=True), length=4)
    assert [row.document for row in rows] == [0, 0, 2, 3, 3, 3]
    stream, _ = cut(documents(5, 3, 9), StreamLayout(), length=4)
    assert [row.document for row in stream] == [0, 0, 2, 2, 2]


def test_a_stride_turns_the_overlap_into_context():
    rows, _ = cut(documents(10), StreamLayout(), length=6, stride=3)
    assert [(row.tokens.tolist(), int(row.frozen.sum())) for row in rows] == [
        ([0, 1, 2, 3, 4, 5], 0),
        ([3, 4, 5, 6, 7, 8], 3),
        ([6, 7, 8, 9], 3),
    ]


def test_a_causal_network_without_a_first_mark_leaves_one_token_unscored():
    rows, dropped = cut(documents(10), StreamLayout(marks=Marks(leads=True)), length=6)
    assert sum(row.scored for row in rows) == 9
    assert dropped == 1


def test_the_fingerprint_tells_texts_and_their_borders_apart():
    assert tokens_fingerprint(documents(2, 3)) == tokens_fingerprint(documents(2, 3))
    assert tokens_fingerprint(documents(2, 3)) != tokens_fingerprint(documents(3, 2))


def test_nonsense_is_refused():
    with pytest.raises(UserError, match="Did you mean 'stream'"):
        layout_of("steam", MARKS)
    with pytest.raises(UserError, match="no token is skipped; saw 9"):
        cut(documents(5), StreamLayout(), length=8, stride=9)
    with pytest.raises(UserError, match="needs a tokenizer with bos and eos"):
        cut(documents(5), layout_of("wrap", Marks(eos=EOS)), length=8)
    with pytest.raises(UserError, match="not one row of 64 to score"):
        cut(documents(5), layout_of("wrap", MARKS), length=64)
    with pytest.raises(UserError, match="0 tokens in 2 documents"):
        cut(documents(0, 0), layout_of("stream", MARKS), length=8)


@pytest.mark.parametrize(
    "shape",
    [
        StreamLayout(marks=Marks(eos=EOS)),
        StreamLayout(separated=True, marks=Marks(eos=EOS)),
        StreamLayout(marks=Marks(eos=EOS, leads=True)),
    ],
)
def test_words_are_divided_among_tokens_as_bytes_are_and_marks_have_none(shape):
    text = [Document.of("a b  c\nd", np.arange(8)), Document.of("é", np.arange(3))]
    assert [(one.bytes, one.words) for one in text] == [(8, 4), (2, 1)]
    passages, _ = cut(text, shape, length=5)
    given = 0 if shape.marks.leads is False or shape.marks.lead else 1
    assert sum(one.words for one in passages) == pytest.approx(5 - given * 4 / 8)
    assert sum(one.bytes for one in passages) == pytest.approx(10 - given)
    assert [one.continues for one in passages] == [shape.marks.leads and i > 0 for i in range(len(passages))]


@pytest.mark.parametrize("causal", [False, True])
def test_windows_have_no_marks_and_unscored_ids_are_given_and_have_no_bytes(causal):
    how = layout_of("windows", Marks(EOS, EOS, unscored=(2, 7), leads=causal))
    passages, dropped = cut(documents(6, 3), how, length=4)
    assert all(EOS not in passage.tokens for passage in passages)
    scored = [id for p in passages for id in p.tokens[~p.frozen].tolist()]
    first = {0, 6} if causal else set()  # a causal network sees one token before it predicts
    assert scored == [id for id in range(9) if id not in {2, 7} | first]
    assert sum(passage.bytes for passage in passages) == 3 * len(scored)
    assert sum(passage.scored for passage in passages) == len(scored)
    assert dropped == 9 - len(scored)
