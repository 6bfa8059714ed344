"""Text to ids and back, special ids kept apart, foreign files read as their makers meant them."""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unmask.errors import UserError
from unmask.text.corpus.prepare import choose
from unmask.text.corpus.sources import gather
from unmask.text.tokens import files as tokenizer_files
from unmask.text.tokens import vocabulary
from unmask.text.tokens.tokenizer import BLANK, Tokenizer

GOLDEN = Path(__file__).parents[2] / "golden"
TEXTS = ["the cat sat on the mat. the cat ran to the hat, and the hat sat.", "naïve café: 1 + 1 = 2 ▁ 貓"] * 3
ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
NAMES = st.sampled_from(["<|mask|>", "<|pad|>", "<|endoftext|>", "[MASK]", " ", "the"])
WITH_NAMES = st.lists(ANY | NAMES, max_size=6).map("".join)

BYTE = vocabulary.byte()
BPE = vocabulary.bpe(TEXTS, 300)
CHARACTER = vocabulary.character(TEXTS)
OURS = {"byte": BYTE, "bpe": BPE, "character": CHARACTER, "dna": vocabulary.dna(), "text8": vocabulary.text8()}


def write_gpt2(folder: Path) -> None:
    """A GPT-2 pair of files in miniature: 256 bytes, two merges, the end token last."""
    words = [*vocabulary._byte_alphabet(), "th", "the", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: id for id, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\nt h\nth e\n")


def write_bert(folder: Path, *, words: list[str]) -> None:
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")


@given(WITH_NAMES)
def test_byte_and_bpe_give_back_any_text_even_one_that_names_special_tokens(text):
    for tokenizer in (BYTE, BPE):
        ids = tokenizer.encode(text)
        assert not set(ids) & tokenizer.specials
        assert tokenizer.decode(ids) == text


@given(st.text(sorted(set("".join(TEXTS)))))
def test_character_gives_one_id_a_character_and_gives_the_text_back(text):
    assert len(CHARACTER.encode(text)) == len(text)
    assert CHARACTER.decode(CHARACTER.encode(text)) == text


@given(WITH_NAMES)
def test_the_table_of_letters_gives_what_the_library_gives(text):
    assert BYTE.encode(text) == BYTE.core.encode(text, add_special_tokens=False).ids
    text8 = OURS["text8"]
    assert text8.encode(text) == text8.core.encode(text, add_special_tokens=False).ids


def test_only_vocabularies_without_merges_are_read_letter_by_letter():
    assert {kind for kind, tokenizer in OURS.items() if tokenizer.letters is not None} == set(OURS) - {"bpe"}


def test_byte_ids_are_the_bytes():
    assert BYTE.encode("aé") == list("aé".encode())
    assert BYTE.size == 259


@pytest.mark.parametrize("kind", OURS)
def test_special_ids_are_inside_the_vocabulary_and_the_mask_is_no_other(kind):
    tokenizer = OURS[kind]
    assert tokenizer.mask not in (tokenizer.pad, tokenizer.bos, tokenizer.eos)
    assert tokenizer.specials <= set(range(tokenizer.size))
    if kind != "text8":
        assert tokenizer.mask == tokenizer.size - 1


def test_bpe_has_the_size_asked_for_and_merges_what_is_frequent():
    words = [" ".join(a + b for a in "abcdefgh" for b in "stuvwxyz")] * 2
    assert vocabulary.bpe(words, 300).size == 300
    assert len(BPE.encode(" the")) < 4


def test_bpe_training_gives_the_same_vocabulary_every_time():
    assert vocabulary.bpe(iter(TEXTS), 300).fingerprint == BPE.fingerprint


def test_bpe_smaller_than_the_bytes_is_an_error():
    with pytest.raises(UserError, match="at least 259 ids"):
        vocabulary.bpe(TEXTS, 200)


def test_a_character_without_a_token_is_an_error_that_names_it():
    with pytest.raises(UserError, match=r"no token for 'ß' \(U\+00DF\)"):
        CHARACTER.encode("the ß")
    with pytest.raises(UserError, match="no token for 'E'"):
        OURS["dna"].encode("ACGE")
    with pytest.raises(UserError, match=r"no token for '\('"):
        OURS["dna"].encode("CC(=O)\n!")  # the first one, not the one with the lowest code


@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_half_a_surrogate_pair_is_an_error_that_names_it(kind):
    with pytest.raises(UserError, match=r"U\+D83D"):
        OURS[kind].encode("a\ud83d")


def test_dna_reads_both_cases_and_writes_several_bases_as_n():
    dna = OURS["dna"]
    assert dna.encode("acgtnRyACGTN") == [0, 1, 2, 3, 4, 4, 4, 0, 1, 2, 3, 4]
    assert dna.decode([0, 1, 2, 3, 4, dna.mask]) == f"ACGTN{BLANK}"


def test_letters_are_counted_in_little_memory():
    text = "ACGTR" * 2_000_000
    tracemalloc.start()
    counts = vocabulary.dna().replaced([text])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert counts == {"R as N": 2_000_000}
    assert peak < len(text) * 2


def test_text8_has_the_published_ids():
    case = json.loads((GOLDEN / "text_cases.json").read_text())["text8"]
    text8 = OURS["text8"]
    assert list(text8.pieces) == sorted(case["vocab"], key=case["vocab"].get)
    assert text8.encode(case["text"]) == case["ids"]
    assert (text8.mask, text8.pad, text8.bos, text8.eos) == (4, 5, 2, 3)


def test_decode_shows_hidden_tokens_as_blanks_and_other_specials_only_when_asked():
    ids = [BYTE.bos, *b"hi", BYTE.mask, BYTE.mask, BYTE.eos, BYTE.pad]
    assert BYTE.decode(ids) == f"hi{BLANK}{BLANK}"
    assert BYTE.decode(ids, blank="_", special=True) == "<|endoftext|>hi__<|endoftext|><|pad|>"


def test_decode_takes_lists_arrays_and_tensors():
    for ids in ([104, 105], np.array([104, 105], np.uint16), torch.tensor([104, 105])):
        assert BYTE.decode(ids) == "hi"


def test_decode_refuses_an_id_outside_the_vocabulary():
    for id in (-1, BYTE.size):
        with pytest.raises(UserError, match="outside the tokenizer's vocabulary of 259"):
            BYTE.decode([id])


@pytest.mark.parametrize("kind", OURS)
def test_a_saved_tokenizer_loads_as_itself(kind, tmp_path):
    OURS[kind].save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.fingerprint == OURS[kind].fingerprint
    assert again.encode("atta") == OURS[kind].encode("atta")
    assert Tokenizer.load(tmp_path / "tokenizer.json").fingerprint == again.fingerprint


def test_fingerprints_tell_apart_vocabularies_merges_and_special_ids():
    alike = Tokenizer(BYTE.core, BYTE.mask, None, BYTE.bos, BYTE.eos)
    other = vocabulary.bpe(["zzzz yyyy xxxx"], 300)
    prints = {t.fingerprint for t in [*OURS.values(), alike, other]}
    assert len(prints) == len(OURS) + 2


def test_fingerprints_of_foreign_files_stay_what_prepared_data_and_checkpoints_have_on_record(tmp_path):
    for kind, write in (("gpt2", write_gpt2), ("bert", lambda folder: write_bert(folder, words=["hello", "##s"]))):
        (tmp_path / kind).mkdir()
        write(tmp_path / kind)
    prints = {kind: Tokenizer.load(tmp_path / kind).fingerprint[:16] for kind in ("gpt2", "bert")}
    assert prints == {"gpt2": "011d7c7670548bf0", "bert": "1937ea3e7216a61d"}


def test_gpt2_files_get_a_mask_after_the_last_id(tmp_path):
    write_gpt2(tmp_path)
    gpt2 = Tokenizer.load(tmp_path)
    assert (gpt2.bos, gpt2.eos, gpt2.pad, gpt2.mask, gpt2.size) == (258, 258, None, 259, 260)
    assert gpt2.encode("the") == [257]
    assert gpt2.decode(gpt2.encode(" other <|mask|>")) == " other <|mask|>"


def test_bert_files_keep_their_own_mask(tmp_path):
    write_bert(tmp_path, words=["hello", "world", "##s", "[", "]", "mask"])
    bert = Tokenizer.load(tmp_path)
    assert (bert.mask, bert.pad, bert.bos, bert.eos, bert.size) == (4, 0, 2, 3, 11)
    assert bert.encode("Hello worlds") == [5, 6, 7]
    assert bert.encode("[MASK]") == [8, 10, 9]
    assert bert.decode([2, 5, 4, 7, 3]) == f"hello {BLANK}s"


def test_a_bert_vocabulary_with_capitals_is_not_lowercased(tmp_path):
    write_bert(tmp_path, words=["Hello", "hello"])
    assert Tokenizer.load(tmp_path).encode("Hello hello") == [5, 6]


def test_padding_that_doubles_as_the_mask_is_told_apart(tmp_path):
    BYTE.save(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["mask_token"] = config["pad_token"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    loaded = Tokenizer.load(tmp_path)
    assert (loaded.mask, loaded.pad) == (BYTE.mask, BYTE.pad)
    with pytest.raises(UserError, match="share id 257"):
        Tokenizer(BYTE.core, 257, 257)


def test_a_vocabulary_with_gaps_never_gives_the_mask_an_id_in_use(tmp_path):
    described = json.loads(vocabulary._letterwise(["a", "b"]).to_str())
    described["model"]["vocab"] = {"a": 0, "b": 9}
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    loaded = Tokenizer.load(tmp_path)
    assert loaded.mask == 2
    assert loaded.size == 10
    described["model"]["vocab"] = {"a": 0, "b": 2}
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    with pytest.raises(UserError, match="would share id 2"):
        Tokenizer.load(tmp_path)


def test_truncation_and_padding_written_in_a_file_are_not_obeyed(tmp_path):
    BPE.save(tmp_path)
    described = json.loads((tmp_path / "tokenizer.json").read_text())
    described["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    assert Tokenizer.load(tmp_path).encode("the cat sat") == BPE.encode("the cat sat")


def test_a_path_without_a_tokenizer_is_an_error_that_says_what_was_expected(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        Tokenizer.load(tmp_path / "absent")
    with pytest.raises(UserError, match=r"Expected tokenizer\.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match="cannot read the tokenizer"):
        Tokenizer.load(tmp_path)


def test_an_unknown_kind_is_an_error_with_a_guess():
    with pytest.raises(UserError, match="Did you mean 'character'"):
        vocabulary.build_tokenizer("charcter")


def test_a_person_names_a_kind_or_a_path(tmp_path):
    for name, text in (("train", "aaaa bb"), ("test", "zzzz zzzz")):
        (tmp_path / f"{name}.txt").write_text(text * 50)
    with gather(tmp_path) as sources:
        assert choose("byte", sources).fingerprint == BYTE.fingerprint
        assert set(choose("character", sources).pieces[:-3]) == set("ab z")
        learned = choose("bpe", sources, size=400)
    assert "aaaa" in learned.pieces
    assert not [piece for piece in learned.pieces if "zz" in piece], "learned from the test file"
    learned.save(tmp_path / "saved")
    assert choose(str(tmp_path / "saved"), []).fingerprint == learned.fingerprint
    with pytest.raises(UserError, match="Did you mean 'byte'"):
        choose("bytes", [])


def test_a_mask_is_added_once(tmp_path):
    write_gpt2(tmp_path)
    core = tokenizer_files.gpt2(tmp_path / "vocab.json", tmp_path / "merges.txt")
    assert tokenizer_files.add_mask(core) == 259
    Tokenizer(core, 259).save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").size == 260
