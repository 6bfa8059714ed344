"""Measuring in Python gives what the command line and the server give."""

import json

import pytest

import tiny
import unmask
from unmask.cli.main import main
from unmask.errors import UserError

TEXTS = ["abba cab. bad, cafe", "a bad cab", "fed"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return unmask.load(tiny.checkpoint(tmp_path_factory.mktemp("models") / "mdlm"))


def test_evaluate_is_the_command(model, tmp_path, capsys):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS))
    assert main(["evaluate", str(model.folder), str(path), "--documents", "line", "--passes", "3", "--json"]) == 0
    command = json.loads(capsys.readouterr().out)
    python = unmask.evaluate(model, TEXTS, passes=3)
    assert python["nats"] == command["nats"]
    assert python.keys() == command.keys()
    assert unmask.evaluate(model.folder, str(path), passes=3)["tokens"] > 0


def test_score_gives_each_text_its_nats_with_an_error(model):
    scores = unmask.score(model, TEXTS, passes=64)
    assert [one.tokens for one in scores] == [len(text) for text in TEXTS]
    assert all(one.nats > 0 for one in scores)
    assert all(0 < one.standard_error < one.nats for one in scores)
    assert scores[0].nats_per_token == scores[0].nats / len(TEXTS[0])
    assert unmask.score(model, TEXTS[1:2], passes=64) == scores[1:2], "whatever its neighbours"


def test_mistakes_are_told(model):
    with pytest.raises(UserError, match="a list of texts"):
        unmask.score(model, "abba")
    with pytest.raises(UserError, match="text 2 has no token"):
        unmask.score(model, ["abba", ""])
    with pytest.raises(UserError, match=r"no setting is called 'pases'\. Did you mean 'passes'"):
        unmask.evaluate(model, TEXTS, pases=3)
