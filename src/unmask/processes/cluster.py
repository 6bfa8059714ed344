"""Many machines: functions run as tasks of a Ray cluster, and what a lost worker or node was doing is done again.

The only file that knows Ray. A task is a pure function or one that writes whole files, so doing it twice changes
nothing. It computes with as many threads as the program that asks for it, so its numbers are the same, bit for bit.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from unmask.errors import UserError, how_many
from unmask.processes.team import Team

T = TypeVar("T")
TOKENS = ". If it asks for a token, set RAY_AUTH_MODE=token and copy ~/.ray/auth_token of the head."
RETRIES = 5  # of a task whose worker or node died


@dataclass(frozen=True)
class Shared(Generic[T]):
    """A value that every worker process receives once, such as a model."""

    reference: Any

    @property
    def value(self) -> T:
        name = self.reference.hex()
        if name not in _received:
            import ray

            _received.clear()  # one at a time: it may be large
            _received[name] = ray.get(self.reference)
        return _received[name]


_received: dict[str, Any] = {}


@dataclass(frozen=True)
class Pending(Generic[T]):
    """A task that was handed in."""

    reference: Any

    def done(self) -> bool:
        import ray

        return bool(ray.wait([self.reference], timeout=0)[0])

    def result(self) -> T:
        """Wait for the result; an error of the task is raised here."""
        import ray
        from ray.exceptions import NodeDiedError, OutOfMemoryError, RayTaskError, WorkerCrashedError

        try:
            return ray.get(self.reference)
        except RayTaskError as error:
            raise error.cause from None
        except (WorkerCrashedError, NodeDiedError, OutOfMemoryError) as error:
            raise UserError(
                f"a task lost its worker {RETRIES + 1} times ({type(error).__name__}), perhaps for lack of memory. "
                "Run the same command again; what is finished is kept."
            ) from None

    def stop(self) -> None:
        """Interrupt the task, as Ctrl-C does."""
        import ray

        ray.cancel(self.reference, force=False)


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster that is connected."""

    cores: int  # of all nodes
    widest: int  # cores of the node that has the most

    def share(self, value: T) -> Shared[T]:
        import ray

        return Shared(ray.put(value))

    def submit(
        self, function: Callable[..., T], *arguments: Any, threads: int = 0, own_process: bool = False
    ) -> Pending[T]:
        """Hand a task in; 0 threads: as many as here. `own_process`: no other task runs in its process."""
        threads = threads or torch.get_num_threads()
        if threads > self.widest:  # Ray would wait for such a node
            raise UserError(
                f"a task computes with {how_many(threads, 'thread')}, and no node of the cluster has more than "
                f"{how_many(self.widest, 'core')}: give fewer --threads."
            )
        import ray

        options: dict[str, Any] = {"num_cpus": threads, "max_retries": RETRIES, "max_calls": int(own_process)}
        remote: Any = ray.remote(**options)(_perform)
        return Pending(remote.remote(function, arguments, threads))

    def map(self, function: Callable[..., T], arguments: Iterable[tuple[Any, ...]]) -> Iterator[T]:
        """The results in the order of the arguments; some more than the cluster has cores are under way at once."""
        waiting: deque[Pending[T]] = deque()
        for some in arguments:
            waiting.append(self.submit(function, *some))
            while len(waiting) > 2 * self.cores:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _perform(function: Callable[..., T], arguments: tuple[Any, ...], threads: int) -> T:
    torch.set_num_threads(threads)
    return function(*arguments)


@contextmanager
def connect_cluster(on: str) -> Iterator[Cluster | None]:
    """The cluster of `--on`; None if the work stays in this process."""
    if not on:
        yield None
        return
    address = _address(on)
    try:
        import ray
    except ImportError:
        raise UserError("--on needs Ray: pip install 'unmask[cluster]'") from None
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    here: dict[str, Any] = {"include_dashboard": False} if address is None else {}
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **here)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        hint = "" if os.environ.get("RAY_AUTH_MODE") else TOKENS
        raise UserError(f"no Ray cluster answers at {address or 'this machine'}: {reason}{hint}") from None
    try:
        nodes = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
        yield Cluster(max(1, sum(nodes)), max(nodes, default=0))
    finally:
        ray.shutdown()
        _received.clear()


def check_alone(team: Team, on: str) -> None:
    """Work is shared by torchrun or by a cluster, not by both."""
    if on and team.world > 1:
        raise UserError("torchrun shares the work already: leave out torchrun, or --on.")


def _address(on: str) -> str | None:
    """What Ray calls the cluster; None: start one here."""
    if on == "ray":
        return os.environ.get("RAY_ADDRESS")
    if on.startswith("ray://") or ":" in on:
        return on
    raise UserError(f"--on is ray, ray://HEAD:10001 or HOST:6379; saw {on!r}.")
