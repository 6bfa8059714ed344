"""model.safetensors: names, shapes and types checked before a byte is used; tensors mapped, not copied."""

from hashlib import file_digest
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmask.errors import UserError, unknown
from unmask.model.backbones.attention import Rotary
from unmask.model.backbones.transformer import Architecture, Transformer

PREFIX = "backbone."  # what published files put before every name
FILE = "model.safetensors"
AGAIN = "Copy the file again from where it came from, or save the checkpoint again."
DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
ROTARY = "rotary_emb.inv_freq"  # a constant; files may leave it out


def names_in(path: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """The shape and type of every tensor in a file, without reading them; names without the prefix."""
    if not path.is_file():
        raise UserError(missing(path.parent))
    try:
        with safe_open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            found = {name: (tuple(s.get_shape()), s.get_dtype()) for name, s in slices.items()}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read: it is truncated or damaged ({error}). {AGAIN}") from None
    return {name.removeprefix(PREFIX): what for name, what in found.items()}


def missing(folder: Path) -> str:
    others = sorted(
        path.name for end in ("*.bin", "*.ckpt", "*.pt", "*.pth", "*.index.json") for path in folder.glob(end)
    )
    if others:
        return (
            f"{folder} has no {FILE}, but {', '.join(others)}. Weights are read from one safetensors file only: "
            "pickled files can run code, so convert them with the library that wrote them."
        )
    return f"{folder} has no {FILE}. A checkpoint needs config.json and {FILE}."


def check_names(path: Path, found: dict[str, tuple[tuple[int, ...], str]], a: Architecture, dtype: str) -> None:
    """Refuse a missing, extra, reshaped or differently typed tensor, by name."""
    expected = {name: tuple(tensor.shape) for name, tensor in skeleton(a).state_dict().items()}
    where = f"{path}, for a network of width {a.width}, {a.blocks} blocks, vocabulary {a.vocab}:"
    for name in sorted(expected.keys() - found.keys() - {ROTARY}):
        raise UserError(f"{where} tensor {PREFIX}{name} {list(expected[name])} is missing. {AGAIN}")
    for name in sorted(found.keys() - expected.keys()):
        raise UserError(f"{where} tensor {PREFIX}{name} {list(found[name][0])} does not belong there. {AGAIN}")
    if dtype not in DTYPES:
        raise UserError(f"config.json says torch_dtype = {dtype!r}. Known: {', '.join(DTYPES)}.")
    for name, (shape, seen) in sorted(found.items()):
        if shape != expected[name]:
            raise UserError(
                f"{where} tensor {PREFIX}{name} has shape {list(shape)}, not {list(expected[name])}. {AGAIN}"
            )
        if seen != DTYPES[dtype] and (seen, name) != ("F32", ROTARY):
            raise UserError(
                f"{where} tensor {PREFIX}{name} is {seen}, not {DTYPES[dtype]} (config.json: {dtype}). {AGAIN}"
            )


def skeleton(a: Architecture) -> Transformer:
    """The network without memory for its weights."""
    with torch.device("meta"):
        return Transformer(a)


def read_network(path: Path, a: Architecture) -> Transformer:
    """The network with its weights, which stay in the mapped file until they are used or changed."""
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read: it is truncated or damaged ({error}). {AGAIN}") from None
    state = {name.removeprefix(PREFIX): tensor.to(torch.float32) for name, tensor in tensors.items()}
    state.setdefault(ROTARY, Rotary(a.width // a.heads).inv_freq)
    network = skeleton(a)
    network.load_state_dict(state, assign=True)
    return network.eval()


def write_network(path: Path, network: Transformer, dtype: str = "float32") -> None:
    if dtype not in DTYPES:
        raise unknown("type of weights", dtype, DTYPES)
    state: dict[str, Tensor] = network.state_dict()
    kept = {PREFIX + name: tensor.detach().to("cpu", getattr(torch, dtype)) for name, tensor in state.items()}
    for name, tensor in kept.items():
        if not tensor.isfinite().all():
            raise UserError(f"tensor {name} has values that {dtype} cannot hold, or that are not finite.")
    save_file({name: tensor.contiguous() for name, tensor in kept.items()}, path)


def fingerprint(path: Path) -> str:
    """sha256 of a file."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
