"""k-mer spectra against their definition; samples of the held-out text itself are at the floor, others above it."""

import json
import random
from collections import Counter
from math import log2

import pytest

from unmask.cli.main import main
from unmask.errors import UserError
from unmask.evaluation.quality.kmers import assess_sequences, kmer_codes, spectrum_divergence

pytestmark = pytest.mark.slow


def test_codes_tell_k_mers_apart_and_leave_other_letters_out():
    texts = ["ACGTACGA", "AC", "ACNGT"]
    codes = Counter(kmer_codes(texts, 3, "ACGT").tolist())
    grams = Counter(text[i : i + 3] for text in texts for i in range(len(text) - 2) if "N" not in text[i : i + 3])
    assert sorted(codes.values()) == sorted(grams.values())


def test_the_divergence_is_its_definition():
    one, other = kmer_codes(["AAC"], 1, "ACGT"), kmer_codes(["ACCG"], 1, "ACGT")
    p, q = {"A": 2 / 3, "C": 1 / 3, "G": 0.0}, {"A": 1 / 4, "C": 1 / 2, "G": 1 / 4}
    wanted = sum(
        (share * log2(share / ((p[letter] + q[letter]) / 2)) if share else 0.0) / 2
        for side in (p, q)
        for letter, share in side.items()
    )
    assert spectrum_divergence(one, other) == pytest.approx(wanted)
    assert spectrum_divergence(one, one) == pytest.approx(0, abs=1e-12)
    assert spectrum_divergence(one, kmer_codes(["GGG"], 1, "ACGT")) == pytest.approx(1)


def test_real_pieces_are_at_the_floor_and_shuffled_ones_above_it():
    dice = random.Random(0)
    text = "".join(dice.choice(["ACGGT", "TTAGC", "GATTACA"]) for _ in range(6000))
    pieces = [text[i : i + 200] for i in range(0, 12_000, 200)]
    shuffled = ["".join(dice.sample(piece, len(piece))) for piece in pieces]
    real, mixed = (assess_sequences(some, [text], k=4) for some in (pieces, shuffled))
    assert real["spectra"][3]["divergence"] < 2 * real["spectra"][3]["floor"]
    assert mixed["spectra"][3]["divergence"] > 10 * mixed["spectra"][3]["floor"]
    assert mixed["spectra"][0]["divergence"] == pytest.approx(real["spectra"][0]["divergence"])
    assert sum(one["samples"] for one in real["composition"].values()) == pytest.approx(1)


def test_no_k_mer_goes_across_a_line_and_no_line_break_is_a_letter():
    apart = assess_sequences(["ACGT", "ACGT", "TTTT"], ["ACGT", "TTGA"], k=2)
    joined = assess_sequences(["ACGT\nACGT", "TTTT"], ["ACGT\nTTGA\n"], k=2)
    assert apart == joined
    assert set(joined["composition"]) == set("ACGT")


def test_lower_case_is_another_atom_in_smiles_and_the_same_base_in_dna():
    smiles = assess_sequences(["c1ccccc1", "CCO"], ["CC=O", "c1ccccc1"], k=1)
    assert {"c", "C"} <= set(smiles["composition"])
    assert smiles["upper_case"] is False
    assert set(assess_sequences(["acgt", "ACGT"], ["ACgt"], k=1)["composition"]) == set("ACGT")


def test_samples_in_fasta_are_read_and_the_split_of_prepared_data_is_named(tmp_path, capsys):
    samples, data = tmp_path / "s.fa", tmp_path / "data"
    samples.write_text(">a\nACGT\nACGT\n>b\nACGG\n")
    data.mkdir()
    for split, text in (("train", "AAAA" * 9), ("valid", "CCCC" * 9), ("test", "GGGG" * 9)):
        (data / f"{split}.fa").write_text(f">{split}\n{text}\n")
    assert main(["prepare", str(data), "--tokenizer", "dna", "--out", str(tmp_path / "p")]) == 0
    for where in (data, tmp_path / "p"):
        for more, split, letter in ([], "valid", "C"), (["--split", "test"], "test", "G"):
            capsys.readouterr()
            assert main(["quality", str(samples), "--kmers", "2", "--train", str(where), "--json", *more]) == 0
            found = json.loads(capsys.readouterr().out)
            assert (found["split"], found["letters"], found["samples"]) == (split, 12, 2)
            assert found["composition"][letter]["held_out"] == 1.0


def test_too_little_to_compare_is_refused():
    with pytest.raises(UserError, match="give them with --train"):
        assess_sequences(["ACGT", "AC"], [], k=2)
    with pytest.raises(UserError, match="at least 2 samples"):
        assess_sequences(["ACGT"], ["ACGT"], k=2)
    with pytest.raises(UserError, match="--kmers must be"):
        assess_sequences(["ACGT", "ACGT"], ["ACGT"], k=40)


@pytest.mark.slow
def test_the_verb_compares_samples_with_a_fasta_file(tmp_path, capsys):
    samples, real = tmp_path / "s.jsonl", tmp_path / "r.fa"
    samples.write_text("".join(json.dumps({"text": "ACGT" * 20}) + "\n" for _ in range(3)))
    real.write_text(">a\n" + "ACGT" * 400 + "\n")
    assert main(["quality", str(samples), "--kmers", "3", "--train", str(real)]) == 0
    said = capsys.readouterr().out
    assert "3-mers" in said
    assert "0.667 of the samples" in said
