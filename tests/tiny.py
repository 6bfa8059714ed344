"""Checkpoints that cost nothing: a small transformer with random weights over a few letters, every objective."""

import torch
from torch import nn

from unmask.model.backbones.transformer import Architecture, Transformer
from unmask.model.checkpoint import load, save
from unmask.model.model import Model
from unmask.text.tokens.tokenizer import Tokenizer
from unmask.text.tokens.vocabulary import character

LETTERS = "abcdefgh .,\n"
LENGTH = 12


def checkpoint(folder, *, objective="mdlm", tokenizer: bool | Tokenizer = True, spare=0, timed=False):
    """Write a checkpoint; `spare` ids stand for no token; a `timed` network is told the noise level."""
    letters = tokenizer if isinstance(tokenizer, Tokenizer) else character([LETTERS])
    ar, timed = objective == "ar", timed or objective == "sedd"
    architecture = Architecture(
        vocab=letters.size + spare,
        length=LENGTH,
        width=16,
        blocks=1,
        heads=2,
        cond=8 if timed else 0,
        time_conditioning=timed,
        causal=ar,
        reads_before=ar,
    )
    generator = torch.Generator().manual_seed(1)
    with torch.random.fork_rng():  # whatever was drawn before, the same network
        torch.manual_seed(1)
        network = Transformer(architecture)
    for parameter in network.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.6, generator=generator)
    return save(folder, network, mask=letters.mask, objective=objective, tokenizer=letters if tokenizer else None)


def model(folder, **options) -> Model:
    return load(checkpoint(folder, **options))
