"""Two versions of the code in turns: what became slower or faster, job by job.

    git worktree add /tmp/old v1.0
    OMP_NUM_THREADS=1 python bench/turns.py /tmp/old .                 all jobs, 9 turns
    OMP_NUM_THREADS=1 python bench/turns.py /tmp/old . --only masked --rounds 21
    OMP_NUM_THREADS=1 python bench/turns.py /tmp/old . --serve         the server: processor time per request

Each version has a process of its own, in which its own bench/page.py and bench/growth.py make the jobs. A turn runs a
job in one process, then in the other; its figure is the ratio of processor times, so other work on the machine counts
little. Printed: the median over turns, and the middle half of them. `--mkl`: the new version without oneDNN, which
shows what is not due to faster products.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from os import environ, sysconf
from pathlib import Path
from statistics import median, quantiles
from typing import Any

LEAST = 0.1  # seconds of a turn: short jobs run several times


def jobs() -> dict[str, Callable[[], Callable[[], Any]]]:
    """Each job of this version by name, made when it is needed."""
    import growth
    import page
    from unmask.sampling.process import PROCESSES

    kinds = growth.kinds() if hasattr(growth, "kinds") else sorted(PROCESSES)
    made: dict[str, Callable[[], Callable[[], Any]]] = {
        name: lambda one=one: one().run for name, one in page.JOBS.items() if "textbook" not in name
    }
    for batch in (1, 8):
        for kind in kinds:
            made[f"{kind}, small, batch {batch}"] = lambda k=kind, b=batch: growth.calls(k, growth.BASE, b)
    smallest = replace(growth.BASE, width=64, length=64)
    for kind in ("masked", "autoregressive", "blockwise"):
        made[f"{kind}, smallest, batch 1"] = lambda k=kind: growth.calls(k, smallest, 1)
    return made


def work(*, mkl: bool) -> None:
    """Runs the jobs that are asked for by name and number of times; says the processor seconds of each."""
    if mkl:
        from unmask.model import linear

        linear.faster_with_onednn = lambda: False
    ready: dict[str, Callable[[], Any]] = {}
    known = jobs()
    print(*known, sep="\t", flush=True)
    for line in sys.stdin:
        name, times = line.rstrip("\n").split("\t")
        if name not in ready:
            ready.clear()  # one job at a time in memory
            ready[name] = known[name]()
            for _ in range(3):  # the first runs of anything are slower
                ready[name]()
        began = time.process_time()
        for _ in range(int(times)):
            ready[name]()
        print(time.process_time() - began, flush=True)


def own_path(tree: Path) -> dict[str, str]:
    return {**environ, "PYTHONPATH": f"{tree / 'src'}:{tree / 'bench'}"}


class Version:
    """A process that runs the jobs of a version."""

    def __init__(self, tree: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", __file__, "--work", *options],
            env=own_path(tree),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.jobs = self.process.stdout.readline().rstrip("\n").split("\t")

    def seconds(self, name: str, times: int) -> float:
        self.process.stdin.write(f"{name}\t{times}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def shown(name: str, old: list[float], new: list[float], unit: str) -> str:
    ratios = [b / a for a, b in zip(old, new, strict=True)]
    low, _, high = quantiles(ratios, n=4)
    before, now = (1e3 * median(one) for one in (old, new))
    return f"{name:<34} {before:9.2f} {now:9.2f} {unit}   {median(ratios):.2f} ({low:.2f} to {high:.2f})"


def compare(old: Version, new: Version, only: str, rounds: int) -> None:
    for name in (name for name in old.jobs if name in new.jobs and only in name):
        once = min(old.seconds(name, 1) for _ in range(2))
        times = max(1, round(LEAST / once))
        new.seconds(name, 1)
        taken: list[list[float]] = [[], []]
        for _ in range(rounds):
            for one, version in zip(taken, (old, new), strict=True):
                one.append(version.seconds(name, times) / times)
        print(shown(name, *taken, "ms"), flush=True)


@contextmanager
def server(tree: Path, model: Path) -> Iterator[tuple[str, int]]:
    """The server of a version: its address and its process."""
    import serve

    kept = environ.get("PYTHONPATH", "")
    environ["PYTHONPATH"] = str(tree / "src")
    try:
        with serve.server(model) as found:
            environ["PYTHONPATH"] = kept
            yield found
    finally:
        environ["PYTHONPATH"] = kept


def spent(pid: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / sysconf("SC_CLK_TCK")


def compare_servers(trees: list[Path], rounds: int, *, requests: int = 24, tokens: int = 24) -> None:
    import httpx

    import serve

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        size = "width=128, blocks=4, length=128"
        made = f"import serve, pathlib, sys; serve.small_model(pathlib.Path(sys.argv[1]), {size})"
        subprocess.run([sys.executable, "-P", "-c", made, folder], env=own_path(trees[0]), check=True)
        model = Path(folder) / "small"  # made by the old version: the new one reads its files
        servers = [stack.enter_context(server(tree, model)) for tree in trees]
        for clients in (1, 8):
            taken: list[list[float]] = [[], []]
            for number in range(rounds + 1):
                for one, (address, pid) in zip(taken, servers, strict=True):
                    before = spent(pid)
                    with ThreadPoolExecutor(clients) as pool, httpx.Client(base_url=address, timeout=300) as client:
                        asked = [serve.body(seed, tokens) for seed in range(requests)]
                        list(pool.map(lambda body, c=client: c.post("/v1/completions", json=body), asked))
                    if number:
                        one.append((spent(pid) - before) / requests)
            print(shown(f"a request, {clients} clients", *taken, "ms"), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", type=Path, help="the folders of both versions, the old one first")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="jobs whose name contains this")
    parser.add_argument("--mkl", action="store_true")
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.work:
        work(mkl=asked.mkl)
        return
    old, new = (tree.resolve() for tree in asked.trees)
    print(f"{'':<34} {'old':>9} {'new':>9}      new / old")
    if asked.serve:
        compare_servers([old, new], asked.rounds)
        return
    compare(Version(old), Version(new, *["--mkl"] * asked.mkl), asked.only, asked.rounds)


if __name__ == "__main__":
    main()
