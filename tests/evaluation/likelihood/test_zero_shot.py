"""Detokenizers as recorded, and the suite's texts found where the layout says."""

import json
import lzma
from pathlib import Path

import pytest

from unmask.errors import UserError
from unmask.evaluation.likelihood.zero_shot import SUITE, chosen_sets, set_texts
from unmask.text.corpus.detokenize import DETOKENIZERS, detokenizer

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "detokenizers.json").read_text())["detokenizers"]


def test_every_detokenizer_of_the_reference_is_recorded():
    assert GOLDEN.keys() == DETOKENIZERS.keys() - {"letters"}  # ours: tests/text/corpus/test_detokenize.py


@pytest.mark.parametrize("name", GOLDEN)
def test_detokenizers_do_what_the_reference_does(name):
    for before, after in GOLDEN[name]:
        assert detokenizer(name)(before) == after


def test_no_detokenizer_leaves_text_alone_and_an_unknown_one_is_refused():
    assert detokenizer("none")(" a  b ") == " a  b "
    with pytest.raises(UserError, match="Did you mean 'wikitext'"):
        detokenizer("wikitxt")


@pytest.fixture
def root(tmp_path) -> Path:
    """A data root with a little of everything."""
    files = {
        "ptb/ptb.valid.txt": " he did n't pay $ N \n the <unk> 's end \n",
        "wikitext2/wiki.valid.tokens": "\n = Title = \n\n It was 1 @.@ 5 m . \n",
        "lm1b_subset/1b_benchmark.test.tokens": "It 's late .\n",
        "lambada/lambada_test.jsonl": '{"text": "\\u201cYes\\u201d, he said"}\n',
        "ag_news/test.csv": '"3","A title","Its ""text"""\n',
        "scientific/ori_pqal.json": '{"1": {"CONTEXTS": ["One .", "Two ."], "LONG_ANSWER": "Three ."}}',
    }
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    with lzma.open(tmp_path / "scientific" / "arxiv_abstracts.csv.xz", "wt") as file:
        file.write('source,title,abstract\narxiv,T,"We, too ."\n')
    return tmp_path


EXPECTED = {
    "ptb": (["he didn't pay $ N", "the ?'s end"], False),
    "wikitext": (["", " = Title =\n", "", " It was 1.5 m.\n"], True),
    "lm1b": (["It's late."], True),
    "lambada": (['\n"Yes", he said'], False),
    "ag_news": (['A title Its "text"'], False),
    "pubmed": (["One. Two. Three."], True),
    "arxiv": (["We, too."], True),
}


@pytest.mark.parametrize("one", SUITE, ids=lambda one: one.name)
def test_a_local_folder_gives_each_set_detokenized_and_says_where_it_is_not_the_papers(one, root):
    found, source, differs = set_texts(one, root)
    expected, other = EXPECTED[one.name]
    assert list(found) == expected
    assert bool(differs) == other
    assert source.split("/")[0] in {"ptb", "wikitext2", "lm1b_subset", "lambada", "ag_news", "scientific"}


def test_the_papers_own_file_is_preferred(root):
    (root / "wikitext2" / "wiki.valid.raw").write_text("raw\n")
    found, source, differs = set_texts(chosen_sets(("wikitext",))[0], root)
    assert (list(found), source, differs) == (["raw\n"], "wikitext2/wiki.valid.raw", "")


def test_without_a_root_the_usual_one_is_searched_before_the_hub(root, monkeypatch):
    monkeypatch.setenv("UNMASK_DATA", str(root))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    ptb = chosen_sets(("ptb",))[0]
    assert set_texts(ptb, None)[1] == "ptb/ptb.valid.txt"
    (root / "ptb" / "ptb.valid.txt").unlink()
    with pytest.raises(UserError, match=r"cannot read the data set 'hf:ptb-text-only.*Put ptb/ptb.valid.txt into"):
        set_texts(ptb, None)


def test_what_is_missing_or_damaged_is_said(root, tmp_path):
    with pytest.raises(UserError, match="no text of the suite is called 'ptbb'"):
        chosen_sets(("ptbb",))
    (root / "ptb" / "ptb.valid.txt").unlink()
    with pytest.raises(UserError, match="holds no file for ptb"):
        set_texts(chosen_sets(("ptb",))[0], root)
    with pytest.raises(UserError, match="there is no folder"):
        set_texts(SUITE[0], tmp_path / "nowhere")
    (root / "scientific" / "ori_pqal.json").write_text('{"1": {}}')
    with pytest.raises(UserError, match="not PubMedQA"):
        list(set_texts(chosen_sets(("pubmed",))[0], root)[0])
    (root / "ag_news" / "test.csv").write_text('"3","only a title"\n')
    with pytest.raises(UserError, match="has 2 columns, not 3"):
        list(set_texts(chosen_sets(("ag_news",))[0], root)[0])
