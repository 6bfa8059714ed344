"""How preparing and sampling scale from one to two workers of a Ray cluster, and what Ray costs on one.

    python bench/cluster.py [--rounds 3] [--megabytes 6] [--samples 64] [--out cluster.json]

The same text and the same samples, in this process, by one worker, by two, in turns; medians. Wall-clock seconds, and
processor seconds of this process and all that it has started. The start of a cluster, with a first task that imports
torch in every worker, is timed by itself.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import ray
import torch

import prepare as text_bench
from unmask import load
from unmask.cli.sample import Settings, draw_batch
from unmask.processes.cluster import Cluster
from unmask.sampling.recipe import Recipe
from unmask.text.corpus.prepare import choose, prepare
from unmask.text.corpus.shards import Division
from unmask.text.corpus.sources import gather

WAYS = {"this process": 0, "Ray, 1 worker": 1, "Ray, 2 workers": 2}
BATCH = 4


def processor_seconds() -> float:
    """Of this process and of all that descend from it, also of those that have ended and were waited for."""
    parents, taken = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        parents[int(path.parent.name)], taken[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))

    def ours(pid: int) -> bool:
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
        return pid == os.getpid()

    return sum(ticks for pid, ticks in taken.items() if ours(pid)) / os.sysconf("SC_CLK_TCK")


@contextmanager
def workers(count: int) -> Iterator[Cluster | None]:
    """A cluster of one node on this machine; None: no cluster."""
    if not count:
        yield None
        return
    ray.init(num_cpus=count, include_dashboard=False, log_to_driver=False)
    try:
        cluster = Cluster(count, count)
        list(cluster.map(time.sleep, [(0.5,)] * count))
        yield cluster
    finally:
        ray.shutdown()


def prepared(source: str, cluster: Cluster | None) -> int:
    with tempfile.TemporaryDirectory() as out, gather(source) as sources:
        tokenizer = choose("bpe", sources, size=1024, megabytes=1)
        steps = prepare(sources, tokenizer, out, division=Division(valid=0, characters=250_000), cluster=cluster)
        return list(steps)[-1].tokens


def drawn(settings: Settings, cluster: Cluster | None) -> int:
    model, batches = load(settings.model), settings.n // BATCH

    class Here:
        value = (model, settings)

    if cluster is None:
        some = (draw_batch(Here, number, batches) for number in range(batches))
    else:
        shared = cluster.share(Here.value)
        some = cluster.map(draw_batch, ((shared, number, batches) for number in range(batches)))
    return sum(len(sample.tokens) for samples in some for sample in samples)


def measured(
    works: dict[str, Callable[[Cluster | None], int]], rounds: int
) -> dict[str, dict[str, list[list[float]]]]:
    """Wall-clock and processor seconds by work and way; of a work all ways must give as many tokens."""
    times: dict[str, dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    tokens: dict[str, set[int]] = defaultdict(set)

    def timed(work: str, way: str, action: Callable[[], int | None]) -> None:
        wall, used = time.perf_counter(), processor_seconds()
        found = action()
        times[work][way].append([time.perf_counter() - wall, processor_seconds() - used])
        tokens[work] |= set() if found is None else {found}

    for _ in range(rounds):
        for way, count in WAYS.items():
            began, used = time.perf_counter(), processor_seconds()
            with workers(count) as cluster:
                times["start"][way].append([time.perf_counter() - began, processor_seconds() - used])
                for work, action in works.items():
                    timed(work, way, lambda action=action, cluster=cluster: action(cluster))
    assert all(len(found) == 1 for found in tokens.values()), tokens
    return times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=6)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--out")
    asked = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one worker means one core
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ |= {"RAY_worker_niceness": "0"}  # Ray's is 15: a busy machine would let its workers starve
    torch.set_num_threads(1)
    text_bench.MEGABYTES = asked.megabytes
    with tempfile.TemporaryDirectory() as folder:
        text_bench.write_text(Path(folder) / "text.txt")
        settings = Settings("stories", n=asked.samples, length=64, recipe=Recipe(seed=1, batch=BATCH))
        works = {
            f"prepare, {asked.megabytes} MB": lambda cluster: prepared(f"{folder}/text.txt", cluster),
            f"sample, {asked.samples} texts": lambda cluster: drawn(settings, cluster),
        }
        times = measured(works, asked.rounds)
    rows = [
        {
            "work": work,
            "way": way,
            "wall": round(wall, 2),
            "processor": round(used, 2),
            "speed-up": round(first / wall, 2),
        }
        for work, ways in times.items()
        for first in [statistics.median(one for one, _ in ways["this process"])]
        for way, some in ways.items()
        if work != "start" or WAYS[way]
        for wall, used in [[statistics.median(column) for column in zip(*some, strict=True)]]
    ]
    load_average = os.getloadavg()[0]
    for row in rows:
        shown = f"{row['speed-up']:>8.2f}" if row["work"] != "start" else ""
        print(f"{row['work']:<22} {row['way']:<16} {row['wall']:>8.2f} s {row['processor']:>8.2f} s{shown}")
    print(f"load of the machine at the end: {load_average:.1f}")
    if asked.out:
        record = {"rounds": asked.rounds, "rows": rows, "load": round(load_average, 1)}
        Path(asked.out).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
