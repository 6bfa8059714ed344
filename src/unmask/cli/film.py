"""A film of how a text emerged from masks: one HTML file with a play button."""

import sys
from pathlib import Path

from unmask.cli.table import write_file
from unmask.errors import UserError, how_many
from unmask.model.model import Model
from unmask.sampling.tasks.continuation import Sample
from unmask.sampling.tasks.infill import Infilled
from unmask.views.film import film, html


def check_film(path: Path | None) -> None:
    """Refuse, before any work is done, a file that no film can be written to."""
    if path is None:
        return
    if path.suffix.lower() != ".html":
        raise UserError(f"a film is an .html file; saw {path.name!r}.")
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {path.parent} to write {path.name} into.")


def write_film(path: Path | None, model: Model, drawn: Sample | Infilled) -> None:
    if path is None:
        return
    caption = f"{drawn.sampler}: {drawn.law}. {how_many(drawn.calls, 'forward pass')}, seed {drawn.seed}."
    shown = film(model.text_tokenizer(), drawn.tokens, drawn.trace, caption=caption)
    write_file(path, html(shown).encode())
    size = path.stat().st_size / 1000
    print(f"{path}: {how_many(shown.calls, 'forward pass')}, {size:,.0f} kB", file=sys.stderr)
