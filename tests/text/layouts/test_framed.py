"""A text between the special tokens of an encoder has the ids that the tokenizer of transformers gives it."""

import json

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from unmask.text.layout import Marks
from unmask.text.layouts.framed import FramedLayout
from unmask.text.row import Role
from unmask.text.tokens import tokenizer as ours

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow
TEXTS = ["The cat sat on the mat.", "Unbelievable, isn't it?  Ünïcödé", "", "a b", "[CLS] is text"]
WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "mat",
    "un",
    "##bel",
    "##ie",
    "##va",
    "##ble",
    "isn",
    "t",
    "it",
    ".",
    ",",
    "'",
    "?",
    "a",
    "b",
    "unicode",
    "[",
    "]",
    "cl",
    "##s",
    "is",
    "text",
]


def framed(folder, text):
    found = ours.Tokenizer.load(folder)
    return FramedLayout().on(Marks.of(found)).part(found.encode(text)).tokens.tolist()


def theirs(peer, text):
    """Special names inside a text are plain text for us, so they are for the peer."""
    return peer(text, split_special_tokens=True)["input_ids"]


def test_special_tokens_are_marks_wherever_they_stand():
    row = FramedLayout().on(Marks(5, 6, 0)).part([7, 0])
    assert row.tokens.tolist() == [5, 7, 0, 6]
    assert row.roles.tolist() == [Role.MARK, Role.FREE, Role.MARK, Role.MARK]


def test_wordpieces_are_those_of_bert(tmp_path):
    special = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (tmp_path / "vocab.txt").write_text("\n".join([*special, *WORDS]) + "\n")
    peer = transformers.BertTokenizerFast.from_pretrained(tmp_path)
    for text in TEXTS[:4]:
        assert framed(tmp_path, text) == theirs(peer, text)
    peer.save_pretrained(tmp_path / "saved")
    for text in TEXTS[:4]:
        assert framed(tmp_path / "saved", text) == theirs(peer, text)
    found = ours.Tokenizer.load(tmp_path / "saved")
    assert (found.mask, found.pad, found.bos, found.eos) == (5, 0, 3, 4)


KINDS = {
    "byte-level": (models.BPE(), trainers.BpeTrainer, ("<s>", "</s>", "<pad>", "<unk>", "<mask>")),
    "sentencepiece": (models.Unigram(), trainers.UnigramTrainer, ("[CLS]", "[SEP]", "<pad>", "<unk>", "[MASK]")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokenizers_of_roberta_modernbert_and_albert_are_read_from_tokenizer_json(kind, tmp_path):
    model, trainer, (first, last, pad, unknown, mask) = KINDS[kind]
    core = Tokenizer(model)
    if kind == "byte-level":
        core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        options = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    else:
        core.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents()])
        core.pre_tokenizer, core.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        options = {"unk_token": unknown}
    special = [AddedToken(name, special=True, normalized=False) for name in (first, pad, last, unknown)]
    core.train_from_iterator(
        TEXTS * 20, trainer(vocab_size=300, special_tokens=special, show_progress=False, **options)
    )
    core.add_special_tokens([AddedToken(mask, special=True, normalized=False)])
    ids = [(name, core.token_to_id(name)) for name in (first, last)]
    core.post_processor = processors.TemplateProcessing(single=f"{first} $A {last}", special_tokens=ids)
    named = {"cls_token": first, "sep_token": last, "pad_token": pad, "unk_token": unknown, "mask_token": mask}
    peer = transformers.PreTrainedTokenizerFast(tokenizer_object=core, **named)
    peer.save_pretrained(tmp_path)
    for text in TEXTS:
        assert framed(tmp_path, text) == theirs(peer, text)
    found = ours.Tokenizer.load(tmp_path)
    assert found.pieces[found.mask] == mask
    assert found.mask == peer.mask_token_id


def test_amino_acids_are_those_of_esm(tmp_path):
    words = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    peer = transformers.EsmTokenizer(str(tmp_path / "vocab.txt"))
    peer.save_pretrained(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())["tokenizer_class"] == "EsmTokenizer"
    for text in ("MKTAYIAK", "M K T", "MJK", "mk", "GG-L."):
        assert framed(tmp_path / "saved", text) == peer(text)["input_ids"]
    found = ours.Tokenizer.load(tmp_path / "saved")
    assert (found.mask, found.pad, found.bos, found.eos) == (32, 1, 0, 2)
    assert found.decode(found.encode("MKTAYIAK")) == "MKTAYIAK"
