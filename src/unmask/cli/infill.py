"""Fill the blanks of a template in different ways, best first.

[5] is a blank of five tokens, [2-6] of two to six, ___ of any length. \\[ and \\_ are a plain bracket and underscore.

    unmask infill stories "Lily saw a big [1] and [4]. Lily was very happy." --n 3
    unmask infill stories "The ___ sat on the [2]." --longest 4 --sampler entropy
    unmask infill stories "The [3] sat on the [5]." --film blanks.html
    unmask infill runs/mine --file templates.txt --json
"""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.text import Text

from unmask.cli.film import check_film, write_film
from unmask.cli.flags import AsJson, Drawing, ModelName, Place, Placing
from unmask.errors import UserError
from unmask.model.model import Model
from unmask.sampling.recipe import Recipe
from unmask.sampling.tasks.infill import Infilled, candidates, too_long
from unmask.text.prompt.template import parse
from unmask.text.tokens.pieces import pieces
from unmask.text.tokens.tokenizer import Tokenizer
from unmask.untrusted import printable
from unmask.views.terminal import RECENT, watch

# The fields of a candidate in a line of --json, besides its template.
FIELDS = (
    *("text", "blanks", "lengths", "tokens", "score", "log_likelihood", "error"),
    *("length_probability", "length_error", "note", "seed", "row", "calls", "sampler", "law", "seconds"),
)


HEADER = "  score  text"


@dataclass(frozen=True)
class Settings:
    model: ModelName
    template: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="TEMPLATE")] = None  # see above
    file: Path | None = None  # templates, one per line, in place of TEMPLATE; -: standard input
    given: str = ""  # for a model of pairs: the text that the template answers
    n: int = 1  # different candidates to find
    shortest: int = 1  # fewest tokens of ___
    longest: int = 8  # most tokens of ___
    tries: int = 16  # most choices of lengths to compare
    passes: int = 32  # forward passes to score a candidate; at most 32 times as many to compare lengths
    json: AsJson = False
    film: Path | None = None  # write an .html file that shows the first text emerging from masks
    recipe: Drawing = field(default_factory=Recipe)
    place: Placing = field(default_factory=Place)


def run(settings: Settings) -> None:
    check_film(settings.film)
    recipe, templates = settings.recipe, read_templates(settings)
    parsed = [parse(template, least=settings.shortest, most=settings.longest) for template in templates]
    model = settings.place.load(settings.model)
    warnings = [too_long(model, template, settings.tries) for template in parsed]
    if any(warnings):
        print(f"unmask: warning: {next(filter(None, warnings))}", file=sys.stderr)
    for number, (text, template) in enumerate(zip(templates, parsed, strict=True)):
        asked = {"n": settings.n, "tries": settings.tries, "passes": settings.passes}
        events = candidates(model, template, recipe, **asked, given=settings.given)
        if settings.json or not sys.stdout.isatty():
            best = [event for event in events if isinstance(event, Infilled)]
        else:
            best = list(watch(events, model.text_tokenizer(), Console()))
        if number == 0 and not settings.json:
            print(HEADER, file=sys.stderr, flush=True)
        write_candidates(best, text, model, as_json=settings.json)
        if best[0].note and not settings.json:
            print(f"unmask: note: {best[0].note}", file=sys.stderr)
        if number == 0:
            write_film(settings.film, model, best[0])


def read_templates(settings: Settings) -> list[str]:
    if (settings.template is None) == (settings.file is None):
        raise UserError(
            'give a template, such as "The ___ sat on the [5].", or --file with one per line, and not both.'
        )
    if settings.file is None:
        return [settings.template or ""]
    try:
        text = sys.stdin.read() if str(settings.file) == "-" else settings.file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read templates from {settings.file}: {error}.") from None
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise UserError(f"{settings.file} holds no template: write one per line.")
    return lines


def write_candidates(candidates: Iterable[Infilled], template: str, model: Model, *, as_json: bool) -> None:
    """The candidates on stdout, best first: score and text."""
    for one in candidates:
        if as_json:
            line = {name: getattr(one, name) for name in FIELDS}
            print(json.dumps({"template": template, **line}), flush=True)
            continue
        numbers = f"{one.score:7.2f}  "
        if sys.stdout.isatty():
            Console(highlight=False).print(numbers, painted_blanks(model.text_tokenizer(), one), sep="")
        else:
            print(numbers + one.text.replace("\n", "\\n"), flush=True)


def painted_blanks(tokenizer: Tokenizer, one: Infilled) -> Text:
    came = {event.position for event in one.trace}
    text = Text()
    for position, piece in enumerate(pieces(tokenizer, one.tokens)):
        text.append(printable(piece), style=RECENT if position in came else "")
    return text
