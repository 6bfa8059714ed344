"""OpenAI's own client, unchanged."""

import inspect
import math
import re
from pathlib import Path

import openai
import pytest
import torch

from unmask.diffusion.rows import forbid
from unmask.model.passes.whole import logits_at


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


def test_the_client_gets_log_probabilities_that_join_to_the_text(theirs):
    asked = {"model": "tiny", "prompt": ["The ", "Once "], "max_tokens": 8, "n": 2, "seed": 3, "temperature": 1.5}
    made = theirs.completions.create(**asked, logprobs=3)
    plain = theirs.completions.create(**asked)
    assert plain.choices[0].logprobs is None
    for choice, other in zip(made.choices, plain.choices, strict=True):
        found = choice.logprobs
        assert choice.text == other.text == "".join(found.tokens)
        assert "visible at the forward pass that drew it" in found.means
        for token, log_prob, top, at in zip(
            found.tokens, found.token_logprobs, found.top_logprobs, found.text_offset, strict=True
        ):
            assert choice.text[at:].startswith(token)
            assert top[token] == pytest.approx(log_prob)
            assert 3 <= len(top) <= 4
            assert sum(map(math.exp, top.values())) <= 1 + 1e-5
            assert len(top) == 3 or log_prob <= min(top.values())


def test_streamed_log_probabilities_are_those_of_the_whole_answer(theirs):
    asked = {"model": "tiny", "prompt": "The ", "max_tokens": 20, "seed": 3, "logprobs": 1}
    whole = theirs.completions.create(**asked).choices[0].logprobs
    parts = [chunk.choices[0].logprobs for chunk in theirs.completions.create(**asked, stream=True)]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [one for part in parts for one in getattr(part, name)] == getattr(whole, name)
    none = theirs.completions.create(**{**asked, "logprobs": 0}).choices[0].logprobs
    assert none.top_logprobs is None
    assert none.token_logprobs == whole.token_logprobs


def test_log_probabilities_of_an_autoregressive_model_are_those_of_its_network(serve, causal):
    with openai.OpenAI(base_url=f"{serve(causal)}/v1", api_key="none", max_retries=0) as client:
        made = client.completions.create(model="tiny", prompt="The ", max_tokens=6, seed=5, logprobs=2).choices[0]
    tokens = torch.tensor([[causal.tokenizer.bos, *causal.tokenizer.encode("The " + made.text)]])
    drawn = len(made.logprobs.tokens)
    with torch.inference_mode():
        logits = logits_at(causal.network, tokens, torch.zeros(1), torch.arange(tokens.shape[1]))
    wanted = forbid(logits, causal.mask).log_softmax(-1).gather(-1, tokens.T).squeeze(-1)[-drawn:]
    assert made.logprobs.token_logprobs == pytest.approx(wanted.tolist(), abs=1e-4)
    assert "given the text before it" in made.logprobs.means


def test_log_probabilities_of_a_masked_model_are_those_of_its_network_whatever_is_drawn(theirs, masked):
    asked = {"model": "tiny", "prompt": "The laz", "suffix": " dog", "max_tokens": 1, "logprobs": 5}
    made = theirs.completions.create(**asked, temperature=0.3, top_p=0.9, extra_body={"pattern": "[0-9]"}).choices[0]
    ids = masked.tokenizer.encode("The laz")
    tokens = torch.tensor([[*ids, masked.mask, *masked.tokenizer.encode(" dog")]])
    with torch.inference_mode():
        logits = logits_at(masked.network, tokens, torch.zeros(1), torch.tensor([len(ids)]))
    wanted = forbid(logits, masked.mask).log_softmax(-1)[0]
    assert made.text.isdecimal()
    assert made.logprobs.token_logprobs == pytest.approx([float(wanted[masked.tokenizer.encode(made.text)[0]])])
    best = wanted.topk(5)
    top = made.logprobs.top_logprobs[0]
    assert sorted(top.values())[-5:] == pytest.approx(sorted(best.values.tolist()))
    assert [masked.tokenizer.decode([id]) for id in best.indices.tolist()] == list(top)[:5]


def test_a_stop_text_ends_the_log_probabilities_too(theirs):
    asked = {"model": "tiny", "prompt": "The ", "max_tokens": 12, "seed": 3, "logprobs": 0}
    text = theirs.completions.create(**asked).choices[0].text
    cut = theirs.completions.create(**asked, stop=text[5:7]).choices[0]
    assert "".join(cut.logprobs.tokens) == cut.text == text[: text.index(text[5:7])]


NEUTRAL = {
    "echo": False,
    "best_of": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0.0,
    "logit_bias": {},
    "user": "a",
}
REFUSED = {"echo": True, "best_of": 2, "frequency_penalty": 0.5, "presence_penalty": 1, "logit_bias": {"5": 1}}


def test_fields_that_ask_for_nothing_are_accepted_and_others_refused_with_advice(theirs):
    asked = {"model": "tiny", "prompt": "The ", "max_tokens": 4, "seed": 1}
    assert theirs.completions.create(**asked, **NEUTRAL).choices == theirs.completions.create(**asked).choices
    for name, value in REFUSED.items():
        with pytest.raises(openai.BadRequestError, match=f"{name} is not supported: leave it out") as refused:
            theirs.completions.create(**asked, **{name: value})
        assert refused.value.param == name


def test_every_field_of_the_client_is_in_the_documented_table(theirs):
    page = (Path(__file__).parents[3] / "docs/how/serve.md").read_text(encoding="utf-8")
    table = page.split("| OpenAI's field |")[1].split("\n\n")[0]
    own = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
    named = set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines()[2:])))
    assert set(inspect.signature(theirs.completions.create).parameters) - own == named


def test_an_address_that_is_not_there_names_those_that_are(theirs):
    with pytest.raises(openai.NotFoundError, match="POST /v1/completions, POST /v1/chat/completions"):
        theirs.embeddings.create(model="tiny", input="Hello")
