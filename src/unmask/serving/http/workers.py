"""Workers: several processes behind one socket. A dead one is replaced; all end with their parent."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import FrameType

from unmask.errors import UserError
from unmask.serving.log import log

# `work(number, listening)` serves in a process of its own until SIGTERM.
Work = Callable[[int, socket.socket], None]

BROKEN = 3  # exit code of a worker that cannot start: another one could not either
PAUSE = 1.0  # seconds between two starts of the same worker
EXTRA = 10.0  # seconds beyond the grace after which a worker is killed


@dataclass
class Workers:
    """The processes, from the side of their parent."""

    work: Work
    count: int
    listening: socket.socket
    grace: float
    ended: Callable[[int], None] = lambda pid: None  # called with the id of each process that has ended
    processes: dict[int, BaseProcess] = field(default_factory=dict)
    stop: bool = False

    def run(self) -> None:
        """Keep the workers alive until SIGTERM or Ctrl-C; then end them within the grace."""
        alive, held = get_context("spawn").Pipe(duplex=False)  # nothing is sent: it closes when this process ends
        before = {number: signal.signal(number, self.note) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            while not self.stop:
                self.start_missing(alive)
                connection.wait([one.sentinel for one in self.processes.values()], timeout=0.5)
                self.remove_dead()
        finally:
            self.end_all()
            held.close()
            for number, handler in before.items():
                signal.signal(number, handler)

    def note(self, number: int, frame: FrameType | None) -> None:
        self.stop = True

    def start_missing(self, alive: Connection) -> None:
        for number in range(self.count):
            if number not in self.processes:
                process = get_context("spawn").Process(
                    target=begin, args=(self.work, number, self.listening, alive, self.grace), name=f"worker {number}"
                )
                process.start()
                self.processes[number] = process

    def remove_dead(self) -> None:
        for number, process in list(self.processes.items()):
            if process.is_alive():
                continue
            self.forget(number)
            if self.stop:
                continue
            if process.exitcode == BROKEN:
                raise UserError("a worker process could not start; its message is above.")
            log.error("worker process %d ended with code %s; a new one starts", process.pid, process.exitcode)
            time.sleep(PAUSE)

    def forget(self, number: int) -> None:
        process = self.processes.pop(number)
        assert process.pid is not None
        self.ended(process.pid)

    def end_all(self) -> None:
        """SIGTERM to all; those that are still there after the grace are killed."""
        self.listening.close()
        for process in self.processes.values():
            process.terminate()
        limit = time.monotonic() + self.grace + EXTRA
        for number, process in list(self.processes.items()):
            process.join(max(0.0, limit - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
            self.forget(number)


def begin(work: Work, number: int, listening: socket.socket, alive: Connection, grace: float) -> None:
    """A worker process: it works until SIGTERM, or until its parent has ended, however that came."""

    def watch() -> None:
        try:
            alive.recv_bytes()
        except (EOFError, OSError):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(grace + EXTRA)
            os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent").start()
    try:
        work(number, listening)
    except KeyboardInterrupt:
        pass
    except UserError as error:
        print(f"unmask: {error}", flush=True)
        os._exit(BROKEN)
