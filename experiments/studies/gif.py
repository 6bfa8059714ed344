"""The film of a text as a GIF: letters on a grid, masks as grey bars as long as their tokens."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.cells import cell_len

from unmask.errors import UserError, install
from unmask.views.film import UNSURE, Film, FilmCell

if TYPE_CHECKING:
    from PIL import Image, ImageFont

SIZE, MARGIN, LEADING = 18, 24, 1.5  # letter height and margin in pixels; line height in letter heights
MOST = 150  # frames
HOLD = 2500  # milliseconds that the finished text stays


@dataclass(frozen=True)
class Colours:
    paper: str = "#fbfaf7"
    ink: str = "#1d1d1f"
    mask: str = "#d9d6cd"
    new: str = "#0a7d8c"
    on_new: str = "#ffffff"
    recent: str = "#d2eef1"
    doubt: str = "#a15c00"
    quiet: str = "#6b6b70"


DARK = Colours("#15171a", "#e8e6e1", "#33373d", "#4fd6e6", "#06262a", "#17393e", "#f0b45a", "#9a9da3")


Look = tuple[str | None, str | None]  # background and ink
Place = tuple[int, int]  # line and column


@dataclass(frozen=True)
class Letter:
    """A letter of a text on the grid, and the token it belongs to."""

    shown: str
    line: int
    column: int
    cells: int  # columns it takes
    token: FilmCell


class Drawn(NamedTuple):
    """What a picture shows at one place."""

    shown: str
    cells: int
    look: Look


def gif(film: Film, *, columns: int = 64, seconds: float = 6.0, dark: bool = False) -> bytes:
    """The film as the bytes of a GIF that loops."""
    if columns < 8 or not seconds > 0:
        raise UserError(f"a picture needs at least 8 columns and more than 0 seconds; saw {columns} and {seconds}.")
    Image, _ = pillow()
    last = film.calls
    calls = sorted({round(i * last / min(MOST, last or 1)) for i in range(min(MOST, last) + 1)})
    c = DARK if dark else Colours()
    shades = palette(c)
    flat = [image.quantize(palette=shades, dither=Image.Dither.NONE) for image in frames(film, calls, columns, c)]
    pause = max(20, round(1000 * seconds / len(flat)))
    out = BytesIO()
    flat[0].save(
        out,
        format="GIF",
        save_all=True,
        append_images=flat[1:],
        duration=[pause] * (len(flat) - 1) + [HOLD],
        loop=0,
    )
    return out.getvalue()


def laid_out(cells: tuple[FilmCell, ...], columns: int) -> Iterator[Letter]:
    """Every letter with its place; a word that does not fit starts a new line."""
    letters = [(letter, cell) for cell in cells for letter in cell.text]
    line = column = 0
    for i, (letter, cell) in enumerate(letters):
        if letter == "\n":
            line, column = line + 1, 0
            continue
        letter = " " if letter == "\t" else letter
        begins = letter != " " and (i == 0 or letters[i - 1][0] in " \n\t")
        width = cell_len(letter)
        needed = word(letters, i, columns) if begins else width
        if column and column + needed > columns:
            line, column = line + 1, 0
        yield Letter(letter, line, column, width, cell)
        column += width


def word(letters: list[tuple[str, FilmCell]], i: int, columns: int) -> int:
    """Columns of the word that begins at i; a word longer than a line counts as one letter, and is broken."""
    total = 0
    while i < len(letters) and letters[i][0] not in " \n\t" and total <= columns:
        total += cell_len(letters[i][0])
        i += 1
    return total if total <= columns else 1


def frames(film: Film, calls: list[int], columns: int, c: Colours) -> Iterator["Image.Image"]:
    """The text after each of these passes; only letters that have changed, or their colours, are drawn again."""
    image, draw = pillow()
    texts, face, last = [letters_at(film, call, columns, c) for call in calls], font(), film.calls
    step, height = face.getlength("M"), round(SIZE * LEADING)
    lines = 1 + max((line for text in texts for line, _ in text), default=0)
    picture = image.new("RGB", (round(2 * MARGIN + columns * step), 2 * MARGIN + height * (lines + 2)), c.paper)
    pen: Any = draw.Draw(picture)

    def fill(place: Place, cells: int, colour: str) -> None:
        x, y = MARGIN + place[1] * step, MARGIN + place[0] * height
        pen.rectangle((x, y + 2, x + cells * step - 0.5, y + height - 3), fill=colour)

    before: dict[Place, Drawn] = {}
    for call, text in zip(calls, texts, strict=True):
        for place in before:
            if text.get(place) != before[place]:
                fill(place, before[place].cells, c.paper)
        for place, drawn in text.items():
            if before.get(place) == drawn:
                continue
            back, ink = drawn.look
            fill(place, drawn.cells, back or c.paper)
            if ink is not None:
                x, y = MARGIN + place[1] * step, MARGIN + place[0] * height
                pen.text((x, y + (height - SIZE) / 2 - 2), drawn.shown, fill=ink, font=face)
        before = text
        foot = MARGIN + height * (lines + 1)
        pen.rectangle((0, foot, picture.width, picture.height), fill=c.paper)
        pen.text((MARGIN, foot), f"pass {call} of {last}", fill=c.quiet, font=face)
        yield picture.copy()


def letters_at(film: Film, call: int, columns: int, c: Colours) -> dict[Place, Drawn]:
    """The letters after a forward pass, by their place, and their colours."""
    letters = laid_out(tuple(cell.at(call) for cell in film.cells), columns)
    return {
        (one.line, one.column): Drawn(one.shown, one.cells, shade(one.token, call, film.calls, c)) for one in letters
    }


def palette(c: Colours) -> "Image.Image":
    """Every colour, and the shades that smooth letters need between ink and background."""
    image, _ = pillow()
    rgb = {name: tuple(bytes.fromhex(colour[1:])) for name, colour in asdict(c).items()}
    pairs = [("paper", "ink"), ("paper", "doubt"), ("paper", "quiet"), ("new", "on_new"), ("recent", "ink")]
    pairs += [("recent", "doubt"), ("paper", "mask")]
    shades = [
        round(a + (b - a) * share / 8)
        for back, ink in pairs
        for share in range(9)
        for a, b in zip(rgb[back], rgb[ink], strict=True)
    ]
    found = image.new("P", (1, 1))
    found.putpalette(shades)
    return found


def shade(cell: FilmCell, call: int, last: int, c: Colours) -> Look:
    """Background and ink of a token after `call` passes; in the last frame nothing is new."""
    age = call - cell.call
    if cell.call and age < 0:
        return c.mask, None
    ink = c.doubt if cell.log_prob < UNSURE else c.ink
    if cell.call == 0 or call == last or age > 3:
        return None, ink
    return (c.new, c.on_new) if age == 0 else (c.recent, ink)


def pillow() -> tuple[Any, Any]:
    try:
        from PIL import Image, ImageDraw
    except ImportError:
        raise UserError(f"a GIF needs Pillow: {install('train')}   An .html file needs nothing.") from None
    return Image, ImageDraw


def font() -> "ImageFont.FreeTypeFont | ImageFont.ImageFont":
    """DejaVu Sans Mono, which matplotlib includes and which covers most scripts; else Pillow's default."""
    from PIL import ImageFont

    found = find_spec("matplotlib")
    for place in (found.submodule_search_locations or []) if found else []:
        path = Path(place) / "mpl-data" / "fonts" / "ttf" / "DejaVuSansMono.ttf"
        if path.is_file():
            return ImageFont.truetype(str(path), SIZE)
    return ImageFont.load_default(SIZE)
