"""Convert published checkpoints to our layout and back. The weights file is copied, so both directions are exact.

With another type of weights the copy is rounded, and its self-test is recorded with the rounded network.
"""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from unmask.errors import UserError, unknown
from unmask.files import appearing
from unmask.model.checkpoint import load, save, write_note
from unmask.model.format import FORMATS, read_config
from unmask.model.formats.official import OURS, is_published
from unmask.model.model import Model
from unmask.model.weights import INDEX, files_of
from unmask.settings import described

# Files of other programs that are copied along; code (*.py) is not, because it is never run.
TEXT_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "merges.txt",
    "vocab.json",
    "vocab.txt",
)


def convert(
    source: str | Path,
    target: str | Path,
    *,
    to: str = "unmask",
    dtype: str = "",
    sampling: Mapping[str, Any] | None = None,
) -> Model:
    """Check a checkpoint and write a copy: `to` our layout, with a self-test, or to the official layout, without.

    dtype      float16 or bfloat16 halve the file; empty keeps the type of the weights
    sampling   default sampling settings to store: {"sampler": "entropy", "top_p": 0.9}
    """
    if to not in FORMATS:
        raise unknown("checkpoint format", to, list(FORMATS))
    target = Path(target)
    if target.exists():
        raise UserError(f"{target} exists already: give a folder that does not.")
    if sampling and to != "unmask":
        raise UserError("the official layout cannot store default sampling settings.")
    if dtype:
        return rounded(with_sampling(load(source, trainable=True), sampling), target, to=to, dtype=dtype)
    model = with_sampling(load(source), sampling)
    assert model.folder is not None
    config = read_config(model.folder)
    if to == "official":
        FORMATS[to]().config(model.spec, model.objective, mask=model.mask, dtype="float32")  # or raises
        if not is_published(config):
            ours = ", ".join(key for key in OURS if key in config)
            raise UserError(f"the official layout has no such network: {source} needs {ours} in its config.json.")
    with appearing(target) as draft:
        for name in (*(file.name for file in files_of(model.folder)), INDEX, "config.json", *TEXT_FILES):
            if (model.folder / name).is_file():
                shutil.copyfile(model.folder / name, draft / name)
        if to == "unmask":
            if model.tokenizer is not None and not any((draft / name).exists() for name in TEXT_FILES):
                model.tokenizer.save(draft)
            said = {
                "objective": described(model.objective),
                "step": model.step,
                "ema": model.ema,
                "settings": dict(model.settings),
            }
            write_note(
                draft, said, model.network, mask=model.mask, objective=model.objective, tokenizer=model.tokenizer
            )
    return model


def with_sampling(model: Model, sampling: Mapping[str, Any] | None) -> Model:
    return replace(model, settings={**model.settings, "sampling": dict(sampling)}) if sampling else model


def rounded(model: Model, target: Path, *, to: str, dtype: str) -> Model:
    """A copy in our layout whose weights have another type."""
    if to != "unmask":
        raise UserError(f"weights are rounded to {dtype} only in our layout: convert twice.")
    save(
        target,
        model.network,
        mask=model.mask,
        objective=model.objective,
        tokenizer=model.tokenizer,
        settings=model.settings,
        step=model.step,
        ema=bool(model.ema),
        dtype=dtype,
        parts=model.parts,
        state=model.state,
    )
    return model
