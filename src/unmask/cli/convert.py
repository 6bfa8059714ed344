"""Convert a checkpoint from or to another format, with a self-test, or set its default sampling settings.

The copy keeps the default sampling settings; each sampling option replaces one of them, and --plain drops the rest.

    unmask convert kuleshov-group/mdlm-owt models/mdlm-owt
    unmask convert runs/mine models/mine --dtype bfloat16 --sampler entropy --top-p 0.9
    unmask convert models/mine models/official --to official
    unmask convert runs/adapter models/merged              an adapter, multiplied into its base
    unmask convert model.gguf models/short --dialect llama --blocks 10    the first layers, to train on
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from unmask.cli.flags import Drawing
from unmask.errors import UserError
from unmask.model import convert
from unmask.model.adapter_files import is_adapter
from unmask.model.checkpoint import find, load
from unmask.sampling.recipe import DEFAULTS, Recipe, method_for, stored_defaults


@dataclass(frozen=True)
class Settings:
    source: Annotated[str, tyro.conf.Positional]  # a checkpoint's folder, or its name on the hub
    target: Annotated[Path, tyro.conf.Positional]  # the folder to write, which must not exist yet
    to: str = "unmask"  # layout to write: unmask, official, or another that is registered
    dtype: Literal["", "float32", "float16", "bfloat16"] = ""  # type to round the weights to; empty: no rounding
    dialect: str = ""  # the family of a published model whose files do not say it: llama or diffullama
    blocks: int = 0  # keep the first layers only, as a base to train on; 0: all
    recipe: Drawing = field(default_factory=Recipe)  # the model's default settings


def run(settings: Settings) -> None:
    asked = settings.recipe
    unset: dict[str, Any] = dict.fromkeys(DEFAULTS)
    if replace(asked, **unset, plain=False) != Recipe():
        raise UserError(f"a checkpoint stores only these sampling options: {', '.join(DEFAULTS)}.")
    source = load(settings.source, dialect=settings.dialect)
    method_for(source, asked)  # refuses, before anything is written, what the model cannot do
    defaults = stored_defaults(source) if settings.to == convert.OURS and not asked.plain else {}
    sampling = {**defaults, **chosen_options(asked)}
    if asked.sampler is not None and asked.steps is None:
        sampling.pop("steps", None)  # it belongs to the sampler that was replaced
    model = convert.convert(
        settings.source,
        settings.target,
        to=settings.to,
        dtype=settings.dtype,
        sampling=sampling,
        dialect=settings.dialect,
        blocks=settings.blocks,
    )
    same = "the adapter added to its base" if is_adapter(find(settings.source)[0]) else "weights equal bit for bit"
    same = f"its first {settings.blocks} layers" if settings.blocks else same
    weights = f"weights rounded to {settings.dtype}" if settings.dtype else same
    print(f"{settings.target}: {model.num_parameters:,} parameters, {settings.to} layout, {weights}")
    options = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in sampling.items())
    print(f"default sampling settings: {options or 'none'}")


def chosen_options(asked: Recipe) -> dict[str, Any]:
    """The sampling options that were given, of those that a checkpoint stores."""
    return {name: getattr(asked, name) for name in DEFAULTS if getattr(asked, name) is not None}
