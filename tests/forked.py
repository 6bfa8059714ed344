"""Commands in processes of their own, forked from one that has torch: the four seconds of imports are paid once.

For tests of what only a process shows (signals, kills, two ranks, exit codes). What a new interpreter does,
and what a command imports, is seen by `subprocess` alone.
"""

import io
import os
import socket
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import torch

WARM = ["unmask.__main__", *(f"unmask.cli.{verb}" for verb in ("train", "evaluate", "sample", "study"))]


@cache
def warm():
    """The context of multiprocessing whose server has the modules; it ends with the tests."""
    context = get_context("forkserver")
    context.set_forkserver_preload([*WARM, "forked"])
    return context


def become(module: str, arguments: list[str], env: dict[str, str], cwd: str, files: tuple[str, str]) -> None:
    """In the child: run `module.main(arguments)` with an environment, a folder and files for output of its own."""
    encoding = env.get("PYTHONIOENCODING", "utf-8")
    for number, (path, name) in enumerate(zip(files, ("stdout", "stderr"), strict=True), start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY, 0o600), number)
        raw = io.FileIO(number, "w", closefd=False)
        setattr(sys, name, io.TextIOWrapper(raw, encoding=encoding, line_buffering=True))
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    torch.set_num_threads(int(env["OMP_NUM_THREADS"]))  # whoever started the server, and with how many
    sys.argv = [module, *arguments]
    code = import_module(module).main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)  # as `python -m unmask` ends where there are two processes


class Forked:
    """What tests use of subprocess.Popen: pid, poll, send_signal, kill, communicate and returncode."""

    def __init__(
        self, *arguments: object, program: str = "unmask.cli.main", cwd: object = ".", stdout: str = "", **env: str
    ) -> None:
        self.files = Path(mkdtemp(prefix="forked-"))
        out, err = stdout or str(self.files / "out"), str(self.files / "err")
        words = [str(word) for word in arguments]
        place = str(Path(str(cwd)).resolve())
        self.process = warm().Process(
            target=become, args=(program, words, {**os.environ, "OMP_NUM_THREADS": "1", **env}, place, (out, err))
        )
        self.process.start()
        self.args, self.pid = words, self.process.pid
        self.wrote: tuple[str, ...] = ()

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str, ...]:
        """Wait for its end; what it wrote."""
        self.process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        if not self.wrote:
            paths = (self.files / name for name in ("out", "err"))
            self.wrote = tuple(path.read_text() if path.exists() else "" for path in paths)
            rmtree(self.files)
        return self.wrote

    def finish(self) -> subprocess.CompletedProcess[str]:
        """Wait for its end, as subprocess.run does; pytest ends a test that waits for ever."""
        out, err = self.communicate()
        return subprocess.CompletedProcess(self.args, self.returncode or 0, out, err)


def ranks(number: int, *arguments: object, **options: str) -> list[Forked]:
    """Processes that find each other as torchrun's do."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1]), "WORLD_SIZE": str(number)}
    places = ({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(number))
    return [Forked(*arguments, **shared, **place, **options) for place in places]
