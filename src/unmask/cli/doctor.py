"""Print versions, threads and devices, and whether bf16 works here.

unmask doctor
"""

import os
import platform
import signal
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from re import match

import torch

from unmask import __version__

# Some CPUs advertise bf16 instructions and crash when they are used, so a child process tries them.
BF16_TRIAL = "import torch; a = torch.ones(256, 256, dtype=torch.bfloat16); (a @ a).sum().item()"


@dataclass(frozen=True)
class Settings:
    """`unmask doctor` takes no options."""


def bf16_on_cpu() -> str:
    """What happens to a child process that multiplies two bf16 matrices on the CPU."""
    try:
        child = subprocess.run([sys.executable, "-c", BF16_TRIAL], capture_output=True, timeout=120, text=True)
    except subprocess.TimeoutExpired:
        return "not usable: a trial did not finish within 120 s"
    if child.returncode == 0:
        return "usable (a trial in a child process worked); float32 is still the default on CPU"
    if child.returncode < 0:
        return f"not usable: a trial died with {signal.Signals(-child.returncode).name}; float32 is used instead"
    return f"not usable: {child.stderr.strip().splitlines()[-1]}"


def devices() -> str:
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return f"{len(names)} x CUDA: {', '.join(names)}"
    return "CPU only"


def installed() -> list[tuple[str, str]]:
    """Each package unmask can use, with its version, in the order pyproject.toml names them."""
    rows: dict[str, str] = {}
    for requirement in requires("unmask") or []:
        found = match(r"[\w.-]+", requirement)
        if found is None or found[0] == "unmask":
            continue
        extra = requirement.split("extra ==")[-1].strip(" '\"") if "extra ==" in requirement else ""
        try:
            rows.setdefault(found[0], version(found[0]))
        except PackageNotFoundError:
            rows.setdefault(found[0], f"not installed (pip install 'unmask[{extra}]')")
    return list(rows.items())


def run(_: Settings) -> None:
    rows = [
        ("unmask", __version__),
        ("python", f"{platform.python_version()} on {platform.platform()}"),
        ("cores", f"{os.cpu_count()} seen, torch uses {torch.get_num_threads()} threads"),
        ("devices", devices()),
        ("bf16 on CPU", bf16_on_cpu()),
        *installed(),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
