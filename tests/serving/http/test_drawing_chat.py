"""/v1/chat/completions with OpenAI's own client: a model of pairs answers, another one is 404; texts stay texts."""

import json

import httpx
import openai
import pytest

from serving.models import TEXT, network
from serving.servers import serving
from unmask.model.checkpoint import load, save
from unmask.sampling.tasks.continuation import sample
from unmask.text.tokens.vocabulary import byte

TALK = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Ho"},
    {"role": "user", "content": "fox"},
]


@pytest.fixture(scope="module")
def answering(tmp_path_factory):
    """A model of pairs with random weights."""
    tokenizer = byte()
    made = network(tokenizer.size)
    folder = tmp_path_factory.mktemp("chat") / "model"
    about = {"mask": tokenizer.mask, "tokenizer": tokenizer, "settings": {"text": {"pack": "exchange"}}}
    return load(save(folder, made, **about))


@pytest.fixture(scope="module")
def theirs(answering):
    with (
        serving(answering) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def ids_of(model, messages):
    eos = model.tokenizer.eos
    return [id for one in messages for id in [*model.tokenizer.encode(one["content"]), eos]]


def drawn(model, messages, *, room, seed):
    """What Python draws for the same turns."""
    prompt = ids_of(model, messages)
    (found,) = sample(model, prompt=prompt, length=1 + len(prompt) + room, seed=seed)
    return found.text


def test_an_answer_is_what_python_draws_after_the_same_turns(theirs, answering):
    made = theirs.chat.completions.create(model="tiny", messages=TALK, max_tokens=12, seed=7)
    assert made.object == "chat.completion"
    assert made.choices[0].message.role == "assistant"
    assert made.choices[0].message.content == drawn(answering, TALK, room=12, seed=7)
    assert made.choices[0].finish_reason in ("stop", "length")
    assert made.usage.prompt_tokens == 1 + len(ids_of(answering, TALK))
    other = theirs.chat.completions.create(model="tiny", messages=TALK, max_completion_tokens=12, seed=7)
    assert other.choices[0].message == made.choices[0].message


def test_a_stream_is_the_same_answer_in_chunks_with_a_role_and_usage(theirs):
    asked = {"model": "tiny", "messages": TALK, "max_tokens": 12, "seed": 3, "n": 2}
    whole = theirs.chat.completions.create(**asked)
    texts, roles, reasons, usage = {0: "", 1: ""}, {}, {}, None
    for chunk in theirs.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        assert chunk.object == "chat.completion.chunk"
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            roles.setdefault(choice.index, choice.delta.role)
            reasons[choice.index] = choice.finish_reason
        usage = chunk.usage or usage
    assert [texts[one.index] for one in whole.choices] == [one.message.content for one in whole.choices]
    assert roles == {0: "assistant", 1: "assistant"}
    assert reasons == {one.index: one.finish_reason for one in whole.choices}
    assert usage == whole.usage


def test_json_and_controls_pass_through_a_conversation(theirs):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    made = theirs.chat.completions.create(
        model="tiny", messages=TALK[1:2], max_tokens=20, seed=1, response_format=form
    )
    assert json.loads(made.choices[0].message.content)["ok"] in (True, False)
    made = theirs.chat.completions.create(
        model="tiny", messages=TALK[1:2], max_tokens=4, seed=1, extra_body={"pattern": "[0-9]{2}"}
    )
    assert made.choices[0].message.content.isdecimal()


@pytest.mark.parametrize(
    "text", ["<mask>", "{{ 7 * 7 }}", "{% for x in y %}", "<|im_end|>", "<|endoftext|>", "assistant:"]
)
def test_what_looks_like_a_mark_is_text(theirs, answering, text):
    names = [answering.tokenizer.pieces[id] for id in answering.tokenizer.specials]
    for content in [text, *names]:
        messages = [{"role": "user", "content": content}]
        assert not {*answering.tokenizer.encode(content)} & {*answering.tokenizer.specials}
        made = theirs.chat.completions.create(model="tiny", messages=messages, max_tokens=6, seed=2)
        assert made.usage.prompt_tokens == 2 + len(content.encode())
        assert made.choices[0].message.content == drawn(answering, messages, room=6, seed=2)


def test_a_model_without_turns_is_404_and_says_what_to_do(masked):
    with serving(masked) as address, openai.OpenAI(base_url=f"{address}/v1", api_key="x", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError, match="--template roles") as refused:
            client.chat.completions.create(model="tiny", messages=TALK[1:2])
        assert refused.value.code == "no_conversations"


@pytest.mark.parametrize(
    "body",
    [
        {"messages": []},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "nobody", "content": "x"}]},
        {"messages": TALK, "prompt": "x"},
        {"messages": TALK, "max_tokens": 3, "max_completion_tokens": 3},
        {"messages": [{"role": "user", "content": TEXT * 3}]},
        {"messages": TALK, "logprobs": 3},
        {},
    ],
)
def test_mistakes_are_400_in_words(theirs, body):
    refused = httpx.post(f"{str(theirs.base_url).rstrip('/')}/chat/completions", json=body, timeout=120)
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["message"]


def test_an_empty_message_is_a_conversation_without_given_text(theirs):
    made = theirs.chat.completions.create(model="tiny", messages=[{"role": "user", "content": ""}], max_tokens=4)
    assert made.usage.prompt_tokens == 1
