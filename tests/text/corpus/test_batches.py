"""Packing and batches: the reference's blocks, every row once an epoch, one order for every world."""

import json
from dataclasses import replace
from math import isqrt
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from unmask.errors import UserError
from unmask.random import SMALL, permute_places
from unmask.text.corpus.batches import Batches, Lanes, in_order
from unmask.text.corpus.corpus import Corpus
from unmask.text.corpus.packed import fit_rows, length_for, pack_corpus
from unmask.text.corpus.shards import Shard

CASES = json.loads((Path(__file__).parents[2] / "golden" / "text_cases.json").read_text())["group_texts"]


def corpus_of(folder: Path, documents: list[list[int]], **special: int | None) -> Corpus:
    """A corpus of one shard that holds documents, the eos at the end of each included."""
    tokens = np.array([id for document in documents for id in document], "<u2")
    ends = np.cumsum([len(document) for document in documents]).astype("<u4")
    (folder / "shards").mkdir(exist_ok=True)
    name = f"{len(list((folder / 'shards').iterdir()))}.bin"
    (folder / "shards" / name).write_bytes(ends.tobytes() + tokens.tobytes())
    ids = {"size": 60, "mask": 59, "pad": 58, "bos": 0, "eos": 1, **special}
    return Corpus(folder, ids, "uint16", (Shard(name, "train", len(ends), len(tokens), ""),))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"length {case['block_size']}")
def test_wrap_gives_the_blocks_of_the_reference(case, tmp_path):
    corpus = corpus_of(tmp_path, case["docs"], bos=case["bos"], eos=case["eos"])
    if not case["out"]:
        with pytest.raises(UserError, match="not one row of 200"):
            pack_corpus(corpus, case["block_size"], "wrap")
        return
    rows = pack_corpus(corpus, case["block_size"], "wrap")
    batch = rows.rows(range(len(rows)))
    assert batch.tokens.tolist() == case["out"]
    assert batch.real.all()


def test_stream_cuts_the_documents_and_their_ends_without_adding_anything(tmp_path):
    corpus = corpus_of(tmp_path, CASES[0]["docs"])
    rows = pack_corpus(corpus, 8, "stream")
    flat = [id for document in CASES[0]["docs"] for id in document]
    assert rows.rows(range(len(rows))).tokens.flatten().tolist() == flat[: len(flat) // 8 * 8]


def test_padded_puts_one_document_between_bos_and_eos_and_pads_or_cuts_it(tmp_path):
    rows = pack_corpus(corpus_of(tmp_path, [[7, 8, 1], [5, 6, 7, 8, 9, 1], [4, 1]]), 6, "padded")
    batch = rows.rows([0, 1, 2])
    tokens, real = batch.tokens, batch.real
    assert tokens.tolist() == [[0, 7, 8, 1, 58, 58], [0, 5, 6, 7, 8, 1], [0, 4, 1, 58, 58, 58]]
    assert real.sum(1).tolist() == [4, 6, 3]
    assert (real == (tokens != 58)).all()
    assert tokens.dtype == torch.int64
    assert torch.equal(batch.frozen, ~real)
    assert batch.lengths.tolist() == [4, 6, 3]


def test_without_a_pad_token_padded_rows_are_filled_with_eos_and_still_not_real(tmp_path):
    rows = pack_corpus(corpus_of(tmp_path, [[7, 1]], pad=None), 5, "padded")
    batch = rows.rows([0])
    tokens, real = batch.tokens, batch.real
    assert tokens.tolist() == [[0, 7, 1, 1, 1]]
    assert real.tolist() == [[True, True, True, False, False]]


def test_rows_learn_eos_up_to_the_end_and_count_the_document_and_its_first_eos(tmp_path):
    rows = pack_corpus(corpus_of(tmp_path, [[7, 8, 1], [4, 1]]), 6, "rows")
    batch = rows.rows([0, 1])
    tokens, real, free = batch.tokens, batch.real, ~batch.frozen
    assert tokens.tolist() == [[0, 7, 8, 1, 1, 1], [0, 4, 1, 1, 1, 1]]
    assert real.long().tolist() == [[0, 1, 1, 1, 0, 0], [0, 1, 1, 0, 0, 0]]
    assert free.long().tolist() == [[0, 1, 1, 1, 1, 1]] * 2  # only the bos is given


def test_a_document_that_does_not_fit_into_rows_is_cut_and_has_not_ended(tmp_path):
    rows = pack_corpus(corpus_of(tmp_path, [[5, 6, 7, 1], [5, 6, 7, 8, 1], [5, 6, 7, 8, 9, 1]]), 5, "rows")
    batch = rows.rows([0, 1, 2])
    tokens, real = batch.tokens, batch.real
    assert tokens.tolist() == [[0, 5, 6, 7, 1], [0, 5, 6, 7, 8], [0, 5, 6, 7, 8]]
    assert real.sum(1).tolist() == [4, 4, 4]


def test_auto_takes_rows_for_documents_that_fit_and_a_stream_for_others():
    assert fit_rows(np.array([3, 9, 6]), 11)
    assert not fit_rows(np.array([3, 10, 6]), 11)  # no place for its eos
    assert fit_rows(np.array([5] * 99 + [500]), 11)
    assert not fit_rows(np.array([5] * 98 + [500] * 2), 11)
    assert not fit_rows(np.array([5]), 11)


def test_the_length_of_rows_is_that_of_nearly_all_documents_with_bos_and_eos():
    assert length_for(np.array([3, 6, 14]), most=128) == 16
    assert length_for(np.array([3, 6, 15]), most=128) == 24
    assert length_for(np.array([3, 6, 1000]), most=128) == 128
    assert length_for(np.array([5] * 200 + [500]), most=128) == 8


def test_lengths_are_those_of_the_documents(tmp_path):
    documents = [[7, 8, 1], [1], [5, 6, 7, 8, 9, 1]]
    corpus = corpus_of(tmp_path, documents)
    assert corpus.lengths().tolist() == [len(corpus.document(i)) for i in range(3)] == [2, 0, 5]


def test_impossible_packings_are_refused(tmp_path):
    corpus = corpus_of(tmp_path, CASES[0]["docs"])
    with pytest.raises(UserError, match="Did you mean 'stream'"):
        pack_corpus(corpus, 8, "streams")
    with pytest.raises(UserError, match="at least 3 tokens"):
        pack_corpus(corpus, 2)
    with pytest.raises(UserError, match="needs a tokenizer with bos and eos"):
        pack_corpus(corpus_of(tmp_path, [[3, 4, 5]], bos=None), 3, "wrap")
    with pytest.raises(UserError, match="needs whole documents"):
        pack_corpus(corpus.divide(20)[1], 8, "rows")
    assert len(pack_corpus(corpus.divide(0)[0], 8, "rows")) == corpus.documents
    with pytest.raises(UserError, match="at least one row"):
        Batches(pack_corpus(corpus, 8), 0)


@given(st.integers(1, 3 * SMALL), st.integers(0, 2**40), st.integers(0, 9))
def test_every_thing_stands_at_one_place(n, seed, epoch):
    order = permute_places(np.arange(n), n, seed=seed, epoch=epoch)
    assert np.array_equal(np.sort(order), np.arange(n))


def test_a_huge_order_is_asked_for_a_few_places_at_no_cost():
    n = 10**15 + 37
    places = np.arange(n - 5000, n)
    order = permute_places(places, n, seed=1, epoch=2)
    assert len(set(order.tolist())) == 5000
    assert order.min() >= 0
    assert order.max() < n
    assert stats.kstest(order / n, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("n", [7, SMALL + 1, SMALL * 4 + 3])
def test_orders_look_random(n):
    """What stands at a place is uniform over seeds; so is the gap between things that stood near or in line."""
    seeds = range(2000)
    near, in_line = 1, -(-n // (isqrt(n - 1) + 1))  # the second shares a coordinate of the network's square
    places = np.array([0, near, in_line])
    found = np.array([permute_places(places, n, seed=seed, epoch=0) for seed in seeds])
    for column in found.T:
        assert stats.chisquare(np.bincount(column * min(n, 50) // n, minlength=min(n, 50))).pvalue > 1e-4
    bins = min(n - 1, 50)
    expected = np.bincount(np.arange(n - 1) * bins // (n - 1), minlength=bins) / (n - 1) * len(seeds)
    for column in (1, 2):
        gap = (found[:, column] - found[:, 0]) % n
        counts = np.bincount((gap - 1) * bins // (n - 1), minlength=bins)
        assert stats.chisquare(counts, expected).pvalue > 1e-4


@pytest.fixture
def batches(tmp_path):
    corpus = corpus_of(tmp_path, [[10 + i, 20 + i, 30 + i % 7, 1] for i in range(23)])
    return Batches(pack_corpus(corpus, 4), 6, seed=5)


def test_an_epoch_takes_every_row_once_and_the_next_in_another_order(batches):
    n = len(batches.packed)
    order = np.concatenate([batches.numbers(step) for step in range(2 * n)])
    epochs = order[: order.size // n * n].reshape(-1, n)
    assert len(epochs) == 12
    assert all(sorted(epoch) == list(range(n)) for epoch in epochs.tolist())
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == len(epochs)


@pytest.mark.parametrize("world", [2, 3, 6])
def test_ranks_together_see_what_one_process_sees(batches, world):
    for step in (0, 3, 1000):
        ranks = [batches.at(step, rank=rank, world=world).tokens for rank in range(world)]
        assert torch.equal(torch.cat(ranks), batches.at(step).tokens)


def test_a_batch_depends_on_seed_and_step_alone(batches):
    first = [batches.at(step).tokens for step in range(10)]
    again = Batches(batches.packed, 6, seed=5)
    assert torch.equal(again.at(7).tokens, first[7])
    assert not torch.equal(Batches(batches.packed, 6, seed=6).at(7).tokens, first[7])


def test_a_batch_that_the_world_does_not_divide_is_refused(batches):
    with pytest.raises(UserError, match="6 rows cannot be shared equally by 4"):
        batches.at(0, world=4)


def test_in_order_gives_every_row_once(batches):
    rows = torch.cat([batch.tokens for batch in in_order(batches.packed, 5)])
    assert torch.equal(rows, batches.packed.rows(range(23)).tokens)


def test_lanes_predict_every_token_once_and_each_row_goes_on_where_it_ended(tmp_path):
    """The first token of the stream is given; what does not fill a row of every lane is left over."""
    corpus = corpus_of(tmp_path, [[4 * i + j for j in range(4)] for i in range(25)])
    stream = corpus.read(0, corpus.tokens).tolist()
    lanes = Lanes(pack_corpus(corpus, 5), 3)
    assert (lanes.rows, lanes.tokens) == ((len(stream) - 1) // 4 // 3, 4 * lanes.rows)
    seen, before = [], None
    for step in range(lanes.rows):
        batch = lanes.at(step)
        assert batch.begins == (step == 0)
        assert before is None or torch.equal(batch.tokens[:, 0], before.tokens[:, -1])
        seen.append(batch.tokens[:, 1:])
        before = batch
    assert torch.cat(seen, 1).flatten().tolist() == stream[1 : 1 + 3 * lanes.tokens]
    assert len(stream) - 1 - 3 * lanes.tokens < 3 * 4
    again = lanes.at(lanes.rows)
    assert again.begins
    assert torch.equal(again.tokens, lanes.at(0).tokens)


@pytest.mark.parametrize("world", [2, 3])
def test_lanes_of_all_ranks_are_those_of_one_process(tmp_path, world):
    lanes = Lanes(pack_corpus(corpus_of(tmp_path, [list(range(100))]), 5), 6)
    for step in (0, 3, 1000):
        ranks = [lanes.at(step, rank=rank, world=world).tokens for rank in range(world)]
        assert torch.equal(torch.cat(ranks), lanes.at(step).tokens)
    with pytest.raises(UserError, match="6 rows cannot be shared equally by 4"):
        lanes.at(0, world=4)


def test_text_too_short_for_its_lanes_and_separate_documents_are_refused(tmp_path):
    corpus = corpus_of(tmp_path, [list(range(30))])
    with pytest.raises(UserError, match=r"too few for 9 texts of one row of 5 .*use a smaller batch"):
        Lanes(pack_corpus(corpus, 5), 9)
    with pytest.raises(UserError, match=r"--pack stream, not wrap"):
        Lanes(pack_corpus(corpus, 5, "wrap"), 2)


@pytest.mark.slow
def test_a_share_of_the_rows_is_cut_to_a_random_length_whatever_the_world(batches):
    short = replace(batches, packed=replace(batches.packed, length=8), size=60, cut=0.25)
    steps = [short.at(step) for step in range(20)]
    lengths = torch.cat([step.real.sum(1) for step in steps])
    assert 0.15 < float((lengths < 8).double().mean()) < 0.35
    assert set(lengths.tolist()) == set(range(2, 9)), "every length from two tokens on"
    whole = replace(short, cut=0.0).at(3)
    assert torch.equal(steps[3].tokens, whole.tokens)
    assert bool(whole.real.all())
    halves = [short.at(3, rank=rank, world=2).real for rank in (0, 1)]
    assert torch.equal(torch.cat(halves), steps[3].real)
    with pytest.raises(UserError, match="rows of a stream"):
        replace(short, packed=pack_corpus(short.packed.corpus, 8, "wrap"))


def test_windows_are_cut_within_documents_and_hold_no_marks(tmp_path):
    rows = pack_corpus(corpus_of(tmp_path, [[4, 5, 6, 7, 8, 9, 10, 1], [4, 5, 1], [11, 12, 13, 1]]), 3, "windows")
    assert len(rows) == 3
    batch = rows.rows([0, 1, 2])
    assert batch.tokens.tolist() == [[4, 5, 6], [7, 8, 9], [11, 12, 13]]
    assert batch.real.all()
    with pytest.raises(UserError, match=r"not one row of 9 \(windows\)"):
        pack_corpus(rows.corpus, 9, "windows")


@pytest.mark.parametrize("way", ["stream", "rows", "padded", "windows"])
def test_unscored_ids_are_seen_but_neither_hidden_nor_counted(way, tmp_path):
    corpus = corpus_of(tmp_path, [[4, 11, 6, 7, 1], [11, 11, 8, 9, 1]])
    plain, batch = (pack_corpus(corpus, 4, way, unscored=ids).rows([0, 1]) for ids in ((), (11,)))
    known = plain.tokens == 11
    assert known.any()
    assert torch.equal(batch.tokens, plain.tokens)
    assert torch.equal(batch.real, plain.real & ~known)
    before, after = (plain.frozen, plain.lengths), (batch.frozen, batch.lengths)
    assert torch.equal(after[0], known if before[0] is None else before[0] | known)
    assert (after[1] is None and before[1] is None) or torch.equal(after[1], before[1])


@pytest.mark.parametrize("way", ["stream", "rows", "windows"])
def test_half_of_the_rows_are_the_other_strand_and_ranks_agree(way, tmp_path):
    corpus = corpus_of(tmp_path, [[4, 5, 6, 4, 1]] * 40)
    complement = np.arange(20)
    complement[[4, 5]] = 5, 4
    batches = Batches(pack_corpus(corpus, 4 if way == "windows" else 6, way), 8, 3, complement=complement)
    plain = Batches(batches.packed, 8, 3)
    turned = 0
    for step in range(10):
        whole = batches.at(step)
        halves = [batches.at(step, rank=rank, world=2).tokens for rank in (0, 1)]
        assert torch.equal(torch.cat(halves), whole.tokens)
        for row, number, before in zip(whole.tokens, plain.numbers(step), plain.at(step).tokens, strict=True):
            content = corpus.read(*batches.packed.spans.span(int(number)))
            back = batches.packed.written([complement[content][::-1]]).tokens[0]
            assert torch.equal(row, before) or torch.equal(row, back)
            turned += int(not torch.equal(row, before))
    assert 20 < turned < 60
