"""One template: everything is escaped, nothing is loaded, and parts appear in their order."""

import re
from html import unescape

from unmask.views.page import Frame, Part, page


def test_everything_but_the_picture_is_escaped():
    bad = "<b>&'\""
    part = Part(
        bad,
        warnings=[bad],
        note=bad,
        facts=[(bad, bad)],
        head=[bad],
        rows=[[bad]],
        frames=[Frame(bad, bad, 9)],
        record={bad: bad},
    )
    written = page(bad, [part, part], about=bad)
    assert "<b>" not in written
    assert written.count("&lt;b&gt;&amp;&#39;&#34;") == 5 + 2 * 9  # 5: title, heading, about, two links; 9: each part
    assert "<svg>" in page("a", [Part(picture="<svg>")])


def test_a_frame_holds_its_page_whole():
    inner = '<p title="a">&amp; \'</p>'
    written = page("a", [Part(frames=[Frame("sample 0", inner, 20)])])
    (source,) = re.findall(r'srcdoc="(.*?)"', written)
    assert unescape(source) == inner
    assert 'style="height: 20rem"' in written


def test_a_page_loads_nothing_and_has_colours_for_light_and_dark():
    written = page("a", [Part("one"), Part("two")])
    assert not re.search(r"https?:|src=|href=\"(?!#)|url\(|@import", written)
    assert "color-scheme: light dark" in written
    assert "prefers-color-scheme: dark" in written


def test_several_parts_are_linked_and_one_part_is_not():
    written = page("a", [Part("one"), Part("two")])
    for number, title in enumerate(("one", "two"), 1):
        assert f'<a href="#part-{number}">{title}</a>' in written
        assert f'<section id="part-{number}">' in written
    alone = page("a", [Part()])
    assert "<nav>" not in alone
    assert "<h2>" not in alone


def test_what_a_part_does_not_have_is_not_shown():
    empty = page("a", [Part("one")])
    for element in ("<table", "<figure>", "<details", "<iframe", 'class="note"', 'class="warning"', 'class="about"'):
        assert element not in empty


def test_a_record_is_shown_at_once_only_if_it_is_opened():
    assert "<details><summary>" in page("a", [Part(record={})])
    assert "<details open><summary>" in page("a", [Part(record={}, opened=True)])
    assert "&#34;seed&#34;: 3" in page("a", [Part(record={"seed": 3})])
