"""The command: starting, stopping, several processes, and what it refuses."""

import contextlib
import itertools
import json
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import httpx
import pytest
import torch
from models import saved
from servers import command, serving

from unmask.cli import serve as serve_verb
from unmask.cli.main import main, parse_settings
from unmask.errors import UserError
from unmask.model.adapter import Adapter, LowRankUpdates
from unmask.model.adapter_files import write_adapter
from unmask.model.answer import Answer
from unmask.model.checkpoint import load
from unmask.model.head_files import write_guide
from unmask.model.predictor import Predictor
from unmask.serving.http.run import listening_socket, load_again, serve, service_of
from unmask.serving.http.workers import Workers
from unmask.serving.limits import Limits
from unmask.serving.settings import ServerSettings


def stopped(process: subprocess.Popen) -> str:
    """What a server that is told to stop has written to its log."""
    process.send_signal(signal.SIGTERM)
    return process.communicate(timeout=120)[1]


@pytest.mark.slow
def test_when_told_to_stop_it_finishes_what_is_under_way_and_lets_nobody_in(masked):
    body = {"prompt": "The ", "max_tokens": 44, "n": 16, "sampler": "entropy", "seed": 1, "stream": True}
    with command(str(masked.folder)) as (process, address):
        with httpx.stream(
            "POST", f"{address}/v1/completions", json={**body, "events": "steps"}, timeout=120
        ) as stream:
            lines = stream.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(httpx.TransportError):
                while httpx.get(f"{address}/health", timeout=120):  # the signal may arrive later
                    time.sleep(0.02)
            rest = list(lines)
        assert rest[-2] == "data: [DONE]"
        _, errors = process.communicate(timeout=120)
        assert process.returncode in (0, -signal.SIGTERM)
        assert "Traceback" not in errors
        assert "The " not in errors


@pytest.mark.slow
def test_a_server_that_drains_is_alive_and_not_ready_and_still_answers(masked):
    body = {"prompt": "The ", "max_tokens": 8, "seed": 1}
    with command(str(masked.folder), "--drain", "600", "--workers", "2") as (process, address):
        before = httpx.post(f"{address}/v1/completions", json=body, timeout=120).json()["choices"]
        assert httpx.get(f"{address}/ready", timeout=120).status_code == 200
        process.send_signal(signal.SIGTERM)
        while (answer := httpx.get(f"{address}/ready", timeout=120)).status_code == 200:
            time.sleep(0.02)  # one of the workers may have its signal later
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "closing")
        assert httpx.get(f"{address}/health", timeout=120).status_code == 200
        assert httpx.post(f"{address}/v1/completions", json=body, timeout=120).json()["choices"] == before


@pytest.mark.slow
def test_a_second_signal_ends_the_drain_and_a_short_one_ends_by_itself(masked):
    for seconds, signals in (("600", 2), ("0.1", 1)):
        with command(str(masked.folder), "--drain", seconds) as (process, address):
            for _ in range(signals):
                process.send_signal(signal.SIGTERM)
                with contextlib.suppress(httpx.TransportError):
                    while httpx.get(f"{address}/ready", timeout=120).status_code == 200:
                        time.sleep(0.02)
            _, errors = process.communicate(timeout=120)
            assert process.returncode in (0, -signal.SIGTERM)
            assert "Traceback" not in errors


@pytest.mark.slow
def test_requests_that_outlast_the_grace_are_told_so_and_do_not_keep_the_server_up(slowed, caplog):
    asked = {"max_tokens": 44}
    streamed = {**asked, "stream": True, "events": "steps"}
    with contextlib.ExitStack() as later, ThreadPoolExecutor() as threads:
        with serving(slowed(1.0)[0], grace=1) as address:  # 44 calls take 44 s
            client = later.enter_context(httpx.Client(base_url=address, timeout=120))
            stream = later.enter_context(client.stream("POST", "/v1/completions", json=streamed))
            lines = stream.iter_lines()
            assert next(lines) == "event: begin"
            whole = threads.submit(httpx.post, f"{address}/v1/completions", json=asked, timeout=120)
            while "unmask_live_requests 2.0" not in client.get("/metrics").text:
                time.sleep(0.02)
        answer, rest = whole.result(), list(lines)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "closing"
    assert rest[-3] == "event: error"
    assert json.loads(rest[-2].removeprefix("data: ")) == answer.json()
    assert "data: [DONE]" not in rest
    assert "Traceback" not in caplog.text


STUCK = """
import sys, threading, time
from unmask.cli.main import main
from unmask.serving.http import requests
def stuck(self, pattern, check):
    print("stuck", file=sys.stderr, flush=True)
    while True:
        time.sleep(0.1)
requests.Controls.compile = stuck
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("number, code", [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)])
def test_threads_that_never_end_do_not_keep_the_server_up(masked, number, code):
    with command(str(masked.folder), "--grace", "1", program=("-c", STUCK)) as (process, address):
        with ThreadPoolExecutor() as threads:
            body = {"prompt": "The ", "pattern": "[a-z]+"}
            answer = threads.submit(httpx.post, f"{address}/v1/completions", json=body, timeout=120)
            while "stuck" not in process.stderr.readline():
                pass
            process.send_signal(number)
            assert answer.result().status_code == 503
        errors = process.communicate(timeout=120)[1]
        assert process.returncode == code
        assert "Traceback" not in errors


def worker_ids(process: subprocess.Popen) -> set[int]:
    """The worker processes of a server, by what they are called with."""
    found = set()
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.add(int(child))
    return found


def ready_ids(process: subprocess.Popen) -> list[int]:
    """Two workers that need their folder no more, by the server's log."""
    said = (re.search(r"worker process (\d+) is ready", line) for line in process.stderr)
    return [int(found[1]) for found in itertools.islice(filter(None, said), 2)]


def wait_for(true) -> None:
    while not true():
        time.sleep(0.05)


def gone(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    return True


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the workers in /proc")
def test_a_worker_that_dies_is_replaced_with_its_numbers_and_all_end_with_their_parent(masked):
    body = {"prompt": "The ", "max_tokens": 44, "n": 32, "sampler": "remask-cap:eta=0.9", "steps": 2000}
    with command(str(masked.folder), "--workers", "2") as (process, address):
        wait_for(lambda: len(worker_ids(process)) == 2)
        before = worker_ids(process)
        streamed = {**body, "stream": True, "events": "steps"}
        with httpx.stream("POST", f"{address}/v1/completions", json=streamed, timeout=120) as stream:
            lines = stream.iter_lines()
            assert next(lines) == "event: begin"
            wait_for(lambda: re.search(r"unmask_(live|waiting)_requests 1", numbers(address)))
            for pid in before:
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(httpx.TransportError):
                list(lines)
        wait_for(lambda: len(worker_ids(process) - before) == 2)
        wait_for(lambda: len(re.findall(r"unmask_(?:live|waiting)_requests 0", numbers(address))) == 2)
        now = worker_ids(process)
        process.kill()
        wait_for(lambda: all(map(gone, now)))
        with listening_socket("127.0.0.1", int(address.rsplit(":", 1)[1])):
            pass  # nobody holds the port


@pytest.fixture
def run_folder(masked, tmp_path) -> Path:
    """A run whose `best` is a link to the first of two checkpoints."""
    shutil.copytree(masked.folder, tmp_path / "run" / "checkpoints" / "a")
    saved(tmp_path / "run" / "checkpoints" / "b", seed=1)
    (tmp_path / "run" / "best").symlink_to("checkpoints/a")
    return tmp_path / "run"


def texts(address: str, times: int = 12) -> set[str]:
    """The answers to one request, sent several times; a connection that is lost is not an answer."""
    body, found = {"prompt": "The ", "max_tokens": 20, "seed": 3}, set()
    for _ in range(times):
        with contextlib.suppress(httpx.TransportError):
            answer = httpx.post(f"{address}/v1/completions", json=body, timeout=120)
            found.add(answer.json()["choices"][0]["text"])
    return found


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the workers in /proc")
def test_a_replaced_worker_serves_the_model_of_the_start_though_the_run_has_another_best(run_folder):
    with command(str(run_folder), "--workers", "2") as (process, address):
        wait_for(lambda: len(worker_ids(process)) == 2)
        before, was = worker_ids(process), texts(address)
        (run_folder / "next").symlink_to("checkpoints/b")
        (run_folder / "next").rename(run_folder / "best")
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: len(worker_ids(process) - before) == 2)
        wait_for(lambda: len(texts(address, 1)) == 1)
        assert texts(address) == was


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the workers in /proc")
def test_a_worker_that_cannot_start_leaves_the_others_alone_and_is_tried_again(run_folder):
    away = run_folder.parent / "away"
    with command(str(run_folder), "--workers", "2") as (process, address):
        first, second = ready_ids(process)
        was = texts(address)
        (run_folder / "checkpoints").rename(away)
        os.kill(first, signal.SIGKILL)
        for line in process.stderr:
            if "could not start; a new one starts in 2 s" in line:
                break
        assert "there is no folder" not in line
        assert texts(address) == was
        shutil.copytree(away / "b", run_folder / "checkpoints" / "a")
        for line in process.stderr:
            if "not the one that this server was started with" in line:
                break
        assert texts(address) == was
        shutil.rmtree(run_folder / "checkpoints")
        away.rename(run_folder / "checkpoints")
        wait_for(lambda: len(worker_ids(process) - {first, second}) == 1)
        os.kill(second, signal.SIGKILL)
        wait_for(lambda: texts(address, 1) == was)


@pytest.mark.slow
def test_workers_that_cannot_start_at_all_end_the_server_in_words(masked, capfd):
    changed = load(masked.folder)
    changed.network.output_layer.linear.weight.data += 0.1
    settings = ServerSettings(workers=2, grace=1)
    with listening_socket("127.0.0.1", 0) as listening, pytest.raises(UserError, match="could not start"):
        serve(changed, settings, listening, load=load)
    assert "not the one that this server was started with" in capfd.readouterr().err


def changed_leaf(kind: type, default) -> object:
    """A value of a setting's type that is not its default."""
    if get_origin(kind) is Literal:
        return next(choice for choice in ("cpu", "float32", *get_args(kind)) if choice in get_args(kind))
    if kind is bool:
        return not default
    if kind in (int, float):
        return default + 1
    return ("one.example", "two.example") if get_origin(kind) is tuple else "other"


def command_line(kind: type, default, before: str, given: dict) -> list[str]:
    """Options that change every setting of a verb; `given` has those that cannot be made up."""
    words: list[str] = []
    for one in fields(kind):
        hint, value = get_type_hints(kind)[one.name], getattr(default, one.name)
        if is_dataclass(value):
            words += command_line(type(value), value, "limits." if one.name == "limits" else before, given)
            continue
        new = given.pop(one.name, None) or changed_leaf(hint, value)
        if one.name != "checkpoint":
            words.append(f"--{before}{one.name.replace('_', '-')}")
        words += [] if new is True else [str(part) for part in (new if isinstance(new, tuple) else (new,))]
    return words


def test_every_setting_of_the_command_line_reaches_every_worker(masked, tmp_path, monkeypatch):
    (tmp_path / "key").write_text("correct horse")
    guide = tmp_path / "guide"
    guide.mkdir()
    write_guide(guide, Predictor(masked, Answer(("up", "down"))).stored(), masked, {})
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    write_adapter(adapter, LowRankUpdates(masked.network, Adapter(rank=1)), str(masked.folder))
    with listening_socket("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    given = {
        **{"checkpoint": str(masked.folder), "key_file": tmp_path / "key", "classifier": guide, "dialect": "unmask"},
        **{"port": port, "host": "127.0.0.2", "threads": 1, "adapter": (f"one={adapter}",)},
    }
    default = serve_verb.Settings("")
    words = command_line(serve_verb.Settings, default, "", given)
    assert not given
    works = []
    monkeypatch.setattr(Workers, "run", lambda self: works.append(pickle.loads(pickle.dumps(self.work))))
    assert main(["serve", *words]) == 0
    (service,) = works[0].args
    asked = parse_settings("serve", words)
    assert service.settings == asked.server
    assert service.load.__self__ == asked.place
    assert (service.folder, service.key) == (masked.folder.resolve(), "correct horse")
    pairs = [(asked.server, default.server), (asked.server.limits, Limits()), (asked.place, default.place)]
    for now, was in pairs:
        for one in fields(now):
            assert getattr(now, one.name) != getattr(was, one.name), one.name
    assert load_again(service).network.compute == torch.float32


def test_workers_take_the_defaults_of_a_model_in_memory_and_refuse_one_without_a_folder(masked):
    settings, model = ServerSettings(workers=2), masked.with_sampling(sampler="entropy", top_p=0.5)
    assert load_again(service_of(model, settings, load)).sampling == {"sampler": "entropy", "top_p": 0.5}
    with pytest.raises(UserError, match="this model has none"):
        service_of(replace(masked, folder=None), settings, load)


def numbers(address: str) -> str:
    """The metrics, or nothing while no worker answers."""
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{address}/metrics", timeout=120).text
    return ""


@pytest.mark.slow
def test_several_processes_answer_behind_one_port_alike_and_add_up_their_numbers(masked):
    body = {"prompt": "The ", "max_tokens": 10, "seed": 3}
    with command(str(masked.folder), "--workers", "2", "--name", "two") as (process, address):
        answers = [httpx.post(f"{address}/v1/completions", json=body, timeout=120).json() for _ in range(12)]
        assert {answer["choices"][0]["text"] for answer in answers} == {answers[0]["choices"][0]["text"]}
        assert answers[0]["model"] == "two"
        counted = 'unmask_requests_total{route="/v1/completions",status="200"} 12.0'
        for _ in range(100):  # an answer is counted just after it is sent
            if counted in httpx.get(f"{address}/metrics", timeout=120).text:
                break
            time.sleep(0.02)
        assert counted in httpx.get(f"{address}/metrics", timeout=120).text
        said = stopped(process)
        assert said.startswith("unmask: loading ")
        assert "Traceback" not in said


@pytest.mark.slow
def test_the_key_comes_from_a_file_or_the_environment(masked, tmp_path):
    key = tmp_path / "key"
    key.write_text("correct horse\n")
    with command(str(masked.folder), "--key-file", str(key), UNMASK_API_KEY="another key") as (_, address):
        assert httpx.get(f"{address}/v1/models", timeout=120).status_code == 401
        right = {"authorization": "Bearer correct horse"}
        assert httpx.get(f"{address}/v1/models", headers=right, timeout=120).status_code == 200
        assert httpx.get(f"{address}/health", headers={"host": "evil.example"}, timeout=120).status_code == 421


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["nowhere/at/all"], "there is no folder"),
        (["MODEL", "--port", "70000"], "0 to 65535"),
        (["MODEL", "--port", "TAKEN"], "cannot listen"),
        (["MODEL", "--host", "203.0.113.7"], "cannot listen"),
        (["MODEL", "--workers", "0"], "1 to 256 worker processes"),
        (["MODEL", "--workers", "1000000"], "1 to 256 worker processes"),
        (["MODEL", "--grace", "inf"], "0 to 86,400 seconds"),
        (["MODEL", "--drain", "nan"], "0 to 86,400 seconds"),
        (["MODEL", "--limits.seconds", "inf"], "a finite number above 0"),
        (["MODEL", "--key-file", "no-such-file"], "cannot read no-such-file"),
    ],
)
def test_mistakes_on_the_command_line_are_told_without_a_traceback(masked, capsys, arguments, said):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        names = {"MODEL": str(masked.folder), "TAKEN": str(taken.getsockname()[1])}
        assert main(["serve", *(names.get(one, one) for one in arguments)]) == 2
    assert said in capsys.readouterr().err


def test_a_short_key_is_refused(masked, monkeypatch, capsys):
    monkeypatch.setenv("UNMASK_API_KEY", "short")
    assert main(["serve", str(masked.folder), "--port", "0"]) == 2
    error = capsys.readouterr().err
    assert "can be guessed" in error
    assert "short" not in error.replace("shorter", "")


@pytest.mark.parametrize(
    "name", ["body", "rows", "steps", "passes", "positions", "seconds", "connections", "arrival"]
)
def test_a_limit_that_lets_nothing_through_is_refused(name):
    with pytest.raises(UserError, match=f"'{name}' must be a finite number above 0"):
        Limits(**{name: 0})
