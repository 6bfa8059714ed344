"""The film of a text as a page."""

import json
import re

import unmask
from unmask.sampling.tasks.rows import Event
from unmask.views.film import film, html


def test_the_cells_of_a_film_are_the_text_with_the_calls_it_came_at(model, shown):
    one = unmask.sample(model, prompt="bad ", length=12)[0]
    assert "".join(cell.text for cell in shown.cells) == one.text
    assert [cell.call for cell in shown.cells][:4] == [0, 0, 0, 0]
    assert sorted(cell.call for cell in shown.cells)[4:] == list(range(1, 9))
    assert shown.calls == 8


def test_control_characters_are_made_visible():
    from unmask.text.tokens.vocabulary import byte

    assert [cell.text for cell in film(byte(), [97, 27, 10], ()).cells] == ["a", "·", "\n"]


def test_a_page_holds_its_data_and_nothing_in_it_ends_the_script(shown):
    page = html(shown)
    data = json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)[1])
    assert data["caption"] == "a </script> b"
    assert data["calls"] == 8
    assert ["".join(cell[0] for cell in data["cells"])] == ["".join(cell.text for cell in shown.cells)]


def test_a_page_loads_nothing_from_anywhere(shown):
    page = html(shown)
    assert not re.search(r"https?:|src=|href=|url\(|@import", page)
    assert "default-src 'none'" in page


def test_a_token_that_is_replaced_is_shown_from_its_last_change_on():
    """As in continuous diffusion, where every call rounds all positions and the last one commits them all."""
    from unmask.text.tokens.vocabulary import byte

    told = [(1, 0, 97), (1, 1, 98), (3, 1, 99), (9, 0, 97), (9, 1, 99)]
    trace = [Event(*one, log_prob=-1.0) for one in told]
    assert [cell.call for cell in film(byte(), [97, 99], trace).cells] == [1, 3]
