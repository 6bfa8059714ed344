"""OpenAI's own client, unchanged."""

import openai
import pytest


@pytest.fixture(scope="module")
def theirs(address):
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_the_client_completes(theirs):
    made = theirs.completions.create(
        model="tiny", prompt="The ", max_tokens=8, n=2, seed=3, temperature=0.7, top_p=0.9
    )
    assert [choice.index for choice in made.choices] == [0, 1]
    assert made.choices[0].finish_reason == "length"
    assert made.usage.completion_tokens == 16


def test_the_client_streams_the_same_text_with_usage_at_the_end(theirs):
    asked = {"model": "tiny", "prompt": "The ", "suffix": " dog", "max_tokens": 10, "seed": 3}
    whole = theirs.completions.create(**asked)
    text, reasons, usage = "", [], None
    for chunk in theirs.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        if chunk.choices:
            text += chunk.choices[0].text
            reasons.append(chunk.choices[0].finish_reason)
        usage = chunk.usage or usage
    assert text == whole.choices[0].text
    assert reasons[-1] == whole.choices[0].finish_reason
    assert not any(reasons[:-1])
    assert usage == whole.usage


def test_our_own_fields_pass_through_the_client(theirs):
    made = theirs.completions.create(
        model="tiny", prompt="The ", max_tokens=6, extra_body={"sampler": "ancestral", "steps": 3}
    )
    assert made.law == "grid-3"


def test_controls_pass_through_the_client(theirs):
    asked = {"model": "tiny", "prompt": "The ", "max_tokens": 6, "seed": 2}
    control = {"pattern": "[0-9]+", "guidance": 1.5, "sampler": "remask-rescale:eta=0.5", "steps": 8}
    made = theirs.completions.create(**asked, extra_body=control)
    assert made.choices[0].text.isdecimal()
    streamed = theirs.completions.create(**asked, extra_body=control, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == made.choices[0].text
    with pytest.raises(openai.BadRequestError, match="at column 2") as refused:
        theirs.completions.create(**asked, extra_body={"pattern": "a(b"})
    assert refused.value.param == "pattern"


def test_the_client_lists_models(theirs):
    assert [model.id for model in theirs.models.list()] == ["tiny"]
    assert theirs.models.retrieve("tiny").owned_by == "unmask"


def test_the_client_raises_its_own_errors(theirs, serve, masked):
    with pytest.raises(openai.BadRequestError, match="takes 48 at most"):
        theirs.completions.create(model="tiny", prompt="The ", max_tokens=500)
    with pytest.raises(openai.NotFoundError, match="no model is called"):
        theirs.completions.create(model="gpt-9", prompt="The ")
    locked = openai.OpenAI(base_url=f"{serve(masked, key='correct horse')}/v1", api_key="wrong", max_retries=0)
    with locked:
        with pytest.raises(openai.AuthenticationError):
            locked.models.list()
        assert locked.with_options(api_key="correct horse").models.list().data
