"""Tiny studies: a file, and a way to run it in this process."""

from pathlib import Path
from typing import Any

import tomli_w

from unmask.cli.main import main

TINY: dict[str, Any] = {
    "title": "Two objectives",
    "seeds": [1],
    "train": {
        "steps": 4,
        "text": {"length": 16},
        "model": {"width": 16, "blocks": 1, "heads": 2},
        "optim": {"batch": 4, "warmup": 1},
        "run": {"preview": 0, "eval_rows": 4, "save_every": 2, "log_every": 1},
    },
    "data": {
        "train": [{"path": "train.txt", "documents": "line"}],
        "test": [{"path": "test.txt", "documents": "line"}],
        "prepare": {"tokenizer": "character", "workers": 1},
    },
    "measure": {"test": {"verb": "evaluate", "arguments": ["{test}"], "options": {"passes": 1}}},
    "column": [{"name": "perplexity", "measure": "test", "value": "perplexity"}],
    "row": [{"name": "MDLM"}, {"name": "AR", "train": {"objective": {"name": "ar"}}}],
}


def written(folder: Path, **changes: Any) -> Path:
    """The tiny study with some keys replaced, and its text beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.txt").write_text("the cat sat on the mat\na dog ran to the cat\n" * 20)
    (folder / "test.txt").write_text("a cat ran to the dog\nthe dog sat on a mat\n" * 4)
    path = folder / "study.toml"
    path.write_text(tomli_w.dumps({**TINY, **changes}))
    return path


def ran(path: Path, out: Path, *more: str) -> int:
    return main(["study", str(path), "--out", str(out), "--data-root", str(path.parent), "--jobs", "0", *more])
