"""A folder of a BERT and a file of sentences become a generator with one command, by each objective."""

import json
from random import Random

import numpy as np
import pytest
import torch

from unmask.cli.main import main
from unmask.errors import UserError
from unmask.model.backbone import build
from unmask.model.backbones.bert import BertSpec
from unmask.model.checkpoint import load, save
from unmask.model.convert import convert
from unmask.text.layouts.framed import FramedLayout
from unmask.text.tokens.tokenizer import Tokenizer
from unmask.training.data import open_data, packing, starting_spec
from unmask.training.settings import Text, Train

pytestmark = pytest.mark.slow
WORDS = {
    "who": ["the cat", "a dog", "my friend", "the king", "the girl"],
    "does": ["saw", "liked", "found", "asked"],
    "what": ["the moon", "a ball", "some bread", "the river"],
}


def sentences(count, seed):
    dice = Random(seed)
    return [" ".join(dice.choice(WORDS[part]) for part in ("who", "does", "what")) + " ." for _ in range(count)]


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A BERT with fresh weights, as transformers would keep it: the mask is in the middle of the vocabulary."""
    folder = tmp_path_factory.mktemp("bert")
    words = sorted({word for part in WORDS.values() for some in part for word in some.split()} | {"."})
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join([*special, *words]) + "\n")
    tokenizer = Tokenizer.load(folder)
    torch.manual_seed(0)
    network = build(BertSpec(vocab=tokenizer.size, length=32, width=32, blocks=2, heads=2, pooled=True))
    save(folder / "ours", network, mask=tokenizer.mask, objective="mlm", tokenizer=tokenizer)
    convert(folder / "ours", folder / "hub", to="bert")
    assert json.loads((folder / "hub" / "config.json").read_text())["model_type"] == "bert"
    return folder / "hub"


def unigram_entropy(model, texts):
    """Nats per token of the best guess without any context."""
    ids = np.concatenate([model.tokenizer.encode(text) for text in texts])
    share = np.bincount(ids) / len(ids)
    return float(-(share[share > 0] * np.log(share[share > 0])).sum())


@pytest.mark.parametrize(
    "objective", ["mdlm", *(pytest.param(name, marks=pytest.mark.long) for name in ("mlm", "sedd"))]
)
def test_tuning_on_a_hundred_sentences_beats_the_unigram_entropy(objective, hub, tmp_path, capsys):
    texts, other = sentences(100, 0), sentences(60, 1)
    (tmp_path / "train.txt").write_text("\n".join(texts))
    (tmp_path / "test.txt").write_text("\n".join(other))
    run = tmp_path / "run"
    short = ["--steps", "150", "--optim.batch", "32", "--optim.warmup", "10", "--optim.ema", "0.9"]
    files = ["--data", str(tmp_path / "train.txt"), "--text.documents", "line", "--out", str(run)]
    quiet = ["--run.preview", "0", "--run.eval-every", "150", "--optim.lr", "3e-3", "--objective.name", objective]
    assert main(["train", "--init", str(hub), *files, *short, *quiet]) == 0
    model = load(run)
    assert (model.layout, model.objective.name) == (FramedLayout.packed("padded").on(model.layout.marks), objective)
    assert model.spec.positions == 32
    assert model.spec.length <= 16  # the longest sentence and its frame
    frozen = load(hub).network.state_dict()["pooler.dense.weight"]
    assert torch.equal(model.network.state_dict()["pooler.dense.weight"], frozen)
    capsys.readouterr()
    measured = tmp_path / "bound.json"
    arguments = ["--documents", "line", "--passes", "4", "--out", str(measured)]
    assert main(["evaluate", str(run), str(tmp_path / "test.txt"), *arguments]) == 0
    found = json.loads(measured.read_text())
    assert found["tokens"] == sum(len(model.tokenizer.encode(text)) for text in other)
    assert found["nats_per_token"] + 3 * found["standard_error"] < unigram_entropy(model, texts)


def test_rows_beyond_the_positions_of_a_network_are_refused_before_the_text_is_read(hub, tmp_path, capsys):
    (tmp_path / "train.txt").write_text("\n".join(sentences(100, 0)))
    common = ["--init", str(hub), "--data", str(tmp_path / "train.txt"), "--steps", "1", "--run.preview", "0"]
    assert main(["train", *common, "--length", "64", "--out", str(tmp_path / "a")]) == 2
    said = capsys.readouterr().err
    assert "the network has 32 positions, and a row has 64: shorten the rows (--length 32)" in said
    assert "tokeniz" not in said
    assert not (tmp_path / "a").exists()
    assert main(["train", *common, "--documents", "file", "--out", str(tmp_path / "b")]) == 0
    assert load(tmp_path / "b").spec.length == 32, "of the usual 128, as many as there are positions"


def test_the_rows_of_an_encoder_are_wrapped_or_padded(hub, tmp_path):
    (tmp_path / "train.txt").write_text("\n".join(sentences(100, 0)))
    common = ["--init", str(hub), "--data", str(tmp_path / "train.txt"), "--steps", "1", "--run.preview", "0"]
    assert (
        main(["train", *common, "--text.documents", "file", "--text.length", "20", "--out", str(tmp_path / "a")]) == 0
    )
    assert load(tmp_path / "a").layout.word == "wrap"
    assert main(["train", *common, "--text.pack", "stream", "--out", str(tmp_path / "b")]) == 2
    asked = Train(data="x", out="y", init=str(hub), text=Text(length=20))
    assert starting_spec(asked).framed
    assert packing(asked, tmp_path / "a" / "data") == "wrap"
    with pytest.raises(UserError, match=r"two special tokens.*wrap or padded"):
        open_data(Train(data="x", out="y", init=str(hub), text=Text(length=20, pack="rows")), tmp_path / "a" / "data")
