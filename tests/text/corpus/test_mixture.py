"""Mixtures: shares of the tokens, a pure function of (seed, step), whatever the number of processes."""

import numpy as np
import pytest
import torch

from unmask.errors import UserError
from unmask.text.corpus.batches import Batches
from unmask.text.corpus.corpus import Corpus
from unmask.text.corpus.documents import FileLayout
from unmask.text.corpus.mixture import Mixture
from unmask.text.corpus.packed import pack_corpus
from unmask.text.corpus.prepare import choose, prepare
from unmask.text.corpus.sources import gather, weighted_places

LENGTH = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three texts, each of one letter."""
    root = tmp_path_factory.mktemp("mixture")
    for letter, lines in (("a", 200), ("b", 30), ("c", 60)):
        (root / letter).mkdir()
        (root / letter / "text.txt").write_text(f"{letter * 15}\n" * lines)
    places = " ".join(f"{root / letter}:{weight}" for letter, weight in (("a", 3), ("b", 1), ("c", 2.5)))
    layout = FileLayout(documents="line")
    with gather(places, layout) as sources:
        tokenizer = choose("character", sources, layout=layout)
        for _ in prepare(sources, tokenizer, root / "data", layout=layout):
            pass
    return root / "data"


def mixture(folder, seed=1, size=6, weights=(3, 1, 2.5)):
    def packed(mix):
        return pack_corpus(Corpus.open(folder, mix=mix), LENGTH, "stream")

    parts = tuple(Batches(packed(mix), size, seed) for mix in (1, 2, 3))
    return Mixture(packed(0), parts, weights, ("a", "b", "c"))


def letters(mixed, rows):
    """Which text each row is of."""
    ids = [int(part.packed.rows([0]).tokens[0, 0]) for part in mixed.parts]
    return [ids.index(int(row[0]) if int(row[0]) in ids else int(row[1])) for row in rows.tokens]


def test_every_prefix_of_a_run_has_the_shares_to_within_a_row_of_each_text(folder):
    mixed = mixture(folder)
    seen = np.zeros(3)
    for step in range(40):
        seen += np.bincount(letters(mixed, mixed.at(step)), minlength=3)
        wanted = (step + 1) * mixed.size * np.array([3, 1, 2.5]) / 6.5
        assert np.abs(seen - wanted).max() < 2
    lengths = [len(part.packed) for part in mixed.parts]
    assert mixed.passes(40) == pytest.approx(seen / lengths)
    assert mixed.lines(40)[1].startswith("b: 15.4% of the tokens, ")


def test_each_text_is_read_once_per_pass_in_a_new_order(folder):
    mixed = mixture(folder)
    which, numbers = mixed.places(np.arange(2000))
    for text in range(3):
        assert numbers[which == text].tolist() == list(range((which == text).sum()))


def test_processes_share_the_rows_of_a_single_one_and_a_resumed_run_goes_on(folder):
    mixed = mixture(folder)
    for step in (0, 7, 300):
        alone = mixed.at(step)
        parts = [mixed.at(step, rank=rank, world=3) for rank in range(3)]
        assert torch.equal(alone.tokens, torch.cat([part.tokens for part in parts]))
        assert torch.equal(alone.roles, torch.cat([part.roles for part in parts]))
        assert torch.equal(alone.tokens, mixture(folder).at(step).tokens)


def test_weights_are_of_tokens_where_rows_differ_in_length(folder, tmp_path):
    """A text with short documents, one per row, gets more rows for the same tokens."""
    for name, text in (("long", "abcdefghij"), ("short", "ab")):
        (tmp_path / f"{name}.txt").write_text(f"{text}\n" * 50)
    layout = FileLayout(documents="line")
    with gather(f"{tmp_path}/long.txt:1 {tmp_path}/short.txt:1", layout) as sources:
        tokenizer = choose("character", sources, layout=layout)
        list(prepare(sources, tokenizer, tmp_path / "data", layout=layout))
    parts = [pack_corpus(Corpus.open(tmp_path / "data", mix=mix), 16, "rows") for mix in (1, 2)]
    mixed = Mixture(parts[0], tuple(Batches(part, 4) for part in parts), (1, 1))
    assert mixed.shares == pytest.approx([3 / 14, 11 / 14])  # 11 and 3 tokens, the end of a document included


def test_what_is_no_mixture_is_one_place(tmp_path):
    assert weighted_places("a.txt:3 b/c.jsonl:0.5") == [("a.txt", 3.0), ("b/c.jsonl", 0.5)]
    for one in ("a.txt", "a.txt:3", "my texts/a.txt", "hf:name/data:en", "-", "c:/a b"):
        assert weighted_places(one) == []
    (tmp_path / "a:1 b:2").write_text("x")
    assert weighted_places(str(tmp_path / "a:1 b:2")) == []


@pytest.mark.parametrize("wrong", ["a.txt:3 b.txt", "a.txt:0 b.txt:1", "a.txt:-1 b.txt:1", "a.txt:3 :1"])
def test_a_mixture_without_a_weight_is_refused(wrong):
    with pytest.raises(UserError, match="PLACE:WEIGHT"):
        weighted_places(wrong)


def test_a_file_that_is_named_twice_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(UserError, match="no file twice"), gather(f"{tmp_path}/a.txt:1 {tmp_path}/a.txt:2"):
        pass
