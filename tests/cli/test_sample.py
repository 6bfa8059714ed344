"""`unmask sample`, `infill` and `animate` as a person or a script meets them."""

import json
import os
import pty
from io import StringIO
from select import select

import pytest
from rich.console import Console

import tiny
import unmask
from forked import Forked
from unmask.cli.main import main
from unmask.sampling.recipe import Recipe
from unmask.sampling.tasks.continuation import Sample, generate
from unmask.untrusted import printable
from unmask.views.terminal import watch

KEYS = ["text", "tokens", "seed", "row", "calls", "sampler", "law", "seconds"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return str(tiny.checkpoint(tmp_path_factory.mktemp("models") / "mdlm"))


def lines(out):
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.slow
def test_json_is_one_object_a_sample_with_stable_keys(folder, capsys):
    assert main(["sample", folder, "--n", "3", "--length", "8", "--prompt", "ba", "--seed", "7", "--json"]) == 0
    out = capsys.readouterr()
    found = lines(out.out)
    assert [list(one) for one in found] == [KEYS] * 3
    assert [one["row"] for one in found] == [0, 1, 2]
    for one in found:
        assert (one["seed"], one["calls"], one["sampler"], one["law"]) == (7, 6, "first-hitting", "exact")
        assert len(one["tokens"]) == 8
        assert one["text"].startswith("ba")
        assert one["seconds"] > 0
    assert "6 forward passes, 18 tokens in" in out.err
    assert "tokens/s" in out.err
    assert "3 x first-hitting: exact" in out.err


@pytest.mark.slow
def test_piped_output_is_the_text_and_nothing_else(folder, capsys):
    assert main(["sample", folder, "--n", "2", "--json"]) == 0
    texts = [one["text"] for one in lines(capsys.readouterr().out)]
    assert main(["sample", folder, "--n", "2"]) == 0
    assert capsys.readouterr().out == "".join(text + "\n" for text in texts)


def test_a_stream_tells_every_step_and_then_the_samples(folder, capsys):
    assert main(["sample", folder, "--n", "2", "--length", "4", "--stream", "--json"]) == 0
    events = lines(capsys.readouterr().out)
    assert [event["event"] for event in events] == ["step"] * 8 + ["sample"] * 2
    assert [(event["call"], event["row"]) for event in events[:4]] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert events[0]["text"].count("░") == 3
    assert list(events[0]["new"][0]) == ["position", "token", "log_prob"]
    assert [event["text"] for event in events[6:8]] == [event["text"] for event in events[8:]]
    for event in events[:8]:
        for new in event["new"]:
            assert events[8 + event["row"]]["tokens"][new["position"]] == new["token"]


def test_a_stream_for_people_is_one_line_a_step_and_row(folder, capsys):
    assert main(["sample", folder, "--length", "3", "--stream"]) == 0
    first = capsys.readouterr().out.splitlines()[0].split("\t")
    assert first[:2] == ["1", "0"]
    assert first[2].count("░") == 2


def test_a_length_beyond_training_is_warned_of_and_windows_are_the_way(folder, capsys):
    assert main(["sample", folder, "--length", "20"]) == 0
    assert "warning: the model was trained on 12 tokens and is shown 20" in capsys.readouterr().err
    assert main(["sample", folder, "--length", "20", "--window", "12", "--stride", "6", "--json"]) == 0
    seen = capsys.readouterr()
    assert "warning" not in seen.err
    assert len(lines(seen.out)[0]["tokens"]) == 20


@pytest.mark.parametrize(
    "arguments, told",
    [
        (("--sampler", "first-hiting"), "Did you mean 'first-hitting'?"),
        (("--steps", "0"), "at least 1; saw 0"),
        (("--prompt", "bad bad bad bad"), "the prompt has 15 tokens and the canvas 12"),
        (("--prompt", "Ä"), "no token for 'Ä'"),
        (("--top-p", "2"), "top-p must lie in (0, 1]; saw 2.0"),
        (("--n", "0"), "between 1 and 10,000,000; saw 0"),
        (("--n", str(10**12)), "between 1 and 10,000,000; saw 1,000"),
    ],
)
def test_a_mistake_exits_with_2(folder, capsys, arguments, told):
    assert main(["sample", folder, *arguments]) == 2
    seen = capsys.readouterr()
    assert told in seen.err
    assert seen.out == ""


@pytest.mark.slow
def test_a_mistake_has_no_traceback_in_a_real_process(folder):
    out = Forked("sample", folder, "--sampler", "ancestal").finish()
    assert out.returncode == 2
    assert "Did you mean 'ancestral'?" in out.stderr
    assert "Traceback" not in out.stderr


def test_a_model_without_a_tokenizer_exits_with_2(tmp_path, capsys):
    mute = str(tiny.checkpoint(tmp_path / "mute", tokenizer=False))
    assert main(["sample", mute]) == 2
    assert "this model has no tokenizer" in capsys.readouterr().err


@pytest.mark.slow
def test_in_a_terminal_masks_are_shown_and_the_text_stays(folder):
    leader, follower = pty.openpty()
    words = ["sample", folder, "--length", "6", "--pace", "0.1"]
    child, seen = Forked(*words, stdout=os.ttyname(follower), TERM="xterm"), b""
    while child.poll() is None or select([leader], [], [], 0)[0]:
        if select([leader], [], [], 0.05)[0]:
            seen += os.read(leader, 4096)
    os.close(follower)
    os.close(leader)
    assert child.returncode == 0
    assert "░".encode() in seen
    assert b"masks left" in seen


@pytest.mark.slow
def test_a_terminal_that_is_not_utf8_gets_an_escape_and_no_traceback(folder):
    out = Forked("sample", folder, "--length", "3", "--stream", PYTHONIOENCODING="ascii").finish()
    assert out.returncode == 0
    assert r"\u2591" in out.stdout


def test_the_live_view_hands_on_what_was_drawn(folder):

    model = unmask.load(folder)
    screen = StringIO()
    console = Console(file=screen, force_terminal=True, width=60)
    watched = list(watch(generate(model, Recipe(), n=2, length=5), model.tokenizer, console))
    plain = [event for event in generate(model, Recipe(), n=2, length=5) if isinstance(event, Sample)]
    assert [one.tokens for one in watched] == [one.tokens for one in plain]
    assert "░" in screen.getvalue()


def test_a_terminal_is_not_given_control_characters():
    assert printable("a\x1b[31m\tb\n\x07") == "a·[31m\tb\n·"


def test_infill_prints_ranked_candidates_under_a_header(folder, capsys):
    assert main(["infill", folder, "ba[2] ___", "--n", "3", "--longest", "2"]) == 0
    seen = capsys.readouterr()
    scores = [float(line.split()[0]) for line in seen.out.splitlines()]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert seen.err.splitlines()[0].split() == ["score", "text"]
    assert all(line.startswith("unmask: note: ") for line in seen.err.splitlines()[1:])


@pytest.mark.slow
def test_infill_json_has_stable_keys_and_reads_templates_from_a_file(folder, tmp_path, capsys):
    path = tmp_path / "templates.txt"
    path.write_text("ba[2]d\n\n[1]a[1]\n")
    assert main(["infill", folder, "--file", str(path), "--n", "2", "--json"]) == 0
    found = lines(capsys.readouterr().out)
    assert {one["template"] for one in found} == {"ba[2]d", "[1]a[1]"}
    keys = ["template", "text", "blanks", "lengths", "tokens", "score", "log_likelihood", "error"]
    keys += ["length_probability", "length_error", "note"]
    assert all(list(one) == [*keys, *KEYS[2:]] for one in found)
    assert all(len(one["blanks"]) == len(one["lengths"]) for one in found)


@pytest.mark.parametrize(
    "arguments, told",
    [
        ((), "give a template"),
        (("a[2]", "--file", "x"), "and not both"),
        (("plain",), "has no blank"),
        (("--file", "nowhere.txt"), "cannot read templates"),
        (("a[2]", "--passes", "1"), "at least 2 forward passes"),
        (("a[2]", "--passes", str(10**18)), "100,000 at most"),
        (("a[2]", "--n", str(10**12)), "between 1 and 10,000,000"),
    ],
)
def test_a_mistake_in_infill_exits_with_2(folder, capsys, arguments, told):
    assert main(["infill", folder, *arguments]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("what", [("sample", "--prompt", "ba"), ("infill", "ba[3]d")])
def test_a_film_is_a_page_beside_the_text(folder, tmp_path, capsys, what):
    verb, *more = what
    assert main([verb, folder, *more, "--film", str(tmp_path / "a.html")]) == 0
    assert (tmp_path / "a.html").read_bytes().startswith(b"<!doctype html>")
    printed = capsys.readouterr()
    assert "forward pass" in printed.err
    assert printed.out


@pytest.mark.parametrize("verb", ["sample", "infill"])
@pytest.mark.parametrize(
    "out, told", [("a.mp4", "a film is an .html file"), ("nowhere/a.html", "there is no folder")]
)
def test_a_mistake_in_the_name_of_a_film_exits_with_2(folder, tmp_path, capsys, verb, out, told):
    assert main([verb, folder, *(["a[2]"] if verb == "infill" else []), "--film", str(tmp_path / out)]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("pace", ["-1", "nan", "inf", "1e9"])
def test_a_pause_that_cannot_be_made_is_refused(folder, capsys, pace):
    assert main(["sample", folder, "--pace", pace]) == 2
    assert capsys.readouterr().err == f"unmask: --pace is a pause of 0 to 3600 seconds; saw {float(pace):g}.\n"
