"""Turn an official checkpoint into one of ours, with a self-test, or one of ours into an official one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from unmask.model import convert
from unmask.model.checkpoint import load
from unmask.sampling.recipe import WAY, Recipe, method_for


@dataclass(frozen=True)
class Settings:
    source: Annotated[str, tyro.conf.Positional]  # a checkpoint's folder, or its name on the hub
    target: Annotated[Path, tyro.conf.Positional]  # a folder that does not exist yet
    to: Literal["unmask", "official"] = "unmask"  # the layout to write
    dtype: Literal["", "float32", "float16", "bfloat16"] = ""  # round the weights; empty: leave them as they are
    sampler: str | None = None  # how the model is drawn by those who ask for nothing else; None: as it was
    steps: int | None = None  # of that sampler
    temperature: float | None = None  # and how boldly
    top_p: float | None = None  # only the most likely tokens that together have this mass
    top_k: int | None = None  # only the k most likely tokens
    no_repeat: int | None = None  # a run of so many tokens stands once in a text, if it can be helped


def run(settings: Settings) -> None:
    way = {name: value for name in WAY if (value := getattr(settings, name)) is not None}
    if way:
        # A way that cannot be gone is refused before anything is written.
        method_for(load(settings.source), Recipe(**way))
    model = convert.convert(settings.source, settings.target, to=settings.to, dtype=settings.dtype, sampling=way)
    weights = f"weights rounded to {settings.dtype}" if settings.dtype else "weights equal bit for bit"
    print(f"{settings.target}: {model.num_parameters:,} parameters, {settings.to} layout, {weights}")
