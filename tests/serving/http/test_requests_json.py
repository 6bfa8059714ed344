"""response_format: every answer parses and is valid, in both routes, whole and streamed, and by --json-schema."""

import json

import httpx
import jsonschema
import openai
import pytest

from serving.servers import serving
from unmask.cli.main import main
from unmask.sampling.control import Control
from unmask.sampling.tasks.continuation import sample

PET = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 4},
        "age": {"type": "integer", "minimum": 0, "maximum": 30},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "kind"],
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "pet", "schema": PET, "strict": True}}


@pytest.fixture(scope="module")
def bytes_address(bytewise):
    with serving(bytewise) as address:
        yield address


def ask(address, path, **body):
    return httpx.post(f"{address}{path}", json=body, timeout=120)


def test_a_completion_of_openai_s_client_is_valid_and_the_stream_is_the_same(bytes_address):
    with openai.OpenAI(base_url=f"{bytes_address}/v1", api_key="none", max_retries=0) as client:
        asked = {"model": "tiny", "prompt": "", "max_tokens": 46, "seed": 1, "n": 4}
        made = client.completions.create(**asked, extra_body={"response_format": FORMAT})
        for choice in made.choices:
            jsonschema.validate(json.loads(choice.text), PET)
        asked["n"] = 1
        parts = client.completions.create(**asked, extra_body={"response_format": FORMAT}, stream=True)
        assert "".join(part.choices[0].text for part in parts) == made.choices[0].text


def test_the_answer_is_what_python_and_the_command_line_draw(bytes_address, bytewise, tmp_path, capsys):
    text = ask(bytes_address, "/v1/completions", max_tokens=48, seed=5, response_format=FORMAT).json()["choices"][0][
        "text"
    ]
    (drawn,) = sample(bytewise, length=48, seed=5, control=Control(json_schema=json.dumps(PET)))
    assert drawn.text == text
    path = tmp_path / "pet.json"
    path.write_text(json.dumps(PET))
    assert main(["sample", str(bytewise.folder), "--length", "48", "--seed", "5", "--json-schema", str(path)]) == 0
    assert capsys.readouterr().out.strip() == text


def test_any_object_and_plain_text(bytes_address):
    for seed in range(3):
        asked = {"max_tokens": 30, "seed": seed, "response_format": {"type": "json_object"}}
        answer = ask(bytes_address, "/v1/completions", **asked).json()
        assert "choices" in answer, answer
        assert isinstance(json.loads(answer["choices"][0]["text"]), dict)
    plain = ask(bytes_address, "/v1/completions", max_tokens=6, seed=1).json()
    same = ask(bytes_address, "/v1/completions", max_tokens=6, seed=1, response_format={"type": "text"}).json()
    assert same["choices"][0]["text"] == plain["choices"][0]["text"]


def test_a_blank_is_filled_with_valid_json(bytes_address):
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = ask(bytes_address, "/v1/infill", text="Answers: [12-16].", seed=2, n=2, response_format=form).json()
    for choice in answer["choices"]:
        value = json.loads(choice["text"].removeprefix("Answers: ").removesuffix("."))
        jsonschema.validate(value, schema)


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"type": "json_schema"}, "give both"),
        ({"type": "xml"}, "json_object"),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}}, "refers to itself"),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}, "not at #"),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": {"minLength": 3000}}}, "states"),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": "a" * 99}}},
            "no text of 20 tokens",
        ),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": "/etc/passwd"}}, "response_format"),
    ],
)
def test_what_cannot_be_kept_is_400_in_words(bytes_address, form, words):
    refused = ask(bytes_address, "/v1/completions", max_tokens=20, response_format=form)
    assert refused.status_code == 400, refused.text
    assert words in refused.json()["error"]["message"]


def test_a_schema_and_a_pattern_exclude_each_other_and_no_path_is_a_field(bytes_address):
    refused = ask(bytes_address, "/v1/completions", pattern="a", response_format={"type": "json_object"})
    assert refused.status_code == 400
    assert "exclude each other" in refused.json()["error"]["message"]
    assert ask(bytes_address, "/v1/completions", json_schema="/etc/passwd").status_code == 400


@pytest.mark.parametrize("content", ["", "[1]", '{"type": 3}', None])
def test_a_file_that_is_no_schema_is_an_error_in_words(bytewise, tmp_path, capsys, content):
    path = tmp_path / "schema.json"
    if content is not None:
        path.write_text(content)
    assert main(["sample", str(bytewise.folder), "--length", "20", "--json-schema", str(path)]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert "JSON" in said or "schema.json" in said
