"""Team: the one place that knows how many processes there are.

One process is `Alone`. Under torchrun there are `Many`, which share the rows of each batch and stay in step: each
has the whole network and they average gradients (ddp), or each has a part of it (fsdp). In a step processes wait for
each other only a short time, so that a dead process is noticed. For what rank 0 does alone, such as tokenizing or
writing, they poll the store as long as it takes.
"""

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from unmask.errors import UserError
from unmask.processes import sharding
from unmask.processes.device import device_of

T = TypeVar("T")
Way = Literal["ddp", "fsdp"]
GATHERING = timedelta(minutes=10)  # for all processes to join
LOOKING = timedelta(seconds=5)  # between two checks whether rank 0 is done
BROKEN = ("gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe", "Socket")


class Lost(UserError):
    """Another process has died or does not answer."""


class Told(UserError):
    """An error in rank 0, which reports it itself."""


@runtime_checkable
class Team(Protocol):
    """Processes that share the rows of each batch."""

    @property
    def rank(self) -> int:
        """The number of this process; rank 0 prints and writes."""

    @property
    def world(self) -> int:
        """The number of processes."""

    @property
    def device(self) -> torch.device:
        """The device of this process."""

    def place(self, module: nn.Module) -> None:
        """Move a module to its device, and shard it, before anything refers to its parameters."""

    def wrap(self, module: nn.Module) -> Callable[..., Any]:
        """The callable to use instead of the module, so that gradients are shared."""

    def passing(self, module: Callable[..., Any], *, last: bool) -> AbstractContextManager[None]:
        """A context for one of several passes with accumulated gradients; they are shared after the last."""

    def sum(self, values: Tensor) -> Tensor:
        """Values summed over all processes."""

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all processes, in the order of their ranks."""

    def most(self, number: int) -> int:
        """The largest number over all processes: for events that one has seen and all must act on."""

    def lead(self, work: Callable[[], T]) -> T | None:
        """Run `work` in rank 0 while the others wait; if it fails, all fail."""


@dataclass(frozen=True)
class Alone:
    """One process."""

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=device_of)

    def place(self, module: nn.Module) -> None:
        module.to(self.device)

    def wrap(self, module: nn.Module) -> Callable[..., Any]:
        return module

    def passing(self, module: Callable[..., Any], *, last: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def sum(self, values: Tensor) -> Tensor:
        return values

    def gather(self, rows: Tensor) -> Tensor:
        return rows

    def most(self, number: int) -> int:
        return number

    def lead(self, work: Callable[[], T]) -> T | None:
        return work()


@dataclass(frozen=True)
class Many:
    """Several processes of torch.distributed."""

    rank: int
    world: int
    device: torch.device
    way: Way
    store: Any  # the key-value store that all processes share
    turns: Iterator[int] = field(default_factory=count)  # numbers the works of rank 0

    def place(self, module: nn.Module) -> None:
        if self.way == "fsdp":
            sharding.shard(module, self.device)  # type: ignore[arg-type]
        else:
            module.to(self.device)

    def wrap(self, module: nn.Module) -> Callable[..., Any]:
        if self.way == "fsdp":
            return module
        from torch.nn.parallel import DistributedDataParallel

        # Gradients have memory of their own: the alignment of a tensor changes the order of its sums, and inside
        # DDP's buckets it changes after the first step, so that a resumed run would not repeat the old one.
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # newer torch has another name for it
            return DistributedDataParallel(module, broadcast_buffers=False, gradient_as_bucket_view=False)

    def passing(self, module: Any, *, last: bool) -> AbstractContextManager[None]:
        if self.way == "fsdp":
            module.set_requires_gradient_sync(last)
            return nullcontext()
        return nullcontext() if last else module.no_sync()

    def sum(self, values: Tensor) -> Tensor:
        total = values.detach().clone()
        dist.all_reduce(total)
        return total

    def gather(self, rows: Tensor) -> Tensor:
        parts = [torch.empty_like(rows) for _ in range(self.world)]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    def most(self, number: int) -> int:
        largest = torch.tensor(number, device=self.device)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def lead(self, work: Callable[[], T]) -> T | None:
        key = f"led-{next(self.turns)}"
        if self.rank:
            reply = self.wait_for(key)
            if reply != "done":
                raise Told(reply)
            return None
        reply = "rank 0 failed"
        try:
            result = work()
            reply = "done"
        except UserError as error:
            reply = str(error)
            raise
        finally:
            self.store.set(key, reply)
        return result

    def wait_for(self, key: str) -> str:
        """The value that rank 0 sets for a key, however long it takes; an error if rank 0 or the store is gone."""
        while True:
            try:
                self.store.wait([key], LOOKING)
                return self.store.get(key).decode()
            except dist.DistStoreError:
                continue


@contextmanager
def join_team(way: Way, *, seconds: float, device_name: str = "auto") -> Iterator[Team]:
    """The team that torchrun has set up, or `Alone`; in a step processes wait `seconds` for each other."""
    device = device_of(device_name)
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Alone(device=device)
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with noticing():
        store, rank, world = next(iter(rendezvous("env://", timeout=GATHERING)))
        store = meet(store, rank=rank, world=world, within=GATHERING)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            store=PrefixStore("group", store),
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=seconds),
        )
        yield Many(rank, world, device, way, PrefixStore("team", store))
        dist.destroy_process_group()


@contextmanager
def noticing() -> Iterator[None]:
    """Turn an error of torch.distributed into a message that another process is gone."""
    try:
        yield
    except RuntimeError as error:
        message = str(error).partition("\n")[0]  # gloo begins with the place in its sources: [file:line]
        if not isinstance(error, dist.DistError) and not any(word in message for word in BROKEN):
            raise
        rank, world = os.environ.get("RANK", "?"), os.environ.get("WORLD_SIZE", "?")
        raise Lost(
            f"process {rank} of {world} lost the others: one has died or did not answer in time "
            f"({message.rpartition('] ')[2].partition('. ')[0]}). Its own error, if any, is printed above. Continue "
            "from the last checkpoint with --resume."
        ) from None


GRACE = 2.0  # seconds in which rank 0 reports an error that all processes have


@contextmanager
def said_once(team: Team) -> Iterator[None]:
    """Report an error of all processes by rank 0 only, and an error of one process by that process."""
    try:
        yield
    except UserError as error:
        if team.rank == 0 or isinstance(error, Lost):
            raise
        time.sleep(GRACE)  # if rank 0 ends too, torchrun ends this process meanwhile
        if isinstance(error, Told):
            sys.exit(2)
        raise UserError(f"process {team.rank}: {error}") from None


PATIENCE = 86_400.0  # seconds that finished processes wait for the others; torchrun notices dead ones


@contextmanager
def together() -> Iterator[Team]:
    """The processes that torchrun has started, or this one alone."""
    with join_team("ddp", seconds=PATIENCE) as team, said_once(team):
        yield team


def collect_lists(team: Team, mine: list[T]) -> list[T]:
    """The lists of all processes, concatenated at rank 0; empty in the others."""
    if team.world == 1:
        return mine
    parts: list[list[T] | None] | None = [None] * team.world if team.rank == 0 else None
    dist.gather_object(mine, parts)
    return [one for some in parts or [] for one in some or []]


PAUSE = 0.05  # seconds between two polls


def meet(table: Store, *, rank: int, world: int, within: timedelta) -> Store:
    """A prefix of the store that the processes of this start share, once all of them have joined."""
    corner = host(table, world=world, within=within) if rank == 0 else guest(table, rank=rank, within=within)
    corner.wait(["all"], within)
    return corner


def guest(table: Store, *, rank: int, within: timedelta) -> Store:
    """Register under a unique name, and wait for the answer to that name."""
    name = uuid4().hex
    table.set(f"hello-{rank}", name)
    table.wait([f"welcome-{name}"], within)
    corner = PrefixStore(table.get(f"welcome-{name}").decode(), table)
    corner.set(f"here-{rank}", "")
    return corner


def host(table: Store, *, world: int, within: timedelta) -> Store:
    """Answer every registration, those of dead processes included, until all processes have joined."""
    name = uuid4().hex
    corner = PrefixStore(name, table)
    missing = list(range(1, world))
    end = time.monotonic() + within.total_seconds()
    while missing:
        if time.monotonic() > end:
            raise UserError(
                f"{len(missing)} of {world} processes did not come within {within.total_seconds():.0f} seconds "
                f"(rank {missing[0]} first): look for their errors, or for a machine that cannot be reached."
            )
        for rank in missing:
            if table.check([f"hello-{rank}"]):
                table.set(f"welcome-{table.get(f'hello-{rank}').decode()}", name)
        missing = [rank for rank in missing if not corner.check([f"here-{rank}"])]
        time.sleep(PAUSE)
    corner.set("all", "")
    return corner
