"""Records: everything that determines a number, stored with it."""

import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

import unmask
from unmask.evaluation.likelihood import draws
from unmask.hub import hub_origin
from unmask.model.model import Model
from unmask.model.weights import weights_fingerprint


def record(
    model: Model | None, *, seed: int | None, settings: dict[str, Any], data: dict[str, Any], **more: Any
) -> dict[str, Any]:
    """What was measured (model, data), how (settings, seed), by what (version, machine); `more` is added as it is.

    Without a model, the data are texts of unknown origin.
    """
    return {
        "unmask": unmask.__version__,
        "commit": source_commit(),
        "model": None if model is None else of_model(model),
        "data": data,
        "settings": settings,
        "seed": seed,
        "draws": draws.DTYPE,
        "machine": machine(),
        **more,
    }


def of_model(model: Model) -> dict[str, Any]:
    tokenizer = model.tokenizer
    return {
        "folder": None if model.folder is None else str(model.folder),
        "hub": hub_origin(model.folder),
        "weights": None if model.folder is None else weights_fingerprint(model.folder),
        "dtype": str(next(model.network.parameters()).dtype).removeprefix("torch."),
        "parameters": model.num_parameters,
        "objective": model.objective.name,
        "step": model.step,
        "ema": model.ema,
        "tokenizer": None if tokenizer is None else tokenizer.fingerprint,
    }


@cache
def machine() -> dict[str, Any]:
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "devices": devices,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def cpu() -> str:
    """The processor's name, as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


@cache
def source_commit() -> str | None:
    """The commit of the source tree, marked if files have changed since; None for an installed package."""
    root = Path(unmask.__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        results = [
            subprocess.run(
                ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20, check=True
            )
            for arguments in (("rev-parse", "HEAD"), ("status", "--porcelain", "--", "src"))
        ]
    except (OSError, subprocess.SubprocessError):
        return None
    return results[0].stdout.strip() + (" with changes" if results[1].stdout.strip() else "")
