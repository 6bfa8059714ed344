"""Workers: several processes behind one socket. A dead one is replaced; all end with their parent."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import FrameType

from unmask.errors import UserError
from unmask.serving.log import log

# `work(listening, ready)` serves in a process of its own until SIGTERM; it calls `ready` once it can answer.
Work = Callable[[socket.socket, Callable[[], None]], None]

BROKEN = 3  # exit code of a worker that cannot start
PAUSES = (1.0, 60.0)  # seconds before a worker is replaced: the first pause, and the longest; each doubles the last
EXTRA = 10.0  # seconds beyond the grace after which a worker is killed


@dataclass
class Worker:
    """One process, as its parent sees it, and those that had its place before."""

    process: BaseProcess | None = None
    line: Connection | None = None  # a word comes when it is ready; it closes when either end does
    ready: bool = False
    pause: float = 0.0
    due: float = 0.0  # when the next process may start


@dataclass
class Workers:
    """The processes, from the side of their parent."""

    work: Work
    count: int
    listening: socket.socket
    grace: float
    ended: Callable[[int], None] = lambda pid: None  # called with the id of each process that has ended
    pauses: tuple[float, float] = PAUSES
    workers: list[Worker] = field(default_factory=list)
    served: bool = False  # whether any worker has been ready
    stop: bool = False

    def run(self) -> None:
        """Keep the workers alive until SIGTERM or Ctrl-C; then end them within the grace."""
        self.workers = [Worker() for _ in range(self.count)]
        before = {number: signal.signal(number, self.note) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            while not self.stop:
                self.start_missing()
                lines = [worker.line for worker in self.workers if worker.line is not None]
                connection.wait([*lines, *(p.sentinel for p in self.processes())], timeout=0.5)
                self.note_ready()
                self.remove_dead()
        finally:
            self.end_all()
            for number, handler in before.items():
                signal.signal(number, handler)

    def note(self, number: int, frame: FrameType | None) -> None:
        self.stop = True

    def processes(self) -> list[BaseProcess]:
        return [worker.process for worker in self.workers if worker.process is not None]

    def start_missing(self) -> None:
        for number, worker in enumerate(self.workers):
            if worker.process is None and time.monotonic() >= worker.due:
                worker.line, end = get_context("spawn").Pipe()
                arguments = (self.work, self.listening, end, self.grace)
                worker.process = get_context("spawn").Process(
                    target=serve_until_ended, args=arguments, name=f"worker {number}"
                )
                worker.process.start()
                end.close()

    def note_ready(self) -> None:
        for worker in self.workers:
            if worker.process is None or worker.line is None:
                continue
            if not worker.ready and worker.line.poll():
                with suppress(EOFError, OSError):
                    worker.line.recv_bytes()
                    worker.ready = self.served = True
                    worker.pause = 0.0
                    log.info("worker process %d is ready", worker.process.pid)

    def remove_dead(self) -> None:
        """Note the workers that have ended, each to be replaced after a pause that grows while none gets ready.

        The first ones that cannot start end the server: there is nothing to keep up. Later, the others go on.
        """
        for worker in self.workers:
            process = worker.process
            if process is None or process.is_alive():
                continue
            self.forget(worker)
            if self.stop:
                continue
            if process.exitcode == BROKEN and not self.served:
                raise UserError("a worker process could not start; its message is above.")
            first, longest = self.pauses
            worker.pause = min(2 * worker.pause or first, longest)
            worker.due = time.monotonic() + worker.pause
            what = "could not start" if process.exitcode == BROKEN else f"ended with code {process.exitcode}"
            log.error("worker process %d %s; a new one starts in %g s", process.pid, what, worker.pause)

    def forget(self, worker: Worker) -> None:
        assert worker.process is not None
        assert worker.process.pid is not None
        assert worker.line is not None
        self.ended(worker.process.pid)
        worker.line.close()
        worker.process, worker.line, worker.ready = None, None, False

    def end_all(self) -> None:
        """SIGTERM to all; those that are still there after the grace are killed."""
        self.listening.close()
        for process in self.processes():
            process.terminate()
        limit = time.monotonic() + self.grace + EXTRA
        for worker in self.workers:
            if worker.process is None:
                continue
            worker.process.join(max(0.0, limit - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            self.forget(worker)


def serve_until_ended(work: Work, listening: socket.socket, line: Connection, grace: float) -> None:
    """A worker process: it works until SIGTERM, or until its parent has ended, however that came."""

    def watch() -> None:
        try:
            line.recv_bytes()  # nothing is ever sent: it ends when the parent does
        except (EOFError, OSError):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(grace + EXTRA)
            os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent").start()
    try:
        work(listening, lambda: line.send_bytes(b"ready"))
    except KeyboardInterrupt:
        pass
    except UserError as error:
        print(f"unmask: {error}", file=sys.stderr, flush=True)
        os._exit(BROKEN)
