"""Small models for the server's tests: random weights that have an opinion, and a tokenizer."""

from pathlib import Path

import torch

from unmask.model.backbones.transformer import Architecture, Transformer
from unmask.model.checkpoint import load, save
from unmask.model.model import Model
from unmask.text.tokens.tokenizer import Tokenizer
from unmask.text.tokens.vocabulary import byte, character

TEXT = "The quick brown fox jumps over the lazy dog. Once upon a time, there was nothing but masks;\n0123456789"


def network(vocab: int, *, seed: int = 0, **shape: int | bool) -> Transformer:
    """A network whose head is not zero, as it is before training: tokens must depend on their neighbours."""
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    made = Transformer(Architecture(vocab=vocab, **{"length": 48, "width": 32, "blocks": 2, "heads": 2, **shape}))
    torch.nn.init.normal_(made.output_layer.linear.weight, std=0.7)
    torch.random.set_rng_state(state)
    return made


def saved(folder: Path, *, tokenizer: Tokenizer | None = None, objective: str = "mdlm", **shape: int | bool) -> Path:
    tokenizer = tokenizer or character([TEXT])
    made = network(tokenizer.size, **shape)
    return save(folder, made, mask=tokenizer.mask, objective=objective, tokenizer=tokenizer)


def masked(folder: Path) -> Model:
    return load(saved(folder / "masked"))


def causal(folder: Path) -> Model:
    return load(saved(folder / "causal", objective="ar", causal=True, reads_before=True))


def bytewise(folder: Path) -> Model:
    return load(saved(folder / "bytes", tokenizer=byte()))
