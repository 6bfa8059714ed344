"""Run the commands of a plan: some at once, each in its own process; finished tasks are reused, failures reported.

On Linux these processes are forked from one that has imported torch and nothing else, so a command begins at once.

Every command has a fixed number of threads, so two at once compute what one after the other would. A killed training
goes on where it stopped, and so does a fine-tuning (classify); any other killed measurement begins again.
"""

import ctypes
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

import tomli_w
import torch

from unmask.errors import UserError
from unmask.files import clear_drafts, write_json, write_whole
from unmask.processes.cluster import Cluster, Pending
from unmask.processes.lock import hold_lock
from unmask.processes.threads import COUNT, computing_with
from unmask.studies import corpus
from unmask.studies.plan import CONFIG, MODEL, Task
from unmask.training import metrics
from unmask.untrusted import MEGABYTE, read_object

DONE, LOG, LOCK = "done.json", "log.txt", ".lock"
TRIAL = 12  # steps that are timed to learn how many fit into a number of seconds; the first third is not counted
GRACE = 120  # seconds for a command to save and end when the study is stopped
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class TaskEvent:
    """What happened to a task."""

    task: Task
    state: Literal["kept", "started", "running", "done", "failed", "skipped"]
    note: str = ""
    seconds: float = 0.0


@dataclass
class Running:
    task: Task
    process: "BaseProcess | Inside | Away"
    began: float
    held: ExitStack = field(default_factory=ExitStack)


@dataclass(frozen=True)
class Inside:
    """A command that ran in this process and has ended."""

    exitcode: int


@dataclass(frozen=True)
class Away:
    """A command that runs in a cluster: what the study asks of a process."""

    pending: Pending[int]

    @property
    def exitcode(self) -> int | None:
        return self.pending.result() if self.pending.done() else None

    def terminate(self) -> None:
        self.pending.stop()

    def kill(self) -> None:
        """It ends with the connection to the cluster."""

    def join(self, timeout: float | None = None) -> None:
        until = time.monotonic() + (GRACE if timeout is None else timeout)
        while not self.pending.done() and time.monotonic() < until:
            time.sleep(0.1)


@dataclass(frozen=True)
class Execution:
    """How the commands are run."""

    root: Path  # of the data
    command: Callable[[list[str]], int]  # runs a command and returns its exit code
    imports: tuple[str, ...] = ()  # modules that commands need: imported once
    jobs: int = 1
    threads: int = 1
    launcher: tuple[str, ...] = ()  # words before the command: torchrun and its options
    inside: bool = False  # run commands in this process, one by one
    cluster: Cluster | None = None  # run commands there


def is_done(task: Task) -> bool:
    return (task.folder / DONE).is_file()


def run(tasks: Sequence[Task], how: Execution, stop: list[int]) -> Iterator[TaskEvent]:
    """Run what is not done yet; ends early, with everything saved, when `stop` is filled."""
    state: dict[str, str] = {}
    for task in tasks:
        if is_done(task):
            state[task.name] = "done"
            yield TaskEvent(task, "kept", seconds=read_result(task.folder / DONE).get("seconds", 0.0))
    waiting = [task for task in tasks if task.name not in state]
    running: list[Running] = []
    try:
        while (waiting and not stop) or running:
            for task in list(waiting):
                if (event := begin(task, state, running, how, stop)) is not None:
                    waiting.remove(task)
                    state[task.name] = event.state
                    yield event
            for one in () if stop else tuple(running):
                event = progress(one)
                if event.state != "running":
                    running.remove(one)
                    state[one.task.name] = event.state
                yield event
            if stop:
                end(running)
                running = []
            elif running:
                time.sleep(0 if how.inside else 0.1)
    finally:
        end(running)


def begin(
    task: Task, state: Mapping[str, str], running: list[Running], how: Execution, stop: Sequence[int]
) -> TaskEvent | None:
    """Start a task whose turn has come, or skip it if what it needs is not there; None: it waits."""
    lost = next((name for name in task.needs if state.get(name) in ("failed", "skipped")), None)
    if lost is not None:
        return TaskEvent(task, "skipped", f"{lost} {'failed' if state[lost] == 'failed' else 'was skipped'}")
    if stop or len(running) >= how.jobs or any(state.get(name) != "done" for name in task.needs):
        return None
    try:
        running.append(start_task(task, how))
    except UserError as error:
        return TaskEvent(task, "failed", str(error))
    return TaskEvent(task, "started")


def progress(one: Running) -> TaskEvent:
    """How a task stands; one that has ended is marked as done, or has a reason why not."""
    task, code, seconds = one.task, one.process.exitcode, time.monotonic() - one.began
    if code is None:
        return TaskEvent(task, "running", last_line(task.folder / LOG), seconds)
    one.held.close()
    if code == 0 and wrote_result(task):
        write_json(task.folder / DONE, {"command": list(task.command), "seconds": round(seconds, 2)})
        return TaskEvent(task, "done", seconds=seconds)
    return TaskEvent(task, "failed", reason(task, code), seconds)


def start_task(task: Task, how: Execution) -> Running:
    """Begin a task; what it needs is written first."""
    held = ExitStack()
    held.enter_context(hold_lock(task.folder / LOCK))
    began = time.monotonic()
    try:
        clear_drafts(task.folder)  # of a process that was killed
        prepare(task, how)
        if not task.command:
            process: BaseProcess | Inside | Away = Inside(0)
        elif how.inside:
            process = Inside(call_command(how.command, task, how.threads))
        elif how.cluster is not None:
            words = (how.command, task.command, task.folder / LOG, how.threads, Path.cwd())
            process = Away(how.cluster.submit(perform_away, *words, threads=how.threads, own_process=True))
        else:
            process = spawn_command(task.command, task.folder / LOG, how, launch=task.kind != "data")
    except OSError as error:
        held.close()
        raise UserError(f"could not start {task.name}: {error.strerror or error}.") from None
    except BaseException:
        held.close()
        raise
    return Running(task, process, began, held)


def spawn_command(command: Sequence[str], log: Path, how: Execution, *, launch: bool) -> BaseProcess:
    """Run a command in a process of its own; what it prints goes to the end of the log."""
    context = get_context("forkserver") if sys.platform == "linux" else get_context("spawn")
    context.set_forkserver_preload([how.command.__module__, *how.imports])
    process = context.Process(target=perform, args=(list(command), log, how, Path.cwd(), launch))
    with computing_with(how.threads):  # the processes are forked from one that has this environment
        process.start()
    return process


def perform(command: list[str], log: Path, how: Execution, folder: Path, launch: bool) -> None:
    """What a process does: leave the terminal, end with its study, and run a command."""
    os.setsid()
    if sys.platform == "linux":
        # A command does not outlive its study, not even one that is killed.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    os.chdir(folder)
    os.environ.update(environment(how.threads))
    with log.open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    if launch and how.launcher:
        os.execvp(how.launcher[0], [*how.launcher, "-m", "unmask", *command])
    torch.set_num_threads(how.threads)
    sys.exit(how.command(command))


def perform_away(
    main: Callable[[list[str]], int], command: tuple[str, ...], log: Path, threads: int, folder: Path
) -> int:
    """What a worker of a cluster does, and does again where the last one was lost: a training goes on."""
    os.chdir(folder)
    os.environ.update(environment(threads))
    with log.open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    try:
        return main(list(command))
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def call_command(command: Callable[[list[str]], int], task: Task, threads: int) -> int:
    """Run a command in this process, with the same number of threads and its output in the same file."""
    with computing_with(threads), (task.folder / LOG).open("a", encoding="utf-8") as log:
        try:
            with redirect_stdout(log), redirect_stderr(log):
                return command(list(task.command))
        except SystemExit as stop:
            return int(stop.code or 0) if isinstance(stop.code, int | None) else 1


def environment(threads: int) -> dict[str, str]:
    return {COUNT: str(threads), "MKL_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}


def prepare(task: Task, how: Execution) -> None:
    """Write what a command reads: the text, or the settings of a training."""
    if task.data is not None and "source" not in task.data:
        corpus.write_texts(task.data, how.root, task.folder / "text")
    if task.config is not None and not (task.folder / CONFIG).is_file():
        config = dict(task.config)
        if task.seconds:
            config["steps"] = steps_within(task, config, how)
        write_whole(task.folder / CONFIG, tomli_w.dumps(config))


def steps_within(task: Task, config: dict[str, Any], how: Execution) -> int:
    """The number of steps that fit into the task's seconds, from a short trial of the same run."""
    trial = task.folder / "trial"
    shutil.rmtree(trial, ignore_errors=True)
    quiet = {"run": {**config.get("run", {}), "log_every": 1, "eval_every": 10**6, "save_every": 10**6, "preview": 0}}
    write_whole(trial / CONFIG, tomli_w.dumps({**config, **quiet, "steps": TRIAL}))
    command = ["train", "--config", str(trial / CONFIG), "--out", str(trial / MODEL)]
    process = spawn_command(command, trial / LOG, how, launch=False)
    process.join()
    if process.exitcode:
        raise UserError(last_line(trial / LOG).removeprefix("unmask: ") or f"{task.name}: failed")
    lines = [line for line in metrics.read_metrics(trial / MODEL) if "seconds" in line]
    times = sorted(line["seconds"] / line["steps"] for line in lines[TRIAL // 3 :])
    shutil.rmtree(trial, ignore_errors=True)
    return max(2, int(task.seconds / times[len(times) // 2]))


def wrote_result(task: Task) -> bool:
    """Whether a command that ended well has written what the study reads."""
    if task.kind == "measure":
        return task.result.is_file() and not read_result(task.result).get("partial")
    return True


def read_result(path: Path) -> dict[str, Any]:
    """A file of results, in which a number may be NaN."""
    return read_object(path, limit=256 * MEGABYTE, strict=False)


def last_line(log: Path) -> str:
    """The last line that a command has printed."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 2000))
            lines = file.read().decode(errors="replace").replace("\r", "\n").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def reason(task: Task, code: int) -> str:
    """Why a command failed, in its own words."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return last_line(task.folder / LOG).removeprefix("unmask: ") or f"exit code {code}"


def end(running: Sequence[Running]) -> None:
    """Ask the commands to save and end; wait for them."""
    alive = [one.process for one in running if not isinstance(one.process, Inside)]
    for process in alive:
        process.terminate()
    until = time.monotonic() + GRACE
    for process in alive:
        process.join(max(0.0, until - time.monotonic()))
        if process.exitcode is None:
            process.kill()
            process.join()
    for one in running:
        one.held.close()
