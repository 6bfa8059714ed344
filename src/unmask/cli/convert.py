"""Convert an official checkpoint into an unmask checkpoint, with a self-test, or the other way round.

Sampling options become the default sampling settings of the new checkpoint.

    unmask convert kuleshov-group/mdlm-owt models/mdlm-owt
    unmask convert runs/mine models/mine --dtype bfloat16 --sampler entropy --top-p 0.9
    unmask convert models/mine models/official --to official
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from unmask.cli.flags import Drawing
from unmask.errors import UserError
from unmask.model import convert
from unmask.model.checkpoint import load
from unmask.sampling.recipe import DEFAULTS, Recipe, method_for


@dataclass(frozen=True)
class Settings:
    source: Annotated[str, tyro.conf.Positional]  # a checkpoint's folder, or its name on the hub
    target: Annotated[Path, tyro.conf.Positional]  # the folder to write, which must not exist yet
    to: str = "unmask"  # layout to write: unmask, official, or another that is registered
    dtype: Literal["", "float32", "float16", "bfloat16"] = ""  # type to round the weights to; empty: no rounding
    recipe: Drawing = field(default_factory=Recipe)  # the model's default settings


def run(settings: Settings) -> None:
    plain, asked = Recipe(), settings.recipe
    chosen = {name: getattr(asked, name) for name in DEFAULTS if getattr(asked, name) != getattr(plain, name)}
    if replace(asked, **{name: getattr(plain, name) for name in DEFAULTS}) != plain:
        raise UserError(f"a checkpoint stores only these sampling options: {', '.join(DEFAULTS)}.")
    if chosen:
        method_for(load(settings.source), asked)  # refuses, before anything is written, what the model cannot do
    model = convert.convert(settings.source, settings.target, to=settings.to, dtype=settings.dtype, sampling=chosen)
    weights = f"weights rounded to {settings.dtype}" if settings.dtype else "weights equal bit for bit"
    print(f"{settings.target}: {model.num_parameters:,} parameters, {settings.to} layout, {weights}")
