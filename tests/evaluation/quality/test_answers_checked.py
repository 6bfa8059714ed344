"""Answers are checked one by one, and the references in their place."""

import json

import pytest

import tiny
from serving.models import network
from unmask.cli.main import main
from unmask.cli.samples import drawn_answers
from unmask.errors import UserError
from unmask.evaluation.quality.answers import Answered, assess_answers, steps, values
from unmask.model.checkpoint import load, save
from unmask.sampling.recipe import Recipe
from unmask.sampling.tasks.continuation import sample
from unmask.text.corpus.turns import exchanges
from unmask.text.tokens.vocabulary import byte

GIVEN = "58,11,80,83,81"


@pytest.mark.parametrize(
    "answer, form, equations, right",
    [
        ("80-58=22,22/11=2,83-2=81", 1, 1, 1),
        (" 80-58=22,22/11=2,83-2=81\n", 1, 1, 1),
        ("80-58=22,22/11=2,83+2=85", 1, 1, 0),  # another target
        ("80-58=22,22/11=2,83-1=81", 0, 2 / 3, 0),  # a number that is not there, a wrong equation
        ("80-58=22,80-58=22,83-2=81", 0, 1, 0),  # numbers used twice
        ("83-2=81", 0, 1, 0),
        ("80/11=7,58-7=51,83-51=32", 1, 2 / 3, 0),  # division without a rest only
        ("80-58=22,", 0, 1 / 2, 0),
        ("", 0, 0, 0),
        ("word", 0, 0, 0),
    ],
)
def test_a_countdown_uses_each_number_once_and_ends_at_the_target(answer, form, equations, right):
    assert steps(GIVEN, "", answer) == {"form": form, "equations": equations, "right": right}


def test_division_by_nothing_does_not_hold():
    assert steps("5,0,5", "", "5/0=5")["equations"] == 0


def test_values_are_found_whatever_their_case_and_spaces_and_yes_and_no_are_not_looked_for():
    given = "name : Blue Spice | price : £ 20 - 25 | family friendly : no | near : Crowne Plaza Hotel"
    assert values(given, "", "blue  spice is near Crowne Plaza Hotel, £20-25.") == {"values": 1}
    assert values(given, "", "Blue Spice has no price") == {"values": pytest.approx(1 / 3)}
    assert values("no table", "", "x") == {}


def test_shares_have_error_bars_and_stand_beside_the_references():
    some = [Answered("a", "right", "right "), Answered("a", "right", "wrong"), *[Answered("a", "right", "")] * 2]
    result = assess_answers(some, "exact")
    assert result["shares"] == {"exact": {"value": 0.25, "standard_error": pytest.approx(0.25)}}
    assert result["of_references"] == {"exact": {"value": 1, "standard_error": 0}}
    assert result["empty"] == 2
    with pytest.raises(UserError, match="at least 2 prompts"):
        assess_answers(some[:1], "exact")
    with pytest.raises(UserError, match="Did you mean 'exact'"):
        assess_answers(some, "exac")


@pytest.fixture(scope="module")
def answering(tmp_path_factory):
    """A model of pairs with random weights."""
    tokenizer = byte()
    about = {"mask": tokenizer.mask, "tokenizer": tokenizer, "settings": {"text": {"pack": "exchange"}}}
    return save(tmp_path_factory.mktemp("answers") / "model", network(tokenizer.size), **about)


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    marks = ["fox", "<mask>", "{{ 7 * 7 }}", "<|im_end|>", "<|endoftext|>", "dog " * 5]
    path.write_text("".join(json.dumps({"question": mark, "text": "0", "none": ""}) + "\n" for mark in marks))
    return path


def test_prompts_are_answered_as_if_each_were_alone(answering, prompts):
    """Rows of one batch differ in what is given; marks in a prompt are letters."""
    model = load(answering)
    entries = list(exchanges(prompts, "question", "text"))
    one_by_one, _ = drawn_answers(model, Recipe(seed=3, batch=1), entries, length=40)
    together, cost = drawn_answers(model, Recipe(seed=3, batch=4), entries, length=40)
    assert one_by_one == together
    assert len(set(together)) == len(entries)
    assert cost["sampler"] == "first-hitting"
    text = "<|endoftext|>"
    (first,) = sample(model, prompt=text, length=40, seed=3)
    assert first.text == drawn_answers(model, Recipe(seed=3), [entries[4]], length=40)[0][0]


def test_the_command_answers_and_checks(answering, prompts, tmp_path, capsys):
    out = tmp_path / "result.json"
    line = ["quality", str(answering), "--prompts", str(prompts), "--given", "question", "--n", "3"]
    assert main([*line, "--pattern", "[0-9]", "--out", str(out)]) == 0
    assert "references: 1.000" in capsys.readouterr().out
    result = json.loads(out.read_text())
    assert result["answers"] == 3
    assert [one["given"] for one in result["examples"]] == ["fox", "{{ 7 * 7 }}", "<|endoftext|>"]
    shares = [float(one["answer"] == "0") for one in result["examples"]]
    assert result["shares"]["exact"]["value"] == pytest.approx(sum(shares) / 3)
    assert result["record"]["settings"]["check"] == "exact"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--given", "qestion"], ["qestion", "Did you mean 'question'"]),
        (["--given", "question", "--answer", "none"], ["'none'", "empty in all 6"]),
        (["--given", "question", "--check", "exat"], ["exat"]),
        (["--given", "question", "--n", "1"], ["at least 2 prompts"]),
        (["--given", "question", "--length", "12"], ["nothing is left to fill"]),
    ],
)
def test_mistakes_are_answered_in_words(answering, prompts, capsys, flags, words):
    assert main(["quality", str(answering), "--prompts", str(prompts), *flags]) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in words), said


@pytest.mark.parametrize("rule", ["drop", "cut"])
def test_evaluation_follows_the_rule_for_what_is_too_long(tmp_path, capsys, rule):
    """A model whose long pairs were left out in training leaves them out in evaluation, and counts them."""
    tokenizer = byte()
    about = {"mask": tokenizer.mask, "tokenizer": tokenizer, "settings": {"text": {"pack": f"exchange:long={rule}"}}}
    folder = save(tmp_path / "model", network(tokenizer.size), **about)
    rows = [("a", "b" * 10), ("a" * 60, "b"), ("a", "b" * 60)]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps({"given": given, "text": answer}) + "\n" for given, answer in rows))
    code = main(
        ["evaluate", str(folder), str(path), "--given", "given", "--answer", "text", "--passes", "1", "--json"]
    )
    printed = capsys.readouterr()
    if rule == "cut":
        assert code == 2
        assert "answer 3 has 60 tokens" in printed.err
        return
    result = json.loads(printed.out)
    assert (code, result["tokens"], result["record"]["data"]["rows_left_out"]) == (0, 11, 2)


def test_a_model_that_learned_no_pairs_is_refused(prompts, tmp_path, capsys):
    folder = tiny.checkpoint(tmp_path / "model")
    assert main(["quality", str(folder), "--prompts", str(prompts), "--given", "question"]) == 2
    assert "unmask train --given" in capsys.readouterr().err
    assert main(["quality", str(folder), "--prompts", "nowhere.csv", "--given", "question"]) == 2
    assert "no file nowhere.csv" in capsys.readouterr().err
