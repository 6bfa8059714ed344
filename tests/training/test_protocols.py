"""Protocols: each benchmark has its published length, which a protocol's own settings and flags replace."""

from unmask.text.corpus.benchmarks import GENOMIC
from unmask.training.protocols import GUIDE, PROTOCOLS, usual_settings, with_flat
from unmask.training.tuning import Tuning

LENGTHS = {
    "dummy_mouse_enhancers_ensembl": 1024,
    "demo_coding_vs_intergenomic_seqs": 200,
    "demo_human_or_worm": 200,
    "human_enhancers_cohn": 500,
    "human_enhancers_ensembl": 512,
    "human_ensembl_regulatory": 512,
    "human_ocr_ensembl": 512,
    "human_nontata_promoters": 251,
}


def test_every_genomic_benchmark_has_its_published_length():
    assert {one.name: one.length for one in GENOMIC} == LENGTHS
    for name, length in LENGTHS.items():
        for protocol in ("auto", "caduceus", "hyenadna", "mdlm"):
            assert usual_settings(protocol, name)["length"] == length
        assert usual_settings("plain", name) == {}


def test_a_protocol_alone_has_no_length_and_glue_has_its_own():
    assert "length" not in usual_settings("caduceus", "mine.csv")
    assert usual_settings("auto", "SST-2")["length"] == 128


def test_every_setting_of_a_protocol_is_one_of_a_run():
    for protocol in (*PROTOCOLS.values(), GUIDE):
        with_flat(Tuning(), protocol)
