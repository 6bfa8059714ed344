"""The score of a variant is the difference of two likelihoods: by one hidden position, by the bound, or exactly."""

from functools import partial

import numpy as np
import pytest
import torch

from contracts.members import network_of
from unmask.cli.main import main
from unmask.diffusion.bound import exact_bound
from unmask.errors import UserError
from unmask.evaluation.likelihood.variants import Variant, effects, position_probs, read_variants
from unmask.model.backbones.caduceus import CaduceusSpec
from unmask.model.checkpoint import load, save
from unmask.model.model import Model
from unmask.model.passes.whole import logits_at
from unmask.text.tokens import vocabulary

pytestmark = pytest.mark.slow

DNA = vocabulary.dna()
TEXTS = {"one": "ACGGTN", "two": "ggattacaGATTACA"}
VARIANT = Variant("one", 4, "G", "T", "here")


def model_of(folder, *, equivariant: bool = True, objective: str = "mdlm") -> Model:
    network = network_of(CaduceusSpec(vocab=DNA.size, length=6, width=16, blocks=2, equivariant=equivariant))
    return load(save(folder, network, mask=DNA.mask, objective=objective, tokenizer=DNA))


def test_by_pseudo_likelihood_two_letters_are_compared_where_one_position_is_hidden(tmp_path):
    model = model_of(tmp_path / "m", equivariant=False)
    (found,) = effects(model, TEXTS, [VARIANT])
    for ids, at, wanted in ((DNA.encode("ACGGTN"), 3, found.forward), (DNA.encode("NACCGT"), 2, found.reverse)):
        x = torch.tensor([ids])
        x[0, at] = DNA.mask
        with torch.no_grad():
            log_p = logits_at(model.network, x, torch.zeros(1), torch.tensor([at]))[0].log_softmax(0)
        ref, alt = (2, 3) if at == 3 else (1, 0)
        assert wanted == pytest.approx(float(log_p[alt] - log_p[ref]), abs=1e-5)
    assert found.score == pytest.approx((found.forward + found.reverse) / 2)
    assert abs(found.forward - found.reverse) > 1e-3
    probs = position_probs(model, TEXTS["one"])
    assert np.log(probs[3, 3] / probs[3, 2]) == pytest.approx(found.forward, abs=1e-5)


def test_the_two_strands_of_an_equivariant_network_agree(tmp_path):
    (found,) = effects(model_of(tmp_path / "m"), TEXTS, [VARIANT])
    assert found.forward == pytest.approx(found.reverse, abs=1e-6)


def test_by_the_bound_the_difference_is_that_of_the_exact_bounds(tmp_path):
    model = model_of(tmp_path / "m", objective="mlm")
    texts, variant = {"one": "ACGGT"}, VARIANT
    (found,) = effects(model, texts, [variant], by="bound", passes=4000, both=False)
    with torch.no_grad():
        ref, alt = (
            exact_bound(partial(logits_at, model.network), torch.tensor(DNA.encode(text)), mask=DNA.mask)
            for text in ("ACGGT", "ACGTT")
        )
    assert 0 < found.error < 0.1
    assert abs(found.score - float(ref - alt)) < 5 * found.error


@pytest.mark.parametrize(
    ("variant", "told"),
    [
        (VARIANT._replace(ref="A"), "has 'G' at position 4, not 'A'"),
        (VARIANT._replace(position=7), "outside one .1 to 6"),
        (VARIANT._replace(name="ones"), "Did you mean 'one'"),
        (VARIANT._replace(alt="GA"), "not a substitution"),
        (VARIANT._replace(alt="g"), "not a substitution"),
        (VARIANT._replace(alt="N"), "stands for no base"),
        (VARIANT._replace(position=6, ref="N", alt="A"), "stands for no base"),
    ],
)
def test_variants_that_do_not_fit_are_refused(variant, told, tmp_path):
    with pytest.raises(UserError, match=told):
        list(effects(model_of(tmp_path / "m"), TEXTS, [variant]))


def test_variants_are_read_from_tables_and_from_the_command_line(tmp_path):
    vcf, table = tmp_path / "a.vcf", tmp_path / "a.csv"
    vcf.write_text("##fileformat=VCFv4.2\n#CHROM\tPOS\tID\tREF\tALT\tINFO\none\t4\t.\tG\tT\tAF=0.1,0.2\n")
    table.write_text("name,position,ref,alt\none,4,G,T\n")
    wanted = [("one", 4, "G", "T")]
    for what in (str(vcf), str(table), "one:G4T"):
        found = read_variants(what, ["one", "two"])
        assert ([one[:4] for one in found.variants], found.line) == (wanted, "")
    with pytest.raises(UserError, match="which of the 2 sequences"):
        read_variants("G4T", ["one", "two"])
    with pytest.raises(UserError, match="neither a file nor a variant"):
        read_variants("none.vcf", ["one"])
    table.write_text("name,position,alt\none,4,T\n")
    with pytest.raises(UserError, match="needs the columns CHROM"):
        read_variants(str(table), ["one"])


def test_lines_that_are_no_substitutions_are_skipped_and_counted(tmp_path):
    path, head = tmp_path / "a.vcf", "#CHROM\tPOS\tID\tREF\tALT\n"
    others = "one\t1\t.\tAC\tA\none\t2\t.\tC\tA,G\none\t3\t.\tG\t<DEL>\none\t3\t.\tG\t.\n"
    path.write_text(head + others + "one\t4\t.\tG\tT\n")
    found = read_variants(str(path), ["one"])
    assert [one.position for one in found.variants] == [4]
    assert found.line.startswith(
        "4 lines were skipped (2 insertions, deletions or longer, 1 with several alternatives, 1 without an alter"
    )
    path.write_text(head + others)
    with pytest.raises(UserError, match=r"a\.vcf holds no variant: 4 lines were skipped"):
        read_variants(str(path), ["one"])


@pytest.mark.slow
def test_the_verb_says_what_was_skipped_and_replaced(tmp_path, capsys):
    model_of(tmp_path / "m")
    (tmp_path / "a.fa").write_text(">one\nACGGTR\n>two\nYYY\n")
    (tmp_path / "a.vcf").write_text("#CHROM\tPOS\tID\tREF\tALT\none\t4\t.\tG\tT\none\t1\t.\tAC\tA\n")
    assert main(["variants", *(str(tmp_path / name) for name in ("m", "a.fa", "a.vcf"))]) == 0
    said = capsys.readouterr().err
    assert "a.vcf: 1 line was skipped" in said
    assert "warning: 1 letters that the vocabulary does not have were replaced (R as N: 1)" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    "objective, logo, told",
    [
        ("mdlm", "l.xyz", "l.xyz is not a picture: its name must end in .png, .svg, .pdf"),
        ("mdlm", "none/l.png", "there is no folder"),
        ("sedd", "l.png", "a logo needs a model that sees both sides"),
    ],
)
def test_a_logo_that_cannot_be_drawn_is_refused_before_anything_is_computed(objective, logo, told, tmp_path, capsys):
    model_of(tmp_path / "m", objective=objective)
    (tmp_path / "a.fa").write_text(">one\nACGGTN\n")
    line = ["variants", str(tmp_path / "m"), str(tmp_path / "a.fa"), "G4T", "--out", str(tmp_path / "t.tsv")]
    assert main([*line, "--logo", str(tmp_path / logo)]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "t.tsv").exists()


@pytest.mark.slow
def test_the_verb_writes_a_table_and_a_logo(tmp_path, capsys):
    model_of(tmp_path / "m")
    (tmp_path / "a.fa").write_text(">one x\nACGG\nTN\n")
    line = ["variants", str(tmp_path / "m"), str(tmp_path / "a.fa"), "G4T,one:A1C", "--logo", str(tmp_path / "l.png")]
    assert main(line) == 0
    head, first, _ = capsys.readouterr().out.splitlines()
    assert head.split("\t")[:5] == ["name", "position", "ref", "alt", "score"]
    assert first.split("\t")[:4] == ["one", "4", "G", "T"]
    assert (tmp_path / "l.png").stat().st_size > 1000
    (tmp_path / "a.fa").write_text(">one x\nACGGTN\n>one y\nACGCTN\n")
    assert main(line) == 2
    assert "two sequences of" in capsys.readouterr().err


@pytest.mark.parametrize("position", ["9" * 5000, "²", "-1", "1.5", ""])
def test_a_position_that_is_no_number_or_a_huge_one_is_refused_in_words(tmp_path, position):
    (tmp_path / "v.vcf").write_text(f"#CHROM\tPOS\tREF\tALT\none\t{position}\tA\tC\n")
    with pytest.raises(UserError, match="is not a variant"):
        read_variants(str(tmp_path / "v.vcf"), ["one"])


def test_a_vocabulary_of_words_is_refused_even_where_it_happens_to_cut_into_letters(tmp_path):
    words = vocabulary.bpe(["the cat sat on the mat"] * 9, 270)
    network = network_of(CaduceusSpec(vocab=words.size, length=6, width=16, blocks=1, equivariant=False))
    model = load(save(tmp_path / "m", network, mask=words.mask, tokenizer=words))
    assert len(words.encode(TEXTS["one"])) == len(TEXTS["one"])
    with pytest.raises(UserError, match="one token per letter"):
        list(effects(model, TEXTS, [VARIANT]))


def test_a_genome_is_no_protein(tmp_path):
    protein = vocabulary.protein()
    network = network_of(CaduceusSpec(vocab=protein.size, length=6, width=16, blocks=1, equivariant=False))
    model = load(save(tmp_path / "m", network, mask=protein.mask, tokenizer=protein))
    with pytest.raises(UserError, match="they are DNA"):
        list(effects(model, {"one": "ACGGT" * 100}, [VARIANT]))
