"""A small BERT with random weights, in whose vocabulary the mask is not the last id."""

import torch

from unmask.model.backbone import build
from unmask.model.backbones.bert import BertSpec
from unmask.model.checkpoint import load, save
from unmask.model.model import Model
from unmask.text.tokens.tokenizer import Tokenizer

WORDS = "a and ball big cat dog her his in it man mat old on ran red sat saw the to tree was , . ##s ##ing [unused1]"
PAD, FREE, UNKNOWN, CLS, SEP, MASK = range(6)
SPECIAL = {PAD, FREE, UNKNOWN, CLS, SEP, MASK, 32}  # [unused1] is the last of 33


def small_bert(folder) -> Model:
    special = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join([*special, *WORDS.split()]) + "\n")
    tokenizer = Tokenizer.load(folder)
    torch.manual_seed(0)
    network = build(BertSpec(vocab=tokenizer.size, length=24, width=16, blocks=2, heads=2))
    for parameter in network.parameters():  # not small: specials would be drawn often
        parameter.data.add_(torch.randn(parameter.shape) * 0.3)
    return load(save(folder / "m", network, mask=MASK, objective="mlm", tokenizer=tokenizer))
