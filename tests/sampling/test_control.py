"""Controls from the command line and from Python: forms, rejection, remasking, and mistakes told before any call."""

import json
import re

import pytest
import torch

import exact
import tiny
from unmask.cli.main import main
from unmask.errors import UserError
from unmask.sampling import process as loop
from unmask.sampling.control import Control
from unmask.sampling.logits import LogitOptions
from unmask.sampling.masked import Masked, fill
from unmask.sampling.patterns.constraint import matching
from unmask.sampling.patterns.form import pattern_of
from unmask.sampling.patterns.regex import machine_of
from unmask.sampling.patterns.tokens import Words
from unmask.sampling.policies.planned import FirstHitting
from unmask.sampling.recipe import Method, Recipe
from unmask.sampling.rejection import Rejection
from unmask.sampling.tasks.continuation import sample
from unmask.sampling.tasks.infill import infill
from unmask.sampling.tasks.rows import Drawn, TaskRow, draw_rows
from unmask.text.prompt.canvas import blank


@pytest.mark.parametrize(
    "form, good, bad",
    [
        ('{"a": <int>}', ['{"a": 0}', '{"a": -12}'], ['{"a": 012}', '{"a": x}', '{"a":1}']),
        ("<string>", ['"a\\nb"', '""', '"\\u00e9é"'], ['"a', '"a"b"', '"\\x"']),
        ("<number>", ["1.5e-3", "-0.25"], ["1.", ".5", "+1"]),
        ("[<bool>] <a.b|c>", ["[true] a.b", "[false] c"], ["[true] axb", "true c"]),
        ("<list int>", ["[]", "[1]", "[1, -2, 3]"], ["[1,2]", "[1, ]", "1"]),
        (r"\<<word>\\ <line>", ["<ab_1\\ any thing"], ["<a b\\ x", "<ab\\ x\ny"]),
        ("<text>", ["a\nb"], [""]),
    ],
)
def test_a_form_is_filled_as_it_says(form, good, bad):
    machine = machine_of(pattern_of(form))
    assert all(machine.matches(text.encode()) for text in good)
    assert not any(machine.matches(text.encode()) for text in bad)
    if "{" in form:
        assert all(isinstance(json.loads(text), dict) for text in good)


@pytest.mark.parametrize(
    "form, told",
    [
        ("a <int", "column 3"),
        ("<intt>", "Did you mean 'int'"),
        ("<list x>", "'x'"),
        ("<" + "list " * 9 + "int>", "8 deep"),
        (("<" + "list " * 8 + "string>") * 50, "more than 100,000 characters by column 288"),
    ],
)
def test_a_wrong_form_is_refused(form, told):
    with pytest.raises(UserError, match=told):
        pattern_of(form)


def test_a_pattern_holds_for_samples_prompts_and_blanks(model):
    for one in sample(model, n=5, control=Control(pattern="(a|bc)+ d*")):
        assert re.fullmatch("(a|bc)+ d*", one.text)
        assert one.law == "exact, each draw restricted to what can still match"
    for one in sample(model, n=5, prompt="ab ", control=Control(pattern="[ef]+")):
        assert re.fullmatch("ab [ef]+", one.text)
    for one in sample(model, n=5, prompt="ab ", control=Control(pattern="a(b|c) (.)[gh]+", whole=True)):
        assert re.fullmatch("ab .[gh]+", one.text)
    for one in infill(model, "ab[3]c[2-4]", n=4, control=Control(one_of=("fed", "hh", "a")), passes=2):
        assert {*one.blanks} <= {"fed", "hh", "a"}


def test_lengths_that_cannot_match_are_passed_over_and_none_at_all_is_an_error(model):
    control = Control(pattern="abc|abcde", exact_length=True)
    found = infill(model, "a ___ b", n=9, longest=6, control=control, passes=2)
    assert {one.lengths for one in found} <= {(3,), (5,)}
    with pytest.raises(UserError, match="can match"):
        infill(model, "a[2]b", control=control, passes=2)


@pytest.mark.slow
def test_rejection_gives_the_models_law_given_the_pattern():
    world = exact.ChainWorld.random(5, length=3)
    words = Words((b"a", b"b", b"c", b""), (b"a", b"b", b"c", b""), silent=frozenset([3]))
    joint = exact.law_of_chain(world)
    given = {text: p for text, p in joint.items() if re.fullmatch("a.b|.c+", "".join("abc"[i] for i in text))}
    law = {text: p / sum(given.values()) for text, p in given.items()}
    process = Rejection(Masked(), matching("a.b|.c+", words), 200)
    method = Method("first-hitting", "", process, world.network, FirstHitting(), LogitOptions())
    row, recipe = TaskRow([world.mask] * 3), Recipe(batch=5000)
    drawn = draw_rows(method, [row] * 5000, recipe=recipe, mask=world.mask, device=torch.device("cpu"))
    rows = [one for one in drawn if isinstance(one, Drawn)]
    assert [one.row for one in rows] == list(range(5000))
    assert exact.chi_square_p(law, torch.tensor([one.tokens for one in rows])) > 1e-4
    assert all(len(one.trace) == 3 for one in rows)
    restricted = LogitOptions(constraint=matching("a.b|.c+", words))
    *_, step = fill(world.network, blank(5000, 3, mask=world.mask), options=restricted)
    assert exact.chi_square_p(law, step.canvas.tokens) < 1e-4  # restricting as one draws is another law


def test_rejection_ends_with_an_error_when_the_pattern_is_too_unlikely(model):
    with pytest.raises(UserError, match="too unlikely"):
        sample(model, control=Control(pattern="abcdefghabcd", reject=2))
    with pytest.raises(UserError, match="no text of 12 tokens"):
        sample(model, control=Control(pattern="a", exact_length=True, reject=2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tiny.checkpoint(tmp_path_factory.mktemp("models") / "mdlm"))


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.slow
def test_every_control_is_a_flag_of_sample(folder, capsys):
    assert main(["sample", folder, "--json", "--n", "3", "--one-of", "abc", "head.", "hello"]) == 0
    assert {one["text"] for one in lines(capsys)} <= {"abc", "head."}  # this vocabulary cannot spell hello
    assert (
        main(["sample", folder, "--json", "--form", "<word>, <a|b>.", "--sampler", "ancestral", "--steps", "3"]) == 0
    )
    assert re.fullmatch(r"\w+, [ab]\.", lines(capsys)[0]["text"])
    remask = ["--sampler", "remask-rescale:eta=0.9", "--steps", "20"]
    assert main(["sample", folder, "--json", *remask, "--pattern", "[ab]+"]) == 0
    one = lines(capsys)[0]
    assert re.fullmatch("[ab]+", one["text"])
    assert one["calls"] <= 20
    assert main(["sample", folder, "--json", "--prompt", "ab", "--guidance", "3"]) == 0
    assert lines(capsys)[0]["law"] == "exact, guided by 3"
    assert main(["sample", folder, "--json", "--pattern", "[^h]*", "--whole", "--reject", "500"]) == 0
    one = lines(capsys)[0]
    assert "h" not in one["text"]
    assert one["law"] == "exact, given the pattern (by rejection)"


@pytest.mark.slow
def test_every_control_is_a_flag_of_infill(folder, capsys):
    flags = ["--pattern", "[ab]+", "--exact-length", "--passes", "2", "--json"]
    assert main(["infill", folder, "c[3]d[2]", *flags]) == 0
    assert re.fullmatch("c[ab]{3}d[ab]{2}", lines(capsys)[0]["text"])
    assert main(["infill", folder, "c[3]d", "--sampler", "remask-conf:eta=0.5", "--json", "--passes", "2"]) == 0


@pytest.mark.parametrize(
    "flags, told",
    [
        (["--pattern", "a(b"], "column 2"),
        (["--pattern", "abc", "--exact-length"], "no text of 12 tokens can match the pattern 'abc'"),
        (["--pattern", "[xyz]+"], "past position 0"),
        (["--prompt", "b", "--pattern", "a.*", "--whole"], "past position 0"),
        (["--guidance", "nan", "--prompt", "a"], "finite"),
        (["--sampler", "first-hitting:eta=0.5"], "has no fields to set"),
        (["--sampler", "threshold:tua=0.5"], "Did you mean 'tau'"),
        (["--sampler", "threshold:tau=much"], "tau must be a number"),
        (["--sampler", "remask-cap:eta=7"], "0..1"),
        (["--classifier", "nowhere", "--classifier-label", "x"], "not a classifier"),
        (["--form", "<x>"], "hole of a form"),
    ],
)
def test_mistakes_are_told_before_any_network_call(folder, capsys, monkeypatch, flags, told):
    def never(*arguments):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(loop, "answer", never)
    assert main(["sample", folder, *flags]) == 2
    assert told in capsys.readouterr().err
