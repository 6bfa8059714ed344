"""Checkpoints that cost nothing: a small transformer with random weights over a few letters, every objective."""

import torch
from torch import nn

from unmask.model.checkpoint import Model, load, save
from unmask.model.transformer import Architecture, Transformer
from unmask.text.vocabulary import character

LETTERS = "abcdefgh .,\n"
LENGTH = 12


def checkpoint(folder, *, objective="mdlm", tokenizer=True, spare=0):
    """Write a checkpoint; `spare` ids of the network stand for no token."""
    letters = character([LETTERS])
    ar, sedd = objective == "ar", objective == "sedd"
    architecture = Architecture(
        vocab=letters.size + spare,
        length=LENGTH,
        width=16,
        blocks=1,
        heads=2,
        cond=8 if sedd else 0,
        time_conditioning=sedd,
        causal=ar,
        reads_before=ar,
    )
    generator = torch.Generator().manual_seed(1)
    network = Transformer(architecture)
    for parameter in network.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.6, generator=generator)
    return save(folder, network, mask=letters.mask, objective=objective, tokenizer=letters if tokenizer else None)


def model(folder, **options) -> Model:
    return load(checkpoint(folder, **options))
