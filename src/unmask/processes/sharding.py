"""Tensors sharded over processes (FSDP2): shard a network, read parts and wholes, write and read files.

`local` and `whole` accept ordinary tensors too, so that callers need not distinguish them. The files are safetensors,
written and read by torch.distributed.checkpoint: any number of processes can read what any other number wrote, and
whole files too.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeGuard, runtime_checkable

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from unmask.errors import UserError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

SHARDS = "shard-*.safetensors"  # the library's file names, one file per process


@runtime_checkable
class Layered(Protocol):
    """A module that names its layers."""

    @property
    def units(self) -> list[nn.Module]:
        """The layers, in order."""


def shard(network: Layered, device: torch.device) -> None:
    """Shard a network in place, by layers: a process keeps its part and gathers each layer only while it runs."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    # A block's result is a view of a product, which FSDP warns about; nothing is ever written into it.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    # Reshard the parameters outside the layers too: gathered ones would be stale after a change of the weights.
    for unit in network.units:
        fully_shard(unit, mesh=mesh, reshard_after_forward=True)
    fully_shard(network, mesh=mesh, reshard_after_forward=True)  # type: ignore[call-overload]


def is_sharded(tensor: Tensor) -> TypeGuard["DTensor"]:
    return hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """This process's part, in the same memory; an ordinary tensor is its own part."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor; all processes must call this."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A tensor that all processes have, sharded like another; whole if that one is an ordinary tensor."""
    if not is_sharded(like):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)


def write_shards(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the parts of all processes into a folder and sync it; all processes must call this."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    try:
        save(dict(tensors), storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
    except CheckpointException as error:
        first, _ = next(iter(error.failures.values()))
        if not isinstance(first, OSError):
            raise first from None
        raise UserError(f"could not write {folder}: {first}. Nothing was changed.") from None


def read_shards(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fill the tensors, parts or wholes, from the safetensors files of a folder."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    try:
        with warnings.catch_warnings(action="ignore"):  # it warns about a single process
            load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(folder)))
    except (CheckpointException, SafetensorError, OSError, RuntimeError) as error:
        first = next(iter(error.failures.values()))[0] if isinstance(error, CheckpointException) else error
        raise UserError(f"{folder} cannot be resumed: {first}.") from None
