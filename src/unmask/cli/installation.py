"""What is installed: versions, threads and devices, whether bf16 works here, and what each purpose lacks."""

import os
import platform
import textwrap
from importlib.metadata import PackageNotFoundError, requires, version
from re import match

import torch

from unmask import __version__
from unmask.errors import install
from unmask.openmp import POLICIES
from unmask.processes.device import try_product


def bf16_on_cpu() -> str:
    """What happens to a child process that multiplies two bf16 matrices on the CPU."""
    failure = try_product("bfloat16")
    return f"not usable: {failure}" if failure else "usable (--dtype bfloat16), and tried by train --minutes"


def devices() -> str:
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return f"{len(names)} x CUDA: {', '.join(names)}"
    return "Apple GPU (mps) and CPU" if torch.backends.mps.is_available() else "CPU only"


def waiting() -> str:
    """How OpenMP's threads wait for each other, by the environment that it was loaded with."""
    given = [f"{name}={os.environ[name]}" for name in POLICIES if name in os.environ]
    return f"while they wait for each other: {', '.join(given)}"


PURPOSES = {
    "": "sample, infill, train",
    "train": "read .parquet, .zst and the hub, draw curves, TensorBoard",
    "serve": "serve a model",
    "eval": "evaluate by other models, lm-eval",
    "track": "write curves for wandb or mlflow",
    "dna": "run fast DNA networks",
    "dev": "develop unmask",
    "browser": "test the page in a browser",
    "docs": "build the documentation",
}


def packages() -> dict[str, list[str]]:
    """The packages that unmask can use, by the extra that brings them; the empty name: those it always has."""
    by_purpose: dict[str, list[str]] = {}
    for requirement in requires("unmask") or []:
        name = match(r"[\w.-]+", requirement)
        extra = requirement.split("extra ==")[-1].strip(" '\"") if "extra ==" in requirement else ""
        if name is not None and name[0] != "unmask":
            by_purpose.setdefault(extra, []).append(name[0])
    return by_purpose


def purposes() -> list[tuple[str, str]]:
    """For each purpose the versions of its packages, or the command that installs those that are missing."""
    lines = []
    by_purpose, order = packages(), list(PURPOSES)
    for extra in sorted(by_purpose, key=lambda extra: order.index(extra) if extra in order else len(order)):
        names = by_purpose[extra]
        present, missing = [], []
        for name in names:
            try:
                present.append(f"{name} {version(name)}")
            except PackageNotFoundError:
                missing.append(name)
        lines.append(("to " + PURPOSES.get(extra, extra), "ready" if not missing else f"needs: {install(extra)}"))
        lines += [("", ", ".join(present))] if present else []
        lines += [("", f"missing: {', '.join(missing)}")] if missing else []
    return lines


def print_installation() -> None:
    rows = [
        ("unmask", __version__),
        ("python", f"{platform.python_version()} on {platform.platform()}"),
        ("cores", f"{os.cpu_count()} seen"),
        ("threads", f"at most {torch.get_num_threads()} (--threads N for another number); {waiting()}"),
        ("devices", devices()),
        ("bf16 on CPU", bf16_on_cpu()),
    ]
    for name, value in rows:
        print(f"{name:<13}{value}")
    for title, value in purposes():
        print(
            f"\n{title}: {value}" if title else textwrap.fill(value, 110, initial_indent="  ", subsequent_indent="  ")
        )
