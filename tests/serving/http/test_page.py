"""The page in a real Chromium: what a visitor does, and what a visitor sees. Run with `make browser`."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from math import log10
from pathlib import Path

import httpx
import pytest
from models import network, saved
from servers import serving

from contracts.members import model_of
from unmask.diffusion.plaid import Plaid
from unmask.model.checkpoint import load, save
from unmask.serving.http.schema import OPTIONS
from unmask.text.tokens.vocabulary import byte

pytestmark = pytest.mark.browser

AGAIN = '.reel button:text-is("Again")'  # what the button says when all is drawn and shown
TEXT = "The [6] fox [12] dog."


def chromium() -> str:
    names = [os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome"]
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        pytest.fail("no Chromium: install one (Debian: apt-get install chromium), or set CHROMIUM to its path.")
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def visit(browser, address) -> Iterator:
    """visit(path, ...) opens a page; at the end no page may have had an error or asked another site for anything."""
    wrong: list[str] = []
    contexts = []

    def opened(path: str = "/", *, at: str = address, **options):
        context = browser.new_context(**{"viewport": {"width": 1100, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda r: wrong.append(r.url) if not r.url.startswith((at, "blob:", "file:")) else None)
        page.goto(path if path.startswith("file:") else at + path)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []


def drawn(page, text: str = TEXT, *, seed: int = 3, n: int = 1):
    """A page on which a draw has been made and watched to its end."""
    page.wait_for_selector("#sampler option", state="attached")
    page.fill("#text", text)
    page.fill("#seed", str(seed))
    page.fill("#n", str(n))
    page.click("#go")
    page.wait_for_selector(AGAIN)
    return page


def shown(page, candidate: int = 0) -> str:
    return page.locator(".candidate .text").nth(candidate).text_content()


def classes(page, candidate: int = 0) -> list[str]:
    tokens = page.locator(".candidate").nth(candidate).locator(".token")
    return tokens.evaluate_all("all => all.map((one) => one.className)")


def test_text_with_blanks_is_filled_and_what_was_given_stays(visit, client):
    page = drawn(visit(), n=2)
    told = client.post("/v1/infill", json={"text": TEXT, "seed": 3, "n": 2}).json()
    assert [shown(page, i) for i in range(2)] == [choice["text"] for choice in told["choices"]]
    assert classes(page).count("token given") == len("The  fox  dog.")
    assert classes(page).count("token drawn") == 18


def test_a_text_without_blanks_is_continued(visit, client):
    page = drawn(visit(), "Once upon a ")
    body = {"prompt": "Once upon a ", "max_tokens": 24, "seed": 3}
    told = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
    assert shown(page).startswith("Once upon a " + told)


def test_the_slider_goes_back_through_the_steps(visit):
    page = drawn(visit())
    slider = page.locator(".reel input")
    assert slider.get_attribute("max") == "18"
    for at in (0, 5, 18):
        slider.fill(str(at))
        assert page.locator(".reel output").text_content() == f"step {at} of 18"
        assert sum("drawn" in name for name in classes(page)) == at
    slider.fill("9")
    assert sum("lean" in name for name in classes(page)) == 9
    page.click(".reel button")  # plays from there
    page.wait_for_selector(AGAIN)


def test_more_doubtful_tokens_are_coloured_more_strongly(visit, client):
    page = drawn(visit())
    told = client.post("/v1/infill", json={"text": TEXT, "seed": 3}).json()["choices"][0]["tokens"]
    doubts = page.locator(".token").evaluate_all("all => all.map((one) => one.style.getPropertyValue('--doubt'))")
    for token, doubt in zip(told, doubts, strict=True):
        assert (
            doubt == ""
            if token["given"]
            else float(doubt) == pytest.approx(min(1, -log10(token["confidence"]) / 3), abs=2e-3)
        )


def test_locked_tokens_stay_and_the_others_are_drawn_again(visit):
    page = drawn(visit())
    before = shown(page)
    for place in (4, 7, 15):
        page.locator(".token").nth(place).click()
    button = page.locator(".again")
    assert button.text_content() == "Redraw all but 3 locked"
    button.click()
    page.wait_for_selector(AGAIN)
    page.wait_for_selector(".reel output:text-is('step 15 of 15')")
    after = shown(page)
    assert [after[i] for i in (4, 7, 15)] == [before[i] for i in (4, 7, 15)]
    assert after != before
    assert after[:4] + after[10:15] + after[27:] == "The  fox  dog."
    assert [i for i, name in enumerate(classes(page)) if "lock" in name] == [4, 7, 15]


def test_masked_tokens_are_drawn_again_and_the_rest_stays(visit):
    page = drawn(visit())
    before = shown(page)
    page.locator(".token").nth(0).click()  # given: one click masks it
    for _ in range(2):
        page.locator(".token").nth(16).click()
    assert [i for i, name in enumerate(classes(page)) if "mask" in name.split()] == [0, 16]
    page.click(".again")
    page.wait_for_selector(".reel output:text-is('step 2 of 2')")
    after = shown(page)
    assert after[1:16] + after[17:] == before[1:16] + before[17:]
    assert classes(page)[1] == "token given"
    assert "drawn" in classes(page)[5]


def test_everything_can_be_done_by_keyboard(visit):
    page = visit()
    page.wait_for_selector("#sampler option", state="attached")
    page.keyboard.press("Control+a")  # the text has the focus
    page.keyboard.type(TEXT)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(AGAIN)
    page.locator(".token").first.focus()
    for key in (
        "ArrowRight",
        "ArrowRight",
        "ArrowRight",
        "ArrowRight",
        "l",
        "ArrowRight",
        "m",
        "ArrowRight",
        "Enter",
    ):
        page.keyboard.press(key)
    assert [classes(page)[i].split()[-1] for i in (4, 5, 6)] == ["lock", "mask", "lock"]
    page.keyboard.press("Escape")
    assert classes(page)[6].split()[-1] == "drawn"
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.textContent") == "Redraw 1 masked"


def test_what_the_server_refuses_is_shown_in_its_words_and_goes_away(visit):
    page = visit()
    page.wait_for_selector("#sampler option", state="attached")
    page.fill("#text", "漢 [3]")
    page.click("#go")
    page.wait_for_selector("#error:not([hidden])")
    assert "no token for '漢'" in page.text_content("#error")
    drawn(page)
    assert page.is_hidden("#error")


def test_a_pattern_holds_and_what_is_wrong_with_it_is_said_beside_it(visit):
    page = visit()
    page.wait_for_selector("#sampler option", state="attached")
    page.fill("#text", TEXT)
    page.fill("#pattern", "[a-f]+(")
    page.click("#go")
    page.wait_for_selector("#pattern-error:not([hidden])")
    assert "at column 7" in page.text_content("#pattern-error")
    assert page.is_hidden("#error")
    box, said = (page.locator(id).bounding_box() for id in ("#pattern", "#pattern-error"))
    assert 0 <= said["y"] - (box["y"] + box["height"]) < 20
    assert page.locator("#pattern").evaluate("one => one === document.activeElement && one.ariaInvalid") == "true"
    page.fill("#pattern", "[a-f]{99}")
    page.click("#go")
    page.wait_for_selector("#pattern-error:has-text('can match the pattern')")
    page.fill("#pattern", "[a-f]+")
    drawn(page)
    assert page.is_hidden("#pattern-error")
    assert re.fullmatch("The [a-f]{1,6} fox [a-f]{1,12} dog.", shown(page).replace("·", ""))


def test_a_pattern_holds_for_what_is_drawn_again_round_locked_tokens(visit):
    page = visit(permissions=["clipboard-read", "clipboard-write"])
    page.wait_for_selector("#sampler option", state="attached")
    page.fill("#pattern", "[a-f]{2}[0-9]*[x-z]")
    drawn(page, "The. [6] fox.")
    before = shown(page).replace("·", "")
    assert re.fullmatch(r"The\. [a-f]{2}[0-9]*[x-z] fox\.", before)
    page.locator(".token").nth(5).click()
    page.click(".again")
    page.wait_for_selector(".reel output:text-is('step 5 of 5')")
    page.wait_for_selector(AGAIN)
    after = shown(page).replace("·", "")
    assert re.fullmatch(r"The\. [a-f]{2}[0-9]*[x-z] fox\.", after)
    assert after[5] == before[5]
    page.click("#link")
    page.wait_for_selector("#told:text-is('link copied')")
    other = visit(page.url[page.url.index("#") - 1 :])
    other.wait_for_selector(AGAIN)
    assert shown(other) == shown(page)


def test_the_slider_shows_tokens_that_were_masked_again(visit, client, tmp_path: Path):
    page = visit()
    page.wait_for_selector("#sampler option", state="attached")
    page.select_option("#sampler", "remask-rescale")
    page.fill("#steps", "12")
    page.click("#more summary")
    page.fill("[data-own=eta]", "0.5")
    drawn(page, "The [14] fox")
    how = {"sampler": "remask-rescale:eta=0.5", "steps": 12}
    body = {"text": "The [14] fox", "seed": 3, "stream": True, "events": "steps", **how}
    blocks = client.post("/v1/infill", json=body).text.split("\n\n")
    steps = [json.loads(block.split("data: ")[1]) for block in blocks if block.startswith("event: step")]
    assert any("masked" in step for step in steps)

    def check(view) -> None:
        stands: dict[int, str] = {}
        for at, step in enumerate(steps, 1):
            stands |= {token["position"]: token["text"] for token in step["committed"]}
            gone = [place["position"] for place in step.get("masked", ())]
            stands = {place: text for place, text in stands.items() if place not in gone}
            view.locator(".reel input").fill(str(at))
            names = classes(view)
            assert {i for i, name in enumerate(names) if "drawn" in name.split()} == set(stands), at
            assert {i for i, name in enumerate(names) if "remasked" in name.split()} == set(gone), at
            spans = view.locator(".token").all_text_contents()
            assert all(spans[place] == (text or "·") for place, text in stands.items())

    check(page)
    with page.expect_download() as download:
        page.click("#save")
    download.value.save_as(tmp_path / "saved.html")
    saved = visit((tmp_path / "saved.html").as_uri(), offline=True)
    saved.wait_for_selector(AGAIN)
    check(saved)


def test_the_slider_shows_rounded_text_that_was_replaced_at_every_step(visit, tmp_path: Path):
    model = model_of(tmp_path / "m", Plaid(embed=4))
    with serving(model) as at, httpx.Client(base_url=at, timeout=120) as own:
        page = visit(at=at)
        page.wait_for_selector("#sampler option", state="attached")
        page.fill("#steps", "6")
        drawn(page, "ab [6] cd")
        body = {"text": "ab [6] cd", "seed": 3, "steps": 6, "stream": True, "events": "steps"}
        blocks = own.post("/v1/infill", json=body).text.split("\n\n")
        steps = [json.loads(block.split("data: ")[1]) for block in blocks if block.startswith("event: step")]
        stands: dict[int, str] = {}
        for number, step in enumerate(steps, 1):
            stands |= {token["position"]: token["text"] for token in step["committed"]}
            page.locator(".reel input").fill(str(number))
            spans = page.locator(".token").all_text_contents()
            assert all(spans[place] == (text or "·") for place, text in stands.items()), number
            assert len(stands) == 6


def sent(page, act) -> dict:
    """The body of the request that an action makes."""
    with page.expect_request(lambda request: request.method == "POST") as found:
        act()
    page.wait_for_selector(AGAIN)
    return json.loads(found.value.post_data)


BODY = {"stream": True, "events": "steps", "draft": True}


def test_the_page_sends_what_was_changed_and_nothing_else(visit):
    page = visit()
    page.wait_for_selector("#sampler option", state="attached")
    page.fill("#text", TEXT)
    assert sent(page, lambda: page.click("#go")) == {"text": TEXT, **BODY}
    page.click("#more summary")
    page.select_option("#sampler", "threshold")
    for field, value in (("#top_p", "0.9"), ("#seed", "4"), ("#no_repeat", "0"), ("[data-own=tau]", "0.6")):
        page.fill(field, value)
    page.check("#plain")
    assert page.text_content("#changed") == "· 3 set"
    changed = {"sampler": "threshold:tau=0.6", "top_p": 0.9, "seed": 4, "no_repeat": 0, "plain": True}
    assert sent(page, lambda: page.click("#go")) == {"text": TEXT, **BODY, **changed}
    page.click("#reset")
    assert page.text_content("#changed") == ""
    assert sent(page, lambda: page.click("#go")) == {"text": TEXT, "seed": 4, **BODY}


def test_every_drawing_option_of_the_api_has_a_field_with_its_explanation(visit, client):
    page = visit()
    page.wait_for_selector("#sampler option", state="attached")
    known = json.loads(client.get("/openapi.json").text)["components"]["schemas"]["CompletionRequest"]["properties"]
    titles = dict(page.locator("[data-option]").evaluate_all("all => all.map((one) => [one.id, one.title])"))
    assert titles.keys() == OPTIONS.keys() - {"sampler"} | {"n", "stop", "allowed"}
    assert all(titles[name] == known[name].get("description", "") for name in titles)


def test_the_models_defaults_are_shown_and_drawn_by(visit, serve, masked):
    told = masked.with_sampling(sampler="threshold:tau=0.4", top_p=0.6, no_repeat=3)
    address = serve(told)
    page = drawn(visit(at=address))
    answer = httpx.post(f"{address}/v1/infill", json={"text": TEXT, "seed": 3}, timeout=120).json()
    assert "top-p 0.6, no-repeat 3" in answer["law"]
    assert shown(page) == answer["choices"][0]["text"]
    assert page.locator("#sampler option").first.text_content() == "default (threshold:tau=0.4)"

    def placeholders(*more: str) -> list[str]:
        fields = ("#temperature", "#top_p", "#top_k", "#no_repeat", *more)
        return [page.get_attribute(field, "placeholder") for field in fields]

    assert placeholders("[data-own=tau]") == ["1", "0.6", "all", "3", "0.4"]
    page.click("#more summary")
    page.fill("[data-own=tau]", "0.7")
    assert sent(page, lambda: page.click("#go"))["sampler"] == "threshold:tau=0.7"
    page.check("#plain")
    assert page.locator("#sampler option").first.text_content() == "default (first-hitting)"
    assert placeholders() == ["1", "1", "all", "off"]
    assert page.is_hidden("[data-own=tau]")


def test_an_example_fills_the_form_and_is_drawn(visit, serve, tmp_path):
    page = visit(at=serve(load(saved(tmp_path / "long", length=160))))
    page.wait_for_selector("#examples button")
    body = sent(page, lambda: page.click("#examples button:text-is('eight steps')"))
    assert (body["sampler"], body["steps"]) == ("groups", 8)
    assert page.text_content(".reel output") == "step 8 of 8"
    body = sent(page, lambda: page.click("#examples button:text-is('exact samples')"))
    assert body["plain"]
    assert "sampler" not in body
    assert page.locator("#more").evaluate("one => one.open"), "what an example sets can be seen"


def test_a_link_keeps_every_option(visit):
    page = visit(permissions=["clipboard-read", "clipboard-write"])
    page.wait_for_selector("#sampler option", state="attached")
    page.click("#more summary")
    page.select_option("#sampler", "threshold")
    page.fill("[data-own=tau]", "0.6")
    page.fill("#top_k", "9")
    page.check("#plain")
    drawn(page)
    page.click("#link")
    page.wait_for_selector("#told:text-is('link copied')")
    other = visit(page.url[page.url.index("#") - 1 :])
    other.wait_for_selector(AGAIN)
    assert shown(other) == shown(page)
    assert [other.input_value(field) for field in ("#sampler", "[data-own=tau]", "#top_k")] == [
        "threshold",
        "0.6",
        "9",
    ]
    assert other.is_checked("#plain")


def test_a_field_that_is_wrong_is_opened_and_marked(visit):
    page = visit()
    page.wait_for_selector("#sampler option", state="attached")
    page.locator("#allowed").evaluate("one => { one.value = 'position 4'; }")
    page.click("#go")
    page.wait_for_selector("#error:has-text('allowed must be JSON')")
    assert page.locator("#allowed").evaluate("one => one === document.activeElement && one.ariaInvalid") == "true"


def test_a_server_with_a_key_asks_for_it(visit, serve, masked):
    page = visit(at=serve(masked, key="correct horse"))
    page.wait_for_selector("#locked:not([hidden])")
    assert "API key" in page.text_content("#error")
    page.fill("#key", "correct horse")
    page.click("#go")
    drawn(page)


def test_a_draw_can_be_stopped(visit, serve, slowed):
    model, calls = slowed(0.15)
    page = visit(at=serve(model))
    page.wait_for_selector("#sampler option", state="attached")
    page.fill("#text", "The [40] dog")
    page.click("#go")
    page.wait_for_selector(".token.drawn")
    page.click("#halt")
    page.wait_for_selector("#halt", state="hidden")
    page.wait_for_timeout(400)
    made = len(calls)
    page.wait_for_timeout(400)
    assert len(calls) == made < 39
    assert page.is_hidden("#error")


def test_a_link_gives_the_same_draw_to_whoever_opens_it(visit):
    page = drawn(visit(permissions=["clipboard-read", "clipboard-write"]), n=2)
    page.click("#link")
    page.wait_for_selector("#told:text-is('link copied')")
    other = visit(page.url[page.url.index("#") - 1 :])
    other.wait_for_selector(AGAIN)
    assert [shown(other, i) for i in range(2)] == [shown(page, i) for i in range(2)]
    assert other.input_value("#text") == TEXT


def test_a_link_of_a_draw_round_locked_tokens_gives_the_same(visit):
    page = drawn(visit(permissions=["clipboard-read", "clipboard-write"]))
    page.locator(".token").nth(5).click()
    page.click(".again")
    page.wait_for_selector(".reel output:text-is('step 17 of 17')")
    page.click("#link")
    page.wait_for_selector("#told:text-is('link copied')")
    other = visit(page.url[page.url.index("#") - 1 :])
    other.wait_for_selector(AGAIN)
    assert shown(other) == shown(page)


def test_a_damaged_link_is_told_so(visit):
    page = visit("/#no-such-thing")
    page.wait_for_selector("#error:not([hidden])")
    assert "damaged" in page.text_content("#error")


def test_a_saved_page_plays_by_itself_and_asks_nobody(visit, tmp_path: Path):
    page = drawn(visit(), "The [6] fox [3].")
    with page.expect_download() as download:
        page.click("#save")
    file = tmp_path / "saved.html"
    download.value.save_as(file)
    saved = visit(file.as_uri(), offline=True)
    saved.wait_for_selector(AGAIN)
    assert shown(saved) == shown(page)
    saved.locator(".reel input").fill("0")
    assert sum("blank" in name for name in classes(saved)) == 9


@pytest.mark.parametrize("width", [320, 375])
def test_a_phone_shows_all_of_it_without_sideways_scrolling(visit, width):
    page = drawn(visit(viewport={"width": width, "height": 700}, has_touch=True, is_mobile=True), n=2)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    page.click("#more summary")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    left = page.locator(".candidate").evaluate_all("all => all.map((one) => one.getBoundingClientRect().left)")
    assert left[0] == left[1], "candidates stand below each other"
    page.locator(".token").nth(5).tap()
    assert "lock" in classes(page)[5]


def test_a_phone_shows_go_and_the_model_at_once_and_the_samplers_explanation_below_it(visit):
    page = visit(viewport={"width": 375, "height": 667}, has_touch=True, is_mobile=True)
    page.wait_for_selector("#sampler option", state="attached")
    places = {name: page.locator(name).bounding_box() for name in ("#go", "#sampler", "#about", "#steps")}
    assert places["#go"]["y"] + places["#go"]["height"] <= 667
    assert places["#sampler"]["y"] < places["#about"]["y"] < places["#steps"]["y"]
    assert page.locator("#model").evaluate("one => one.scrollWidth <= one.clientWidth")
    drawn(page)
    assert page.locator("#stage").bounding_box()["y"] < 300, "the result comes into sight"


def test_candidates_stand_side_by_side_where_there_is_room(visit):
    page = drawn(visit(), n=3)
    top = page.locator(".candidate").evaluate_all("all => all.map((one) => one.getBoundingClientRect().top)")
    assert len(set(top)) == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_in_dark(visit, scheme):
    page = drawn(visit(color_scheme=scheme))

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    style = "(one, name) => getComputedStyle(one)[name]"
    paper = luminance(page.locator("body").evaluate(style, "backgroundColor"))
    assert (paper > 0.5) == (scheme == "light")
    for place in ("body", "#hint", ".token.given", "a"):
        ink = luminance(page.locator(place).first.evaluate(style, "color"))
        assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) >= 4.5, place


def test_nothing_flickers_a_step_changes_only_the_tokens_it_touches(visit):
    page = visit()
    page.wait_for_selector("#sampler option", state="attached")
    page.uncheck("#draft")
    drawn(page, "The [40] dog", n=1)
    count = """() => {
      window.changes = 0;
      const text = document.querySelector('.candidate .text');
      const options = { childList: true, subtree: true, characterData: true, attributeFilter: ['class'] };
      new MutationObserver((all) => {
        window.changes += new Set(all.map(({ target }) => target.closest?.('.token') ?? target)).size;
      }).observe(text, options);
    }"""
    page.locator(".reel input").fill("20")
    page.evaluate(count)
    page.locator(".reel input").fill("21")
    page.wait_for_timeout(100)
    assert page.evaluate("() => window.changes") <= 3  # the new one, and the one that was new before


def test_a_phone_shows_the_reference_in_readable_columns(visit):
    page = visit("/docs", viewport={"width": 375, "height": 667}, is_mobile=True)
    page.wait_for_selector(".operation td")
    assert page.locator("td:nth-child(3)").first.bounding_box()["width"] > 200


def test_the_reference_lists_every_address(visit, client):
    page = visit("/docs")
    page.wait_for_selector(".operation")
    told = page.locator(".operation h2").all_text_contents()
    paths = json.loads(client.get("/openapi.json").text)["paths"]
    assert len(told) == len(paths)
    assert all(any(path in one for one in told) for path in paths)


def test_a_model_without_conversations_offers_none(visit):
    page = visit()
    page.wait_for_selector("#sampler option", state="attached")
    assert not page.is_visible("#talks")
    assert page.text_content("#go") == "Go"


@pytest.fixture(scope="module")
def talking(tmp_path_factory):
    """A server whose model learned pairs; its weights are random."""
    tokenizer = byte()
    about = {"mask": tokenizer.mask, "tokenizer": tokenizer, "settings": {"text": {"pack": "exchange"}}}
    with serving(load(save(tmp_path_factory.mktemp("talk") / "model", network(tokenizer.size), **about))) as address:
        yield address


def test_a_conversation_shows_what_was_said_and_sends_all_of_it(visit, talking):
    page = visit(at=talking)
    page.wait_for_selector("#talks", state="visible")
    assert page.text_content("#go") == "Send"
    assert page.input_value("#text") == ""
    page.fill("#length", "6")
    page.fill("#seed", "3")
    said: list[dict[str, str]] = []
    for number, question in enumerate(("Hi <b>&", "fox {{ 7 * 7 }}"), 1):
        said.append({"role": "user", "content": question})
        page.fill("#text", question)
        page.press("#text", "Enter")
        page.wait_for_selector(f".turn.assistant >> nth={number - 1}", state="attached")
        body = {"messages": said, "max_tokens": 6, "seed": 3}
        answer = httpx.post(f"{talking}/v1/chat/completions", json=body, timeout=60).json()["choices"][0]["message"]
        said.append({"role": "assistant", "content": answer["content"]})
        assert page.input_value("#text") == ""
    turns = page.locator(".turn").all_text_contents()
    assert turns == [one["content"] or "…" for one in said]
    assert not page.locator("#stage .token.given").first.is_visible()
    page.wait_for_selector(AGAIN)
    if "UNMASK_PICTURES" in os.environ:
        page.screenshot(path=Path(os.environ["UNMASK_PICTURES"]) / "conversation.png", full_page=True)
    page.click("#forget")
    assert page.locator(".turn").count() == 0
    page.uncheck("#conversing")
    assert page.text_content("#go") in ("Go", "Again")
    assert page.is_visible("#examples")


def test_a_message_that_cannot_be_answered_stays_in_the_field(visit, talking):
    page = visit(at=talking)
    page.wait_for_selector("#talks", state="visible")
    page.fill("#text", "long " * 40)
    page.click("#go")
    page.wait_for_selector("#error", state="visible")
    assert page.input_value("#text") == "long " * 40
    assert page.locator(".turn").count() == 0
