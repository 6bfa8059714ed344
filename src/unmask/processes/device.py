"""Where a network runs: its device, and the type of its matrix products."""

import json
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from unmask.errors import UserError

Device = Literal["auto", "cpu", "cuda", "mps"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]

# Some CPUs advertise instructions for small floats and kill the process that uses them: a child process tries them.
TRIAL = """
import sys, torch
a = torch.ones(256, 256)
with torch.autocast("cpu", dtype=getattr(torch, sys.argv[1])):
    (a @ a).sum().item()
"""


def device_of(name: str = "auto") -> torch.device:
    """The device of a name; auto: a GPU if there is one (that of this process under torchrun), else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(name, False):
        present = ", ".join(known for known, is_there in there.items() if is_there)
        raise UserError(f"there is no device {name!r}: torch {torch.__version__} sees {present}. Use --device cpu.")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if name == "cuda" else torch.device(name)


def compute_type(name: str, device: torch.device) -> torch.dtype:
    """The type of matrix products; auto: bfloat16 on CUDA, else float32. One that fails on this CPU is refused."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in ("float32", "bfloat16", "float16"):
        raise UserError(f"no type of numbers is called {name!r}. Known: float32, bfloat16, float16.")
    if device.type == "cpu" and name != "float32":
        failure = small_floats(name)
        if failure:
            raise UserError(f"{name} does not work on this CPU: {failure}. Use --dtype float32.")
    return getattr(torch, name)


@cache
def small_floats(name: str) -> str:
    """What goes wrong when this CPU multiplies matrices of a type; empty: nothing. Tried once, and remembered."""
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unmask" / f"{name}.json"
    key = f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {os.uname().nodename}"
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        if known["key"] == key:
            return str(known["said"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    failure = try_product(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"key": key, "said": failure}), encoding="utf-8")
    except OSError:
        pass  # it will be tried again
    return failure


def try_product(name: str) -> str:
    """What happens to a child process that multiplies two matrices of a type; empty: it works."""
    try:
        child = subprocess.run([sys.executable, "-c", TRIAL, name], capture_output=True, timeout=300, text=True)
    except subprocess.TimeoutExpired:
        return "a trial did not finish within 300 s"
    if child.returncode < 0:
        return f"a trial died with {signal.Signals(-child.returncode).name}"
    return child.stderr.strip().splitlines()[-1] if child.returncode else ""
