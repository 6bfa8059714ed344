"""Python, the command line and the server draw the same text, with the models that come with the package."""

import json
from dataclasses import dataclass, fields

import httpx
import pytest

import tiny
import unmask
from serving.servers import serving
from unmask.cli.main import main
from unmask.diffusion.schedule import LogLinear, Schedule
from unmask.errors import UserError
from unmask.registry import derived
from unmask.sampling.control import Control
from unmask.sampling.policies.confidence import Looking
from unmask.sampling.recipe import Recipe
from unmask.sampling.tasks.continuation import Continue
from unmask.serving.http.schema import LOCAL, OPTIONS, CompletionRequest

LENGTH = 24
WAYS = [
    {},
    {"temperature": 0.9},
    {"steps": 6},
    {"top_p": 1.0, "no_repeat": 0},
    {"plain": True},
    {"sampler": "first-hitting"},
    {"sampler": "threshold:tau=0.6", "temperature": 0.8},
    {"sampler": "remask-cap:eta=0.1", "steps": 12},
    {"sampler": "ancestral", "steps": 9, "top_p": 0.9, "no_repeat": 3},
    {"pattern": "[a-z ,.]+"},
    {"sampler": "first-hitting", "guidance": 1.5},
    {"sampler": "first-hitting", "window": 16, "stride": 8},
    {"pattern": "[A-Za-z ,.\"'!?\n]+", "reject": 16},
]
WORD, SPACE = "Once upon a time", "Once upon a time "  # a space at the end is left to the next word
WALKS = [(WORD, {}), *((SPACE if number % 2 == 0 else WORD, way) for number, way in enumerate(WAYS))]


@pytest.fixture(scope="module")
def stories():
    return unmask.load("stories")


@pytest.fixture(scope="module")
def address(stories):
    with serving(stories, name="stories") as found:
        yield found


def by_server(address, prompt, model, **options) -> dict:
    given = len(Continue(prompt, length=LENGTH).row(model, constrained="pattern" in options).tokens)
    start = Continue(prompt, length=LENGTH).row(model, constrained="pattern" in options).start
    body = {"prompt": prompt, "max_tokens": given - start, "seed": 7, "n": 2, **options}
    answer = httpx.post(f"{address}/v1/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def by_command(name, prompt, capsys, **options) -> list[dict]:
    given = {f"--{key.replace('_', '-')}": value for key, value in options.items()}
    flags = [part for flag, value in given.items() for part in ((flag,) if value is True else (flag, str(value)))]
    line = ["sample", name, "--prompt", prompt, "--length", str(LENGTH), "--seed", "7", "-n", "2", "--json", *flags]
    assert main(line) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(("prompt", "options"), WALKS, ids=str)
def test_the_server_answers_what_the_command_line_and_python_draw(stories, address, capsys, prompt, options):
    told = by_server(address, prompt, stories, **options)
    printed = by_command("stories", prompt, capsys, **options)
    drawn = unmask.sample(stories, prompt=prompt, length=LENGTH, seed=7, n=2, **options)
    assert [one["text"] for one in printed] == [one.text for one in drawn]
    assert [prompt + choice["text"] for choice in told["choices"]] == [one.text for one in drawn]
    assert told["law"] == printed[0]["law"] == drawn[0].law


@dataclass(frozen=True)
class Rightmost(Looking):
    """A sampler that is not registered: one blank per call, from the right."""

    schedule: Schedule = derived(LogLinear())

    @property
    def law(self) -> str:
        return "approximate (from right to left)"

    def wants(self, view):
        hidden, sigma = super().wants(view)
        return hidden & (hidden.flip(1).cumsum(1).flip(1) == 1), sigma


def test_a_sampler_object_as_the_models_default_is_served_as_it_is_drawn(tmp_path):
    model = tiny.model(tmp_path / "m").with_sampling(sampler=Rightmost(), top_p=0.9)
    (drawn,) = unmask.sample(model, prompt="bad", length=12, seed=7, until="<|endoftext|>")
    with serving(model) as address:
        body = {"prompt": "bad", "max_tokens": 9, "seed": 7}
        told = httpx.post(f"{address}/v1/completions", json=body, timeout=60).json()
        card = httpx.get(f"{address}/v1/models", timeout=60).json()["data"][0]
    assert told["law"] == drawn.law == card["defaults"]["law"]
    assert card["defaults"]["sampler"] == drawn.sampler == "Rightmost"
    assert "bad" + told["choices"][0]["text"] == drawn.text


def test_a_model_whose_defaults_are_not_valid_is_not_served(tmp_path):
    with (
        pytest.raises(UserError, match="default sampling settings of"),
        serving(tiny.model(tmp_path / "m").with_sampling(top_p=7)),
    ):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("prompt", ["Once upon a time", "Lily and "])
def test_the_autoregressive_twin_is_served_as_it_is_drawn(capsys, prompt):
    model = unmask.load("stories-ar")
    with serving(model, name="stories-ar") as address:
        told = by_server(address, prompt, model)
    printed = by_command("stories-ar", prompt, capsys)
    assert [prompt + choice["text"] for choice in told["choices"]] == [one["text"] for one in printed]


@pytest.mark.slow
def test_blanks_of_given_lengths_are_filled_alike(stories, address, capsys):
    template = "Lily saw a big [2] and [3]. She was happy."
    body = {"text": template, "n": 2, "seed": 3}
    told = httpx.post(f"{address}/v1/infill", json=body, timeout=120).json()
    assert main(["infill", "stories", template, "--n", "2", "--seed", "3", "--passes", "2", "--json"]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(choice["text"] for choice in told["choices"]) == sorted(one["text"] for one in printed)


def test_every_drawing_option_is_declared_once_and_reaches_the_server():
    declared = {one.name for kind in (Recipe, Control) for one in fields(kind)}
    assert LOCAL.keys() == {"batch", "control", "classifier", "json_schema", "drafter", "drafts"}, (
        "what a client may not set, or sets by another name"
    )
    assert declared - LOCAL.keys() == OPTIONS.keys()
    assert OPTIONS.keys() <= CompletionRequest.model_fields.keys()
    assert all(CompletionRequest.model_fields[name].description for name in OPTIONS)


def test_every_drawing_option_is_a_flag_and_an_argument(capsys):
    declared = {one.name for kind in (Recipe, Control) for one in fields(kind)} - {"control"}
    for verb in ("sample", "infill", "quality", "report", "convert"):
        assert main([verb, "--help"]) == 0
        out = capsys.readouterr().out
        assert all(f"--{name.replace('_', '-')}" in out for name in declared), verb
    for name in declared:
        Recipe().changed(**{name: getattr(Recipe(), name, getattr(Control(), name, None))})
