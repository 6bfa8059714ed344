"""Shards may say what each token is for: beside the tokens, in the manifest, and verified like them."""

import json

import numpy as np
import pytest

from unmask.errors import UserError
from unmask.text.corpus.corpus import Corpus, verify
from unmask.text.corpus.documents import FileLayout
from unmask.text.corpus.manifest import MANIFEST
from unmask.text.corpus.packed import pack_corpus
from unmask.text.corpus.prepare import prepare
from unmask.text.corpus.shards import SHARDS, Shard, write_shard
from unmask.text.corpus.sources import gather
from unmask.text.layout import LAYOUTS
from unmask.text.row import Role
from unmask.text.tokens.vocabulary import character

TEXTS = ["abcd", "bad", "cab"]


@pytest.fixture
def folder(tmp_path):
    """Three documents, of which the first two letters are given."""
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    with gather(str(tmp_path / "text.txt")) as sources:
        list(prepare(sources, character(TEXTS), tmp_path / "data", layout=FileLayout("line"), workers=1))
    corpus = Corpus.open(tmp_path / "data")
    assert not corpus.has_roles
    ends = np.cumsum([len(text) + 1 for text in TEXTS])
    roles = np.full(ends[-1], Role.FREE, np.int8)
    for start in (0, *ends[:-1]):
        roles[start : start + 2] = Role.GIVEN
    (shard,) = corpus.shards
    tokens = corpus.read(0, corpus.tokens)
    manifest = json.loads((corpus.folder / MANIFEST).read_text())
    written = write_shard(corpus.folder, shard.name, "train", ends, tokens, roles)
    assert written._replace(roles="") == Shard(*shard[:5])
    manifest["shards"] = [written._asdict()]
    (corpus.folder / MANIFEST).write_text(json.dumps(manifest))
    return corpus.folder


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "toy-layout"])
def test_rows_of_every_layout_have_the_stored_roles_where_their_text_is(name, folder):
    corpus = Corpus.open(folder)
    whole = pack_corpus(corpus, 3 if name == "windows" else 7, name)
    rows = whole.rows(range(len(whole)))
    for number, (tokens, roles) in enumerate(zip(rows.tokens, rows.roles, strict=True)):
        start, stop = whole.spans.span(number)
        part = slice(whole.layout.before, whole.layout.before + stop - start)
        assert tokens[part].tolist() == corpus.read(start, stop).tolist()
        text = roles[part].tolist()
        given = [role == Role.GIVEN for role in corpus.roles(start, stop)]
        assert [role == Role.GIVEN for role in text] == given or name == "framed"
        assert any(given)
        assert all(text[i] == Role.GIVEN for i, one in enumerate(given) if one)


def test_a_file_of_roles_is_verified_like_the_tokens(folder):
    Corpus.open(folder)
    (path,) = (folder / SHARDS).glob("*.roles")
    good = path.read_bytes()
    path.write_bytes(good[::-1])
    with pytest.raises(UserError, match="damaged"):
        verify(folder)
    with pytest.raises(UserError, match="damaged"):
        Corpus.open(folder)
    path.write_bytes(good[:-1])
    with pytest.raises(UserError, match=r"bytes where the manifest says 13"):
        Corpus.open(folder)
    path.unlink()
    with pytest.raises(UserError, match="is missing"):
        Corpus.open(folder)
