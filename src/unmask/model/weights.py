"""Weights on disk: safetensors, whole or in shards; names, shapes and types are checked before use."""

import re
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmask.errors import UserError, unknown
from unmask.files import fingerprint
from unmask.model.backbone import Backbone, Spec, skeleton
from unmask.model.gguf_file import SUFFIX, read_header, tensors_of, type_name
from unmask.untrusted import read_object

FILE = "model.safetensors"
UPDATES = "adapter_model.safetensors"  # of an adapter, whose base is elsewhere
INDEX = "model.safetensors.index.json"  # for weights in several files
AGAIN = "Copy the file again from where it came from, or save the checkpoint again."
SHARD = re.compile(r"[\w-][\w.-]{0,200}\.safetensors")
DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}

Tensors = dict[str, tuple[tuple[int, ...], str]]  # shape and type of each tensor


def files_of(folder: Path) -> dict[Path, list[str] | None]:
    """The files of a folder's weights, each with the tensors it must hold; None: any."""
    if folder.suffix == SUFFIX:
        return {folder: None}
    if (folder / FILE).is_file():
        return {folder / FILE: None}
    path = folder / INDEX
    if not path.is_file():
        raise UserError(missing(folder))
    places = read_object(path).get("weight_map")
    if not isinstance(places, dict):
        raise UserError(f"{path} is damaged: it has no weight_map. {AGAIN}")
    wanted: dict[Path, list[str] | None] = {}
    for tensor, name in places.items():
        if not isinstance(name, str) or not SHARD.fullmatch(name):
            raise UserError(f"{path} points to {name!r:.60}: shards must be safetensors files in the same folder.")
        held = wanted.setdefault(folder / name, [])
        assert held is not None
        held.append(tensor)
    lost = [file.name for file in wanted if not file.is_file()]
    if lost:
        raise UserError(f"{folder} lacks {', '.join(sorted(lost))}, which {INDEX} names. {AGAIN}")
    return wanted


def tensors_in(folder: Path) -> Tensors:
    """The shape and type of every tensor of a folder or a GGUF file, without reading them."""
    if folder.suffix == SUFFIX:
        return {name: (entry.shape, type_name(entry.kind)) for name, entry in read_header(folder).tensors.items()}
    tensors: Tensors = {}
    for path, wanted in files_of(folder).items():
        try:
            with safe_open(path, "pt") as file:
                slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
                here = {name: (tuple(s.get_shape()), s.get_dtype()) for name, s in slices.items()}
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path} cannot be read: it is truncated or damaged ({error}). {AGAIN}") from None
        if wanted is not None and set(wanted) != here.keys():
            strange = sorted(set(wanted) ^ here.keys())[0]
            raise UserError(f"{path} and {INDEX} do not agree on the tensor {strange}. {AGAIN}")
        tensors |= here
    return tensors


def missing(folder: Path) -> str:
    others = sorted(
        path.name for end in ("*.bin", "*.ckpt", "*.pt", "*.pth", "*.index.json") for path in folder.glob(end)
    )
    if others:
        return (
            f"{folder} has no {FILE}, but {', '.join(others)}. Weights are read from safetensors files only: "
            "pickled files can run code, so convert them with the library that wrote them."
        )
    return f"{folder} has no {FILE}. A checkpoint needs config.json and {FILE}."


def check_tensors(
    where: Path,
    there: Tensors,
    expected: Mapping[str, tuple[int, ...]],
    spec: Spec,
    dtype: str,
    *,
    spare: frozenset[str],
) -> None:
    """Refuse a missing, extra, reshaped or differently typed tensor, by name; `spare` tensors may be missing.

    `dtype`: empty, if each tensor may have its own type.
    """
    which = f"{where}, for a {spec.name} of width {spec.width}, vocabulary {spec.vocab}:"
    for name in sorted(expected.keys() - there.keys() - spare):
        raise UserError(f"{which} tensor {name} {list(expected[name])} is missing. {AGAIN}")
    for name in sorted(there.keys() - expected.keys()):
        raise UserError(f"{which} tensor {name} {list(there[name][0])} does not belong there. {AGAIN}")
    if dtype and dtype not in DTYPES:
        raise UserError(f"config.json says torch_dtype = {dtype!r}. Known: {', '.join(DTYPES)}.")
    for name, (shape, seen) in sorted(there.items()):
        if shape != expected[name]:
            raise UserError(f"{which} tensor {name} has shape {list(shape)}, not {list(expected[name])}. {AGAIN}")
        if not dtype and seen not in DTYPES.values():
            raise UserError(f"{which} tensor {name} is {seen}: unmask reads {', '.join(DTYPES.values())}.")
        if dtype and seen != DTYPES[dtype] and not (seen == "F32" and name in spare):
            raise UserError(f"{which} tensor {name} is {seen}, not {DTYPES[dtype]} (config.json: {dtype}). {AGAIN}")


def read_tensors(
    folder: Path, unpacked: Callable[[str, Tensor], Mapping[str, Tensor]] | None = None, *, stored: bool = False
) -> dict[str, Tensor]:
    """The tensors of a folder, memory-mapped until they are used or changed, in float32, or `stored`: as they are."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in tensors_of(folder) if folder.suffix == SUFFIX else safe_tensors(folder):
        for known, part in ({name: tensor} if unpacked is None else unpacked(name, tensor)).items():
            tensors[known] = part if stored else part.to(torch.float32)
    return tensors


def safe_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a folder, memory-mapped, one after the other."""
    for path in files_of(folder):
        try:
            tensors = load_file(path)
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path} cannot be read: it is truncated or damaged ({error}). {AGAIN}") from None
        for name in list(tensors):
            yield name, tensors.pop(name)


def with_weights(spec: Spec, tensors: Mapping[str, Tensor], *, fresh: str = "") -> Backbone:
    """The network with weights `backbone.*`; constants missing from the file are computed.

    Tensors whose names begin with `fresh` have the initial weights of a new network, the same each time.
    """
    network = skeleton(spec)
    state = {name.removeprefix("backbone."): w for name, w in tensors.items() if name.startswith("backbone.")}
    for copy, name in network.copies.items():
        tied = state.pop(copy, None)
        if tied is not None and not torch.equal(state.setdefault(name, tied), tied):
            raise UserError(f"the tensors {copy} and {name} differ, but the config says that they are tied. {AGAIN}")
    lacking = network.state_dict().keys() - state.keys()
    if lacking:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            whole = spec.network(spec).state_dict()
        new = {name for name in lacking if fresh and f"backbone.{name}".startswith(fresh)}
        state |= {name: whole[name] for name in lacking & network.constants | new}
    network.load_state_dict(state, assign=True)
    return network.eval()


def write_tensors(path: Path, tensors: Mapping[str, Tensor], dtype: str = "float32") -> None:
    if dtype not in DTYPES:
        raise unknown("type of weights", dtype, DTYPES)
    contiguous = {
        name: tensor.detach().to("cpu", getattr(torch, dtype) if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in tensors.items()
    }
    for name, tensor in contiguous.items():
        if not tensor.isfinite().all():
            raise UserError(f"tensor {name} has values that are out of range for {dtype}, NaN or infinite.")
    save_file({name: tensor.contiguous() for name, tensor in contiguous.items()}, path)


def weights_fingerprint(folder: Path) -> str:
    """sha256 of a folder's weights: of the file, or of the sha256 of its shards in the order of their names."""
    if (folder / UPDATES).is_file() and not (folder / "config.json").exists():
        return fingerprint(folder / UPDATES)
    files = sorted(files_of(folder))
    if len(files) == 1:
        return fingerprint(files[0])
    return sha256("".join(fingerprint(path) for path in files).encode()).hexdigest()
