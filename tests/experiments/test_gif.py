"""The film of a text as a GIF."""

from dataclasses import replace
from io import BytesIO

import pytest
from PIL import Image

import tiny
import unmask
from studies.gif import DARK, Colours, frames, gif, laid_out, shade
from unmask.errors import UserError
from unmask.views.film import Film, FilmCell, film


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    model = tiny.model(tmp_path_factory.mktemp("models") / "mdlm")
    sample = unmask.sample(model, prompt="bad ", length=12)[0]
    return film(model.tokenizer, sample.tokens, sample.trace, caption="a </script> b")


def test_a_gif_has_a_frame_before_and_after_every_call(shown):
    with Image.open(BytesIO(gif(shown, columns=20))) as picture:
        assert picture.n_frames == shown.calls + 1
        assert picture.info["loop"] == 0


@pytest.mark.slow
def test_a_gif_of_many_calls_skips_some_and_ends_with_the_last():
    long = Film(tuple(FilmCell("a ", i + 1, -1.0) for i in range(200)), "")
    grey = bytes.fromhex(Colours().mask[1:])
    with Image.open(BytesIO(gif(long))) as picture:
        assert picture.n_frames <= 151
        masks = []
        for at in (0, picture.n_frames - 1):
            picture.seek(at)
            masks.append(picture.convert("RGB").tobytes().count(grey))
    assert masks[0] > 10_000
    assert masks[1] < masks[0] / 20  # smooth letters have a few such pixels too


def test_a_dark_gif_is_dark(shown):
    with Image.open(BytesIO(gif(shown, dark=True))) as picture:
        assert max(picture.convert("RGB").getpixel((1, 1))) < 60


def test_words_are_not_broken_unless_they_are_longer_than_a_line():
    cells = (FilmCell("aaa bbb\ncc", 1, 0.0), FilmCell("c ddddddddd", 2, 0.0))
    lines = {}
    for letter in laid_out(cells, 6):
        lines.setdefault(letter.line, []).append(letter.shown)
    assert ["".join(line) for line in lines.values()] == ["aaa ", "bbb", "ccc dd", "dddddd", "d"]


@pytest.mark.parametrize(
    "came, log_prob, call, seen",
    [
        (5, -1.0, 4, ("mask", None)),
        (5, -1.0, 5, ("new", "on_new")),
        (5, -1.0, 6, ("recent", "ink")),
        (5, -1.0, 9, (None, "ink")),
        (5, -4.0, 9, (None, "doubt")),
        (0, 0.0, 0, (None, "ink")),
        (20, -1.0, 20, (None, "ink")),
    ],
)
@pytest.mark.parametrize("colours", [Colours(), DARK])
def test_colours_tell_masks_new_and_doubtful_tokens_apart(came, log_prob, call, seen, colours):
    expected = tuple(None if name is None else getattr(colours, name) for name in seen)
    assert shade(FilmCell("a", came, log_prob), call, 20, colours) == expected


def test_a_picture_needs_room_and_time(shown):
    for options in ({"columns": 3}, {"seconds": 0}):
        with pytest.raises(UserError, match="at least 8 columns and more than 0 seconds"):
            gif(shown, **options)


def test_without_pillow_the_error_names_what_to_install(shown, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(UserError, match=r"pip install .*\[train\]'"):
        gif(shown)


def test_a_picture_shows_the_text_of_its_moment_and_nothing_of_the_one_before():
    """Frame by frame the same pixels as a film in which that text was always there."""
    changing = Film((FilmCell("ab", 3, -1.0, ((1, "a long one"), (2, "\u6c49"))), FilmCell(" c", 0, 0.0)), "")
    pictures = frames(changing, [0, 1, 2, 3], 20, Colours())
    for call, picture in enumerate(pictures):
        cells = tuple(replace(cell.at(call), before=()) for cell in changing.cells)
        (alone,) = frames(Film((*cells, FilmCell("", 3, 0.0)), ""), [call], 20, Colours())
        assert picture.tobytes() == alone.tobytes(), call
