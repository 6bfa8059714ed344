"""The command: starting, stopping, several processes, and what it refuses."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest
from servers import serving

from unmask.cli.main import main
from unmask.errors import UserError
from unmask.serving.limits import Limits


@contextlib.contextmanager
def command(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen, str]]:
    """`unmask serve` as a process of its own, once it answers; gives it and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "unmask", "serve", *arguments, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    try:
        line = process.stdout.readline()
        found = re.search(r"http://\S+:\d+", line)
        assert found, line + process.stderr.read()
        for _ in range(600):
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{found[0]}/health", timeout=1).status_code == 200:
                    break
            time.sleep(0.05)
        yield process, found[0]
    finally:
        process.kill()
        process.communicate()


def stopped(process: subprocess.Popen) -> str:
    """What a server that is told to stop has written to its log."""
    process.send_signal(signal.SIGTERM)
    return process.communicate(timeout=30)[1]


@pytest.mark.slow
def test_when_told_to_stop_it_finishes_what_is_under_way_and_lets_nobody_in(masked):
    body = {"prompt": "The ", "max_tokens": 44, "n": 16, "sampler": "entropy", "seed": 1, "stream": True}
    with command(str(masked.folder)) as (process, address):
        with httpx.stream(
            "POST", f"{address}/v1/completions", json={**body, "events": "steps"}, timeout=30
        ) as stream:
            lines = stream.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            with pytest.raises(httpx.TransportError):
                httpx.get(f"{address}/health", timeout=2)
            rest = list(lines)
        assert rest[-2] == "data: [DONE]"
        _, errors = process.communicate(timeout=20)
        assert process.returncode in (0, -signal.SIGTERM)
        assert "Traceback" not in errors
        assert "The " not in errors


def test_a_request_that_outlasts_the_grace_does_not_keep_the_server_up(slowed):
    body = {"max_tokens": 40, "stream": True, "events": "steps"}
    with contextlib.ExitStack() as later:
        with serving(slowed(0.3)[0], grace=1) as address:  # 40 calls take 12 s
            stream = later.enter_context(httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=30))
            lines = stream.iter_lines()
            assert next(lines) == "event: begin"
            began = time.monotonic()
        assert 0.9 < time.monotonic() - began < 8
        rest = []
        with contextlib.suppress(httpx.TransportError):
            rest.extend(lines)
        assert "data: [DONE]" not in rest


@pytest.mark.slow
def test_several_processes_answer_behind_one_port_alike_and_add_up_their_numbers(masked):
    body = {"prompt": "The ", "max_tokens": 10, "seed": 3}
    with command(str(masked.folder), "--workers", "2", "--name", "two") as (process, address):
        answers = [httpx.post(f"{address}/v1/completions", json=body, timeout=30).json() for _ in range(12)]
        assert {answer["choices"][0]["text"] for answer in answers} == {answers[0]["choices"][0]["text"]}
        assert answers[0]["model"] == "two"
        counted = 'unmask_requests_total{route="/v1/completions",status="200"} 12.0'
        for _ in range(100):  # an answer is counted just after it is sent
            if counted in httpx.get(f"{address}/metrics").text:
                break
            time.sleep(0.02)
        assert counted in httpx.get(f"{address}/metrics").text
        assert "Traceback" not in stopped(process)


@pytest.mark.slow
def test_the_key_comes_from_a_file_or_the_environment(masked, tmp_path):
    key = tmp_path / "key"
    key.write_text("correct horse\n")
    with command(str(masked.folder), "--key-file", str(key), UNMASK_API_KEY="another key") as (_, address):
        assert httpx.get(f"{address}/v1/models").status_code == 401
        right = {"authorization": "Bearer correct horse"}
        assert httpx.get(f"{address}/v1/models", headers=right).status_code == 200
        assert httpx.get(f"{address}/health", headers={"host": "evil.example"}).status_code == 421


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["nowhere/at/all"], "there is no folder"),
        (["MODEL", "--port", "70000"], "0 to 65535"),
        (["MODEL", "--port", "TAKEN"], "cannot listen"),
        (["MODEL", "--host", "203.0.113.7"], "cannot listen"),
        (["MODEL", "--workers", "0"], "at least one worker"),
        (["MODEL", "--key-file", "no-such-file"], "cannot read the key file"),
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


@pytest.mark.parametrize("name", ["body", "rows", "steps", "passes", "positions", "seconds"])
def test_a_limit_that_lets_nothing_through_is_refused(name):
    with pytest.raises(UserError, match=f"'{name}' must be greater than 0"):
        Limits(**{name: 0})
