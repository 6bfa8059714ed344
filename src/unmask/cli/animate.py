"""Animate how a text emerges from masks: a GIF, or one HTML file with a play button.

unmask animate stories --prompt "Once upon a time" -o story.gif --dark
unmask animate stories --template "The ___ sat on the [2]." -o blanks.html
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from unmask.cli.flags import Drawing, Place, Placing
from unmask.cli.table import write_file
from unmask.errors import UserError
from unmask.model.model import Model
from unmask.sampling.recipe import Recipe, doubt
from unmask.sampling.tasks.continuation import Sample, generate
from unmask.sampling.tasks.infill import Infilled, candidates
from unmask.text.prompt.template import parse
from unmask.views.film import Film, film, html
from unmask.views.gif import gif, pillow


@dataclass(frozen=True)
class Settings:
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]  # a checkpoint's folder, or hub name
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])]  # the file to write: .html or .gif
    length: int | None = None  # tokens of the text, prompt included; none: the training length
    prompt: str = ""  # text to begin with
    until: str | None = None  # end before this text or special token
    template: str | None = None  # fill these blanks instead, as `unmask infill` does
    seconds: float = 6.0  # duration in seconds
    columns: int = 64  # letters per line of the GIF
    dark: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False  # dark GIF; a page follows the reader's browser
    recipe: Drawing = field(default_factory=Recipe)
    place: Placing = field(default_factory=Place)


def run(settings: Settings) -> None:
    kind = settings.out.suffix.lower()
    if kind not in (".html", ".gif"):
        raise UserError(f"an animation is an .html or a .gif file; saw {settings.out.name!r}.")
    if not settings.out.parent.is_dir():
        raise UserError(f"there is no folder {settings.out.parent} to write {settings.out.name} into.")
    if not settings.seconds > 0:
        raise UserError(f"an animation needs more than 0 seconds; saw {settings.seconds}.")
    if kind == ".gif":
        pillow()
    shown = draw_film(settings.place.load(settings.model), settings)
    if kind == ".html":
        content = html(shown, seconds=settings.seconds).encode()
    else:
        content = gif(shown, columns=settings.columns, seconds=settings.seconds, dark=settings.dark)
    write_file(settings.out, content)
    print(f"{settings.out}: {shown.calls} network calls, {settings.out.stat().st_size / 1000:,.0f} kB")


def draw_film(model: Model, settings: Settings) -> Film:
    """One text and its film."""
    found: Sample | Infilled
    if settings.template is not None:
        events = candidates(model, parse(settings.template), settings.recipe)
        found = next(event for event in events if isinstance(event, Infilled))
    else:
        warning = doubt(model, settings.length or model.spec.length, settings.recipe)
        if warning is not None:
            print(f"unmask: warning: {warning}", file=sys.stderr)
        drawn = generate(
            model,
            settings.recipe,
            length=settings.length,
            prompt=settings.prompt,
            until=settings.until,
        )
        found = next(event for event in drawn if isinstance(event, Sample))
    caption = f"{found.sampler}: {found.law}. {found.calls} network calls, seed {found.seed}."
    return film(model.text_tokenizer(), found.tokens, found.trace, caption=caption)
