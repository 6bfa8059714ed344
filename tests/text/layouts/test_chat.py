"""chat: what a template writes is given, the answer and its end are learned, token by token; training = requests."""

import json

import pytest

from text.layouts.test_exchange import letters
from unmask.errors import UserError
from unmask.text.corpus.batches import Batches
from unmask.text.corpus.chat_template import ChatTemplate
from unmask.text.corpus.corpus import Corpus
from unmask.text.corpus.documents import FileLayout as Files
from unmask.text.corpus.packed import pack_corpus
from unmask.text.corpus.prepare import prepare
from unmask.text.corpus.shards import Division
from unmask.text.corpus.sources import gather
from unmask.text.corpus.tokenized import read_documents
from unmask.text.corpus.turns import Turn
from unmask.text.layout import LAYOUTS, Marks, cut
from unmask.text.stretch import Document
from unmask.text.tokens.vocabulary import byte

TOKENIZER = byte()
SHORT = (  # a letter for a role
    "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
)
TALK = [("system", "S"), ("user", "hi"), ("assistant", "ho"), ("user", "x"), ("assistant", "yes")]


def layout(word="chat", **marks):
    return LAYOUTS.make(word).with_template(SHORT, TOKENIZER).on(Marks.of(TOKENIZER, **marks))


def corpus_of(folder, *talks, template=SHORT):
    path = folder / "chats.jsonl"
    lines = [{"messages": [{"role": role, "content": text} for role, text in talk]} for talk in talks]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = Files(template=template)
    with gather(str(path), files) as sources:
        list(prepare(sources, TOKENIZER, folder / "data", layout=files, division=Division(0), workers=1))
    return Corpus.open(folder / "data")


def shown(ids):
    return "".join("|" if id == TOKENIZER.eos else TOKENIZER.decode([id]) for id in ids.tolist())


def test_every_answer_is_learned_once_with_its_end_token_by_token(tmp_path):
    rows = pack_corpus(corpus_of(tmp_path, TALK), 24, layout()).rows([0, 1])
    assert [shown(row) for row in rows.tokens] == ["sS|uhi|aho|" + "|" * 13, "sS|uhi|aho|ux|ayes|" + "|" * 5]
    assert [letters(row) for row in rows.roles] == ["g" * 8 + "fff" + "e" * 13, "g" * 15 + "ffff" + "e" * 5]
    assert rows.real.sum(1).tolist() == [3, 4]
    assert (rows.frozen == (rows.roles == 0)).all()


def test_training_evaluation_and_a_request_have_the_same_row(tmp_path):
    corpus = corpus_of(tmp_path, TALK)
    made, trained = layout(), pack_corpus(corpus, 24, layout()).rows([1])
    turns = [Turn(*one) for one in TALK[:-1]]
    given = made.conversation(TOKENIZER, turns)
    answer = Document.of("yes", TOKENIZER.encode_batch(["yes"])[0])
    asked = made.exchange(made.asked(given), answer, length=24)
    documents = read_documents(tmp_path / "data", TOKENIZER).documents
    (_, measured), _ = cut(documents, made, length=24)
    for row in (asked, measured):
        assert row.tokens.tolist() == trained.tokens[0].tolist()
        assert row.roles.tolist() == trained.roles[0].tolist()
        assert (row.scored, row.bytes) == (4, 3)
    drawn = made.prompt(made.asked(given), 9, [], mask=TOKENIZER.mask, document=True)
    assert drawn.roles.tolist() == [0] * 15 + [2] * 9
    assert drawn.tokens[:15].tolist() == trained.tokens[0, :15].tolist()
    causal = layout(leads=True).exchange(given, answer, length=24)
    assert letters(causal.roles) == "g" * 15 + "ffff"
    assert letters(made.filled([*given, TOKENIZER.mask], mask=TOKENIZER.mask, length=24).roles) == "g" * 15 + "fm"
    assert made.question(TOKENIZER, "hi") == made.conversation(TOKENIZER, [Turn("user", "hi")])


def test_the_room_is_drawn_after_the_end(tmp_path):
    batches = Batches(pack_corpus(corpus_of(tmp_path, TALK[:3]), 40, layout()), 8, seed=3)
    rooms = {len(letters(row).rstrip(".")) for step in range(20) for row in batches.at(step).roles}
    assert min(rooms) == 11
    assert max(rooms) == 40
    assert len(rooms) > 15


def test_long_conversations_follow_a_named_rule(tmp_path):
    corpus = corpus_of(tmp_path, TALK)
    rows = pack_corpus(corpus, 12, layout()).rows([0, 1])
    assert [shown(row) for row in rows.tokens] == ["sS|uhi|aho||", "|aho|ux|ayes|"[1:]]
    assert [letters(row) for row in rows.roles] == ["g" * 8 + "fffe", "g" * 8 + "ffff"]
    assert len(pack_corpus(corpus, 12, layout("chat:long=drop"))) == 1
    with pytest.raises(UserError, match="--length"):
        pack_corpus(corpus, 12, layout("chat:long=refuse"))


def test_ends_of_published_templates_and_what_a_message_contains(tmp_path):
    """An end in a message is letters; the end of an answer may be another token than eos."""
    end, eos = TOKENIZER.pad, TOKENIZER.eos
    template = "{% for m in messages %}{{ m.content }}{{ pad_token }}{% endfor %}"
    made = LAYOUTS.make("chat").with_template(template, TOKENIZER).on(Marks.of(TOKENIZER))
    assert (made.end, made.end_ids) == (end, (end, eos))
    name = TOKENIZER.pieces[end]
    rows = pack_corpus(corpus_of(tmp_path, [("user", name), ("assistant", "{{ 1 }}")], template=template), 32, made)
    tokens, roles, _ = rows.rows([0])
    given = [*TOKENIZER.encode(name), end]
    assert tokens[0].tolist() == [*given, *TOKENIZER.encode("{{ 1 }}"), end] + [eos] * (32 - len(given) - 8)
    assert letters(roles[0]) == "g" * len(given) + "f" * 8 + "e" * (32 - len(given) - 8)


def test_a_template_is_part_of_the_data_and_of_the_layout(tmp_path):
    corpus_of(tmp_path, TALK)
    stored = json.loads((tmp_path / "data" / "manifest.json").read_text())["layout"]
    assert stored["template"] == SHORT
    with pytest.raises(UserError, match="prepared differently"):
        corpus_of(tmp_path, TALK, template="chatml")
    with pytest.raises(UserError, match="--template roles"):
        LAYOUTS.make("chat").with_template("", TOKENIZER)
    assert ChatTemplate.named("roles").text == Files(template="roles").chat.text
