"""Networks and recorded values of the reference implementation, from tests/golden."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmask.model.backbones.transformer import Architecture, Transformer

FOLDER = Path(__file__).parent.parent / "golden"
STRIDE = 53  # of gradients and trained weights every 53rd element is kept


def arrays_of(path: Path) -> dict[str, Tensor]:
    with np.load(path) as arrays:
        return {key: torch.as_tensor(arrays[key]) for key in arrays.files}


def recorded(name: str) -> dict[str, Tensor]:
    """The inputs and outputs recorded for one network."""
    return arrays_of(FOLDER / f"{name}_network.npz")


def weights(name: str) -> dict[str, Tensor]:
    return {key.removeprefix("backbone."): w for key, w in load_file(FOLDER / f"{name}.safetensors").items()}


def config(name: str) -> dict:
    with safe_open(FOLDER / f"{name}.safetensors", "pt") as file:
        return json.loads(file.metadata()["config"])


def architecture(name: str, **changes) -> Architecture:
    c = config(name)
    causal = c.get("causal", False)
    found = Architecture(
        vocab=c["vocab_size"],
        length=c["length"],
        width=c["hidden_size"],
        blocks=c["n_blocks"],
        heads=c["n_heads"],
        cond=0 if causal else c["cond_dim"],
        causal=causal,
    )
    return replace(found, **changes)


def network(name: str, **changes) -> Transformer:
    """The recorded network, in evaluation mode."""
    made = Transformer(architecture(name, **changes))
    made.load_state_dict(weights(name))
    return made.eval()


def distance(a: Tensor, b: Tensor) -> float:
    return (a.double() - b.double()).abs().max().item()


def dna_folder(name: str, folder: Path, *, without: Callable[[str], bool] = lambda key: False) -> Path:
    """A recorded DNA network as its authors publish it: config.json and model.safetensors."""
    path = FOLDER / "dna" / f"{name}.safetensors"
    with safe_open(path, "pt") as file:
        described = file.metadata()["config"]
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(described)
    save_file({key: w for key, w in load_file(path).items() if not without(key)}, folder / "model.safetensors")
    return folder


def dna_cases(name: str) -> dict[str, Tensor]:
    return arrays_of(FOLDER / "dna" / f"{name}_cases.npz")


def dna_gradients(name: str) -> dict[str, Tensor]:
    return load_file(FOLDER / "dna" / f"{name}_grads.safetensors")


def relative(a: Tensor, b: Tensor) -> float:
    """The largest difference relative to 1 + |recorded|."""
    assert a.shape == b.shape
    return ((a.double() - b.double()).abs() / (1 + b.double().abs())).max().item()
