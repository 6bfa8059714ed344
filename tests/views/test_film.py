"""The film of a text as a page."""

import json
import re

import pytest

import unmask
from contracts.members import LETTERS, model_of
from unmask.diffusion.diffusion_lm import DiffusionLM
from unmask.diffusion.mdlm import MDLM
from unmask.diffusion.plaid import Plaid
from unmask.diffusion.ssd_lm import SSDLM
from unmask.sampling.recipe import Recipe
from unmask.sampling.tasks.continuation import Sample, generate
from unmask.sampling.tasks.rows import Event, note_events
from unmask.views.film import MOST, film, html
from unmask.views.terminal import picture


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


def test_text_that_is_replaced_or_hidden_again_is_shown_while_it_stands():
    from unmask.text.tokens.vocabulary import byte

    letters = byte()
    told = [(1, 0, 97), (1, 1, 98), (2, 1, letters.mask), (3, 1, 99), (9, 0, 97), (9, 1, 100)]
    shown = film(letters, [97, 100, 101], [Event(*one, log_prob=-1.0) for one in told])
    assert shown.cells[0].before == ()
    assert shown.cells[1].before == ((1, "b"), (2, None), (3, "c"))
    texts = [[cell.text if cell.call <= call else "_" for cell in at(shown, call)] for call in (0, 1, 2, 3, 8, 9)]
    assert ["".join(text) for text in texts] == ["__e", "abe", "a_e", "ace", "ace", "ade"]
    page = html(shown)
    data = json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)[1])
    assert [len(cell) for cell in data["cells"]] == [3, 4, 3]
    assert data["cells"][1] == ["d", 9, -1.0, [[1, "b"], [2, None], [3, "c"]]]


def at(shown, call):
    return [cell.at(call) for cell in shown.cells]


def test_a_film_of_many_calls_shows_replaced_text_at_some_of_them():
    from unmask.text.tokens.vocabulary import byte

    trace = [Event(call, 0, 97 + call % 7, -1.0) for call in range(1, 1001)]
    (cell,) = film(byte(), [97 + 1000 % 7], trace).cells
    assert 100 <= len(cell.before) <= MOST
    assert all(text == chr(97 + call % 7) for call, text in cell.before)


UNSETTLED = {
    "plaid": (Plaid(embed=4), None),
    "diffusion-lm": (DiffusionLM(steps=6, embed=4), None),
    "ssd-lm": (SSDLM(steps=6, block=5), None),
    "remask": (MDLM(), "remask-cap:eta=0.5"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", UNSETTLED)
def test_film_and_live_view_show_the_text_of_every_call_also_if_it_is_replaced_or_hidden_again(name, tmp_path):
    objective, sampler = UNSETTLED[name]
    model = model_of(tmp_path / "m", objective)
    *moments, one = generate(model, Recipe(sampler=sampler, steps=6, plain=True), prompt="ab", length=12)
    assert isinstance(one, Sample)
    shown = film(LETTERS, one.tokens, one.trace)
    traces, changed, before = [[]], False, one.tokens[:2] + [LETTERS.mask] * 10
    for moment in moments:
        call, canvas = moment.step.call, moment.step.canvas
        (tokens,) = canvas.tokens.tolist()
        told = LETTERS.decode(tokens, blank="_")
        assert "".join(cell.text if cell.call <= call else "_" for cell in at(shown, call)) == told, call
        note_events(traces, moment.step)
        assert picture(moment, traces, LETTERS, most=9).renderables[1].plain == LETTERS.decode(tokens), call
        changed |= any(was not in (LETTERS.mask, now) for was, now in zip(before, tokens, strict=True))
        before = tokens
    assert changed, "a token was replaced or hidden again"
