"""Pairs and conversations, from every kind of file, token by token in the shards."""

import csv
import json

import pytest

from unmask.errors import UserError
from unmask.text.corpus.corpus import Corpus
from unmask.text.corpus.documents import FileLayout
from unmask.text.corpus.prepare import prepare
from unmask.text.corpus.shards import Division
from unmask.text.corpus.sources import gather
from unmask.text.corpus.tokenized import read_documents
from unmask.text.corpus.turns import Turn, exchanges
from unmask.text.row import Role
from unmask.text.tokens.vocabulary import character

PAIRS = [{"question": "ab", "text": "cd"}, {"question": "b", "text": "dcba"}]
CHAT = [
    {"role": "system", "content": "d"},
    {"role": "user", "content": "ab"},
    {"role": "assistant", "content": "cd"},
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
]


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def written(folder, kind):
    """The pairs as a file of a kind."""
    path = folder / f"pairs.{kind}"
    if kind == "jsonl":
        return jsonl(path, PAIRS)
    if kind == "parquet":
        pytest.importorskip("pyarrow.parquet").write_table(
            pytest.importorskip("pyarrow").Table.from_pylist(PAIRS), path
        )
        return path
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, ["question", "text"], delimiter="\t" if kind == "tsv" else ",")
        table.writeheader()
        table.writerows(PAIRS)
    return path


def prepared(path, layout, out):
    with gather(str(path), layout) as sources:
        list(prepare(sources, character(["abcd"]), out, layout=layout, division=Division(0), workers=1))
    return Corpus.open(out)


def spelled(corpus, tokenizer):
    """Each token of the stream with its role."""
    roles = corpus.roles(0, corpus.tokens).tolist()
    return [
        (tokenizer.pieces[id], Role(role).name) for id, role in zip(corpus.read(0, corpus.tokens), roles, strict=True)
    ]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "parquet"])
def test_pairs_of_every_kind_of_file_have_these_tokens_and_roles(tmp_path, kind):
    tokenizer = character(["abcd"])
    eos = tokenizer.pieces[tokenizer.eos]
    corpus = prepared(written(tmp_path, kind), FileLayout(given="question", answer="text"), tmp_path / "data")
    assert corpus.documents == 2
    assert spelled(corpus, tokenizer) == [
        ("a", "GIVEN"),
        ("b", "GIVEN"),
        (eos, "MARK"),
        ("c", "FREE"),
        ("d", "FREE"),
        (eos, "FREE"),
        ("b", "GIVEN"),
        (eos, "MARK"),
        *[(letter, "FREE") for letter in "dcba"],
        (eos, "FREE"),
    ]


def test_a_conversation_is_one_exchange_for_every_answer_and_what_follows_is_not_in_view(tmp_path):
    path = jsonl(tmp_path / "chat.jsonl", [{"messages": CHAT}])
    first, second = exchanges(path, "", "messages")
    assert first.given == (Turn("system", "d"), Turn("user", "ab"))
    assert first.answer == "cd"
    assert [turn.text for turn in second.given] == ["d", "ab", "cd", "a"]
    assert second.answer == "b"
    tokenizer = character(["abcd"])
    corpus = prepared(path, FileLayout(answer="messages"), tmp_path / "data")
    letters = "".join(piece[0] + role[0] for piece, role in spelled(corpus, tokenizer))
    assert letters == "dG<MaGbG<McFdF<F" + "dG<MaGbG<McGdG<MaG<MbF<F"


def test_a_prompt_of_messages_and_an_answer_of_text_or_of_messages_are_one_exchange(tmp_path):
    for answer in ("cd", [{"from": "gpt", "value": "cd"}]):
        (one,) = exchanges(
            jsonl(tmp_path / "p.jsonl", [{"prompt": CHAT[:2], "completion": answer}]), "prompt", "completion"
        )
        assert ([turn.text for turn in one.given], one.answer) == (["d", "ab"], "cd")


def test_the_turns_of_one_conversation_are_in_one_split(tmp_path):
    rows = [{"messages": [{"role": "user", "content": f"ab{'c' * n}"}, *CHAT[2:]]} for n in range(40)]
    layout = FileLayout(answer="messages")
    with gather(str(jsonl(tmp_path / "chat.jsonl", rows)), layout) as sources:
        list(
            prepare(sources, character(["abcd"]), tmp_path / "data", layout=layout, division=Division(0.5), workers=1)
        )
    questions = []
    for split in ("train", "valid"):
        corpus = Corpus.open(tmp_path / "data", split)
        texts = [corpus.document(i).tolist() for i in range(corpus.documents)]
        questions.append([text[: text.index(corpus.tokenizer["eos"])] for text in texts])
    train, valid = questions
    assert len(train) + len(valid) == 80
    assert len(train) > 20
    assert len(valid) > 20
    assert all(question not in valid for question in train)


def test_prepared_pairs_are_read_with_what_is_given(tmp_path):
    prepared(written(tmp_path, "jsonl"), FileLayout(given="question", answer="text"), tmp_path / "data")
    first, second = read_documents(tmp_path / "data", character(["abcd"])).documents
    assert (first.given, first.bytes, len(first.tokens)) == (3, 2, 5)
    assert (second.given, second.bytes, len(second.tokens)) == (2, 4, 6)


def test_the_manifest_of_other_data_is_as_it_was(tmp_path):
    (tmp_path / "text.txt").write_text("abcd")
    prepared(tmp_path / "text.txt", FileLayout(), tmp_path / "data")
    layout = json.loads((tmp_path / "data" / "manifest.json").read_text())["layout"]
    assert layout == {"documents": "auto", "separator": "<|endoftext|>", "field": "text"}


@pytest.mark.parametrize(
    ("rows", "given", "answer", "words"),
    [
        (PAIRS, "quesion", "text", ["quesion", "question", "text", "--given"]),
        (PAIRS, "question", "answer", ["'answer'", "question", "--answer"]),
        ([{"question": "a", "text": ""}] * 3, "question", "text", ["'text'", "empty in all 3"]),
        ([{"question": "a", "text": None}], "question", "text", ["empty in all 1"]),
        ([{"messages": CHAT[:2]}], "", "messages", ["no answer", "assistant"]),
        ([{"question": "a", "text": 3}], "question", "text", ["line 1", "neither text nor a list", "3"]),
        ([{"messages": [{"role": "user"}]}], "", "messages", ["message 1", "content"]),
        (PAIRS, "", "text", ["nothing says what it answers", "--given"]),
    ],
)
def test_mistakes_in_pairs_are_named(tmp_path, rows, given, answer, words):
    path = jsonl(tmp_path / "pairs.jsonl", rows)
    with pytest.raises(UserError) as refused:
        list(exchanges(path, given, answer))
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_a_text_file_holds_no_pairs(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(UserError, match=r"\.jsonl, \.csv, \.tsv and \.parquet"):
        list(exchanges(tmp_path / "a.txt", "a", "b"))
