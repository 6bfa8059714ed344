"""A Ray cluster gives what one process gives, token for token and shard for shard, whatever fails: `make cluster`."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import tiny
from unmask.cli.main import main
from unmask.errors import UserError
from unmask.processes.cluster import Cluster, connect_cluster

sys.path.insert(0, str(Path(__file__).parents[1] / "studies"))
from tiny_study import ran, written


def output(capsys, *words):
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured.out


def test_a_word_that_names_no_cluster_is_refused(tmp_path, capsys):
    folder = tiny.checkpoint(tmp_path / "model")
    assert main(["sample", str(folder), "--on", "slurm"]) == 2
    assert "--on is ray, ray://HEAD:10001 or HOST:6379; saw 'slurm'." in capsys.readouterr().err


def test_steps_of_a_cluster_cannot_be_streamed_and_a_launcher_does_not_go_with_it(tmp_path, capsys):
    folder = tiny.checkpoint(tmp_path / "model")
    assert main(["sample", str(folder), "--on", "ray", "--stream"]) == 2
    assert "leave out --on, or --stream" in capsys.readouterr().err
    path = written(tmp_path)
    more = ("--on", "ray", "--launcher", "torchrun")
    assert main(["study", str(path), "--out", str(tmp_path / "o"), "--data-root", str(tmp_path), *more]) == 2
    assert "leave out --launcher, or --on" in capsys.readouterr().err


def test_more_threads_than_any_node_has_cores_are_refused():
    with pytest.raises(UserError, match="computes with 4 threads, and no node of the cluster has more than 2 cores"):
        Cluster(cores=8, widest=2).submit(len, (), threads=4)


def test_without_a_cluster_the_work_stays_here():
    with connect_cluster("") as cluster:
        assert cluster is None


@pytest.fixture(scope="module")
def nodes():
    """Two nodes on this machine, of two cores each."""
    from ray.cluster_utils import Cluster as Nodes

    before = dict(os.environ)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    os.environ |= {"RAY_worker_niceness": "0"}  # Ray's is 15: a busy machine would let its workers starve
    nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 2})
    nodes.add_node(num_cpus=2)
    os.environ["RAY_ADDRESS"] = nodes.address
    yield nodes
    nodes.shutdown()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("abba cab. bad, cafe\ngab had a bag\n" * 400)
    return path


cluster = pytest.mark.cluster


@cluster
def test_samples_are_the_same_in_the_same_order(nodes, model, capsys):
    words = ("sample", model, "-n", 7, "--batch", 2, "--seed", 3, "--json")
    here, there = (
        [json.loads(line) for line in output(capsys, *words, *more).splitlines()] for more in ((), ("--on", "ray"))
    )
    assert [one["tokens"] for one in here] == [one["tokens"] for one in there]
    assert [one["row"] for one in there] == list(range(7))


@cluster
def test_a_measurement_has_the_same_numbers_and_errors(nodes, model, text, capsys):
    words = ("evaluate", model, text, "--passes", 2, "--batch-tokens", 64, "--rows", 40, "--json")
    here, there = (json.loads(output(capsys, *words, *more)) for more in ((), ("--on", "ray")))
    for name in ("nats_per_token", "standard_error", "data_standard_error", "tokens"):
        assert here[name] == there[name]


@cluster
def test_an_error_in_a_task_reaches_the_user_as_it_does_here(nodes, tmp_path, text, capsys):
    words = ("prepare", text, "--out", tmp_path / "out", "--tokenizer", "dna", "--on", "ray")
    assert main([str(word) for word in words]) == 2
    told = capsys.readouterr().err
    assert "Traceback" not in told
    assert "unmask: " in told


def busy_workers():
    """The processes of our nodes that do a task; other clusters on this machine are left alone."""
    parents, busy = {}, []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if b"ray::_perform" in (entry / "cmdline").read_bytes()[:200]:
                busy.append(int(entry.name))
        except OSError:  # it has just ended
            continue

    def ours(pid):
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
        return pid == os.getpid()

    return [pid for pid in busy if ours(pid)]


def shards(folder):
    return {path.name: path.read_bytes() for path in sorted((folder / "shards").glob("*.bin"))}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Text enough that its preparation can be disturbed."""
    folder = tmp_path_factory.mktemp("texts")
    for number in range(6):
        documents = (f"{i} {number} " + "a dog and a cat. " * 400 for i in range(300))
        (folder / f"{number}.txt").write_text("\n\n".join(documents))
    return folder


@cluster
def test_shards_are_the_same_though_the_command_is_killed_and_typed_again(nodes, texts, tmp_path, capsys):
    words = ["prepare", str(texts), "--tokenizer", "byte", "--characters", "100000"]
    output(capsys, *words, "--out", tmp_path / "here", "--workers", 1)
    words += ["--out", str(tmp_path / "there"), "--on", "ray"]
    driver = subprocess.Popen([sys.executable, "-m", "unmask", *words], stderr=subprocess.PIPE)
    while not list((tmp_path / "there").rglob("*.bin")):
        assert driver.poll() is None, driver.stderr.read()
        time.sleep(0.01)
    driver.kill()
    driver.communicate()
    finished = len(shards(tmp_path / "there"))
    output(capsys, *words)
    assert finished < len(shards(tmp_path / "here"))
    assert shards(tmp_path / "here") == shards(tmp_path / "there")


@cluster
def test_shards_are_the_same_though_a_worker_is_killed_and_a_node_lost(nodes, texts, tmp_path, capsys):
    more = ("--tokenizer", "byte", "--characters", "100000")
    output(capsys, "prepare", texts, "--out", tmp_path / "here", "--workers", 1, *more)
    third = nodes.add_node(num_cpus=2)
    stop = threading.Event()
    killed = []

    def spoil():
        while not stop.is_set() and len(killed) < 2:
            time.sleep(0.2)
            for pid in busy_workers()[:1]:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
        nodes.remove_node(third, allow_graceful=False)

    thread = threading.Thread(target=spoil)
    thread.start()
    output(capsys, "prepare", texts, "--out", tmp_path / "there", "--on", "ray", *more)
    stop.set()
    thread.join()
    assert killed
    assert shards(tmp_path / "here") == shards(tmp_path / "there")


@cluster
def test_a_study_has_the_same_table_though_the_worker_that_trains_is_killed(nodes, tmp_path, capsys):
    path = written(tmp_path)
    assert ran(path, tmp_path / "here") == 0
    killed = threading.Event()

    def kill_one():
        """Kill the process that writes a training run, once it has begun."""
        while not killed.is_set():
            time.sleep(0.05)
            if not list((tmp_path / "there").glob("rows/*/*/train-*/run/metrics.jsonl")):
                continue
            for pid in busy_workers()[:1]:
                os.kill(pid, signal.SIGKILL)
                killed.set()

    thread = threading.Thread(target=kill_one, daemon=True)
    thread.start()
    words = ["study", str(path), "--out", str(tmp_path / "there"), "--data-root", str(tmp_path), "--on", "ray"]
    assert main(words) == 0, capsys.readouterr().err
    assert killed.is_set()
    rows = [json.loads((tmp_path / name / "table.json").read_text())["rows"] for name in ("here", "there")]
    values = [{row["name"]: [cell["values"] for cell in row["cells"]] for row in some} for some in rows]
    assert values[0] == values[1]
