"""From a table of pairs to answers: trained, sampled, infilled, measured and served with the given part alone."""

import csv
import json

import httpx
import pytest

import unmask
from serving.servers import serving
from unmask.cli.main import main
from unmask.settings import read_toml
from unmask.text.row import Role
from unmask.training.data import open_data
from unmask.training.settings import Train

ANSWERS = {"a": "b.", "b": "a long answer.", "c": "cc.", "d": "it is d."}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "pairs.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["question", "text", "other", "none"])
        for number in range(160):
            question = "abcd"[number % 4]
            writer.writerow([question * (1 + number // 4 % 5), ANSWERS[question], "x", ""])
    return path


@pytest.fixture(scope="module")
def trained(table):
    """A small model of the pairs."""
    out = table.parent / "run"
    sizes = ["--model.width", "48", "--model.blocks", "2", "--model.heads", "2", "--optim.batch", "32"]
    line = ["train", "--data", str(table), "--given", "question", "--answer", "text", "--out", str(out)]
    assert (
        main([*line, "--steps", "400", "--tokenizer", "character", "--valid", "0.1", "--threads", "1", *sizes]) == 0
    )
    return out


@pytest.mark.slow
def test_answers_of_every_length_are_learned_and_end_by_themselves(trained, capsys):
    """Whatever the sampler and the room: no flood of eos, no answer that goes on."""
    model = unmask.load(trained)
    assert model.layout.name == "exchange"
    for options in ({}, {"length": 20}, {"sampler": "confidence"}, {"sampler": "entropy"}):
        for letter, answer in ANSWERS.items():
            found = unmask.sample(model, n=8, prompt=letter * 3, seed=1, **options)
            assert sum(one.text == answer for one in found) >= 7, (options, letter, [one.text for one in found])
    assert main(["sample", str(trained), "--prompt", "bb"]) == 0
    assert capsys.readouterr().out == ANSWERS["b"] + "\n"


@pytest.mark.slow
def test_a_blank_in_an_answer_is_filled_given_the_question(trained, capsys):
    (found,) = unmask.infill(unmask.load(trained), "it [2] d.", given="dd", seed=0)
    assert found.text == ANSWERS["d"]
    assert main(["infill", str(trained), "[2] is d.", "--given", "d", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["blanks"] == ["it"]


@pytest.mark.slow
def test_evaluation_measures_the_answer_given_the_question(trained, table, capsys):
    line = ["evaluate", str(trained), str(table), "--given", "question", "--answer", "text", "--json"]
    assert main(line) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["nats_per_token"] < 0.05
    assert found["tokens"] == 40 * sum(len(answer) + 1 for answer in ANSWERS.values())
    assert main(["evaluate", str(trained), str(trained / "data"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nats_per_token"] < 0.05


@pytest.mark.slow
def test_the_server_answers_a_prompt_and_fills_an_answer(trained):
    with serving(unmask.load(trained)) as address:
        body = {"prompt": ["aa", "bbb"], "seed": 3}
        answer = httpx.post(f"{address}/v1/completions", json=body, timeout=60).json()
        assert [one["text"] for one in answer["choices"]] == [ANSWERS["a"], ANSWERS["b"]]
        assert [one["finish_reason"] for one in answer["choices"]] == ["stop", "stop"]
        body = {"text": "[2] is d.", "given": "d", "seed": 0}
        answer = httpx.post(f"{address}/v1/infill", json=body, timeout=60).json()
        assert answer["choices"][0]["text"] == ANSWERS["d"]


@pytest.mark.slow
def test_nothing_given_is_hidden_in_any_batch(trained):
    asked = read_toml(trained / "settings.toml", Train())
    data = open_data(asked, trained / "data")
    for step in range(20):
        rows = data.batches.at(step)
        hidden = ~rows.frozen
        assert ((rows.roles == Role.FREE) | (rows.roles == Role.END)).equal(hidden)
        assert (rows.real.sum(1) > 1).all()
    assert data.tokenizer.decode(data.prompt) in {letter * n for letter in "abcd" for n in range(1, 6)}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--given", "qestion", "--answer", "text"], ["qestion", "Did you mean 'question'", "other"]),
        (["--given", "question", "--answer", "answer"], ["'answer'", "none, other, question, text"]),
        (["--given", "question", "--answer", "text", "--length", "12"], ["has 14 tokens", "--length 17"]),
        (["--given", "question", "--answer", "none"], ["'none'", "empty in all"]),
        (["--given", "question", "--answer", "text", "--template", "endless.jinja"], ["template", "never end"]),
        (["--given", "question", "--answer", "text", "--template", "roels"], ["roels", "roles"]),
        (["--answer", "text"], ["--given"]),
        (["--given", "question", "--answer", "text", "--model.name", "bert"], ["encoder"]),
    ],
)
def test_mistakes_are_answered_in_words_and_the_folder_stays_free(table, tmp_path, monkeypatch, capsys, flags, words):
    (tmp_path / "endless.jinja").write_text(
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    )
    monkeypatch.chdir(tmp_path)
    line = ["train", "--data", str(table), "--out", str(tmp_path / "run"), "--tokenizer", "character", "--steps", "2"]
    assert main([*line, *flags]) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in words), said
    assert "Traceback" not in said
    assert not (tmp_path / "run" / "settings.toml").exists()
