"""Request bodies: their fields and bounds. Unknown fields are refused.

Every option of `sampling.recipe` is a field of the same name and meaning; none is declared here.
"""

import json
from collections.abc import Callable
from dataclasses import MISSING, fields
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator
from pydantic_core import PydanticCustomError

from unmask.errors import unknown
from unmask.sampling.control import Control
from unmask.sampling.recipe import Recipe
from unmask.settings import help_of
from unmask.text.corpus.turns import Turn

Text = Field(default="", description="A text, a list of texts, or the same as token ids.")


class Request(BaseModel):
    """Fields of every request."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    model: str = Field(default="", description="Name of the model; empty: the served model.")

    @model_validator(mode="before")
    @classmethod
    def only_known(cls, body: Any) -> Any:
        """Refuse unknown fields by name; null means the default."""
        if not isinstance(body, dict):
            raise PydanticCustomError("object", "a request must be a JSON object.")
        for name in body:
            if name not in cls.model_fields:
                problem = str(unknown("field", str(name)[:80], cls.model_fields))
                raise PydanticCustomError("unknown_field", "{said}", {"said": problem, "field": str(name)[:80]})
        return {name: value for name, value in body.items() if value is not None}


class Allowed(BaseModel):
    """The tokens allowed at a position."""

    model_config = ConfigDict(extra="forbid", strict=True)

    position: int = Field(ge=0, lt=2**31, description="Token position in the text from 0, prompt included.")
    tokens: list[int] = Field(min_length=1, description="Token ids.")


# Options that a client may not set, and why.
LOCAL = {
    "batch": "requests share the engine's batches",
    "drafter": "a folder on the server's disk, or a model of the hub",
    "drafts": "they need a drafter",
    "control": "its fields are fields of the request",
    "classifier": "a folder on the server's disk, given when the server starts",
    "json_schema": "response_format has it; a file would be one on the server's disk",
}
BOUNDS: dict[str, dict[str, Any]] = {
    "temperature": {"ge": 0, "le": 2},
    "top_p": {"gt": 0, "le": 1},
    "top_k": {"ge": 0},
    "no_repeat": {"ge": 0},
    "steps": {"ge": 1},
    "seed": {"ge": -(2**63), "lt": 2**63},
    "window": {"ge": 2},
    "stride": {"ge": 1},
    "reject": {"ge": 0},
    "guidance": {"ge": -100, "le": 100},
    "classifier_weight": {"ge": -100, "le": 100},
}
RANDOM = "The same seed gives the same answer, whatever the batch; none: a random seed, which the answer reports."


def drawing_options() -> dict[str, Any]:
    """The sampling options as pydantic fields: type, default, bounds and description of each."""
    options: dict[str, Any] = {}
    for kind in (Recipe, Control):
        hints, texts = get_type_hints(kind), help_of(kind)
        for one in fields(kind):
            if one.name in LOCAL:
                continue
            hint, default = in_json(hints[one.name]), one.default
            about = {"description": texts.get(one.name, ""), **BOUNDS.get(one.name, {})}
            if get_origin(hint) is tuple:
                options[one.name] = (list[get_args(hint)[0]], Field(default_factory=list, **about))  # type: ignore[misc]
            elif one.name == "seed":
                options[one.name] = (int | None, Field(default=None, **{**about, "description": RANDOM}))
            else:
                assert default is not MISSING
                options[one.name] = (hint, Field(default=default, **about))
    return options


def in_json(hint: Any) -> Any:
    """The type of an option without what JSON cannot hold: objects of Python."""
    if not isinstance(hint, UnionType):
        return hint
    return Union[tuple(one for one in get_args(hint) if one in (str, int, float, bool, type(None)))]  # noqa: UP007


OPTIONS = drawing_options()
Options: Callable[..., Any] = create_model("Options", __base__=Request, **OPTIONS)


class NamedSchema(BaseModel):
    """A JSON schema, as OpenAI's clients write it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(default="", max_length=64, description="Has no effect.")
    description: str = Field(default="", description="Has no effect.")
    schema_: dict[str, Any] = Field(alias="schema", description="The JSON schema.")
    strict: bool | None = Field(default=None, description="Has no effect: every answer is valid.")


class ResponseFormat(BaseModel):
    """In which form to answer."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def has_its_schema(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise PydanticCustomError("response_format", "json_schema and its schema belong together: give both.")
        return self


class Drawing(Options):  # type: ignore[misc, valid-type]
    """How to sample, and in which form to answer."""

    response_format: ResponseFormat | None = Field(
        default=None, description="json_object, or json_schema with its schema: the text drawn is valid JSON."
    )

    allowed: list[Allowed] = Field(
        default_factory=list, description="Allowed tokens per position, alone or with a pattern."
    )
    n: int = Field(default=1, ge=1, description="Candidates per prompt.")
    stream: bool = Field(default=False, description="Answer with Server-Sent Events.")
    events: Literal["text", "steps"] = Field(
        default="text", description="What is streamed: text to append, or the tokens of every forward pass."
    )
    draft: bool = Field(default=False, description="With steps: also the likeliest token at every remaining blank.")

    def recipe(self, **more: Any) -> Recipe:
        """The sampling options as a recipe; `more` are those that the server adds."""
        given = {name: getattr(self, name) for name in OPTIONS if name in self.model_fields_set}
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
        given["json_schema"] = self.json_schema
        return Recipe().changed(**{name: value for name, value in {**given, **more}.items() if value is not None})

    @property
    def json_schema(self) -> str | None:
        """The schema of the answer, as JSON text; None: any text."""
        form = self.response_format
        if form is None or form.type == "text":
            return None
        return json.dumps({"type": "object"} if form.json_schema is None else form.json_schema.schema_)

    @model_validator(mode="after")
    def streamed(self) -> "Drawing":
        if self.events == "steps" and not self.stream:
            raise PydanticCustomError("events", "events need a stream: set stream to true.")
        if self.draft and self.events != "steps":
            raise PydanticCustomError("draft", "a draft needs a stream of steps: set events to 'steps'.")
        return self


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = Field(default=False, description="Send a last chunk with the usage.")


# Fields of OpenAI that are refused: the value that changes nothing, which is accepted, and what to use instead.
UNSUPPORTED: dict[str, tuple[Any, str]] = {
    "echo": (False, "The prompt is yours; POST /v1/score bounds the probability of a given text."),
    "best_of": (1, "Ask for n candidates, and score them with POST /v1/score."),
    "frequency_penalty": (0, "no_repeat blocks repeated n-grams."),
    "presence_penalty": (0, "no_repeat blocks repeated n-grams."),
    "logit_bias": ({}, "allowed gives the tokens that are possible at a position."),
}


class CompletionRequest(Drawing):
    """Continue a text, or fill between a prompt and a suffix."""

    prompt: str | list[str] | list[int] | list[list[int]] = Text
    suffix: str = Field(default="", description="Given text after the generated text.")
    max_tokens: int = Field(
        default=16, ge=1, description="Tokens to generate; the default of a model of pairs is the rest of its row."
    )
    stop: str | list[str] = Field(default_factory=list, description="The text ends before the first of these.")
    stream_options: StreamOptions | None = None
    logprobs: int | None = Field(
        default=None, ge=0, le=20, description="Give log p of each token, and this many of the most likely tokens."
    )
    echo: Literal[False] = Field(default=False, description="Only false: the prompt is not repeated.")
    best_of: Literal[1] = Field(default=1, description="Only 1: no candidate is thrown away.")
    frequency_penalty: float = Field(default=0, ge=0, le=0, description="Only 0: use no_repeat.")
    presence_penalty: float = Field(default=0, ge=0, le=0, description="Only 0: use no_repeat.")
    logit_bias: dict[str, float] = Field(default_factory=dict, max_length=0, description="Only empty: use allowed.")
    user: str = Field(default="", description="Has no effect and is not logged.")

    @model_validator(mode="before")
    @classmethod
    def supported(cls, body: Any) -> Any:
        """Refuse what OpenAI has and this server has not, unless it asks for nothing."""
        for name, (neutral, advice) in UNSUPPORTED.items():
            if isinstance(body, dict) and body.get(name, neutral) not in (None, neutral):
                problem = f"{name} is not supported: leave it out. {advice}"
                raise PydanticCustomError("unknown_field", "{said}", {"said": problem, "field": name})
        return body

    @model_validator(mode="after")
    def sensible(self) -> "CompletionRequest":
        if len(self.stops) > 16 or any(not stop for stop in self.stops):
            raise PydanticCustomError("stop", "stop must have at most 16 texts, none of them empty.")
        if isinstance(self.prompt, list) and not self.prompt:
            raise PydanticCustomError("prompt", "a list of prompts must not be empty.")
        if self.stream_options is not None and not (self.stream and self.events == "text"):
            raise PydanticCustomError("stream_options", "stream_options need stream true and events 'text'.")
        if self.logprobs is not None and self.events == "steps":
            raise PydanticCustomError("logprobs", "a step has the confidence of each token; leave out logprobs.")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def prompts(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        whole = [one for one in self.prompt if isinstance(one, int)]
        return [whole] if whole else [one for one in self.prompt if not isinstance(one, int)]


class Message(BaseModel):
    """What somebody said."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: str
    name: str | None = Field(default=None, description="Has no effect.")


class ChatRequest(CompletionRequest):
    """Answer the last message of a conversation."""

    messages: list[Message] = Field(min_length=1, description="The conversation, which ends before the answer.")
    max_completion_tokens: int | None = Field(default=None, ge=1, description="The same as max_tokens.")
    prompt: Literal[""] = Field(default="", description="Only empty: messages take its place.")
    suffix: Literal[""] = Field(default="", description="Only empty.")
    logprobs: None = Field(default=None, description="Not in a conversation; /v1/completions has them.")

    @model_validator(mode="after")
    def one_limit(self) -> "ChatRequest":
        if self.max_completion_tokens is not None and "max_tokens" in self.model_fields_set:
            raise PydanticCustomError("max_tokens", "give max_tokens or max_completion_tokens, not both.")
        return self

    def completion(self, conversation: Callable[[list[Turn]], list[int]]) -> CompletionRequest:
        """The same request with the ids of a prompt."""
        given = {
            name: getattr(self, name) for name in self.model_fields_set if name in CompletionRequest.model_fields
        }
        if self.max_completion_tokens is not None:
            given["max_tokens"] = self.max_completion_tokens
        given["prompt"] = conversation([Turn(one.role, one.content) for one in self.messages]) or ""
        return CompletionRequest.model_construct(**given)


class InfillRequest(Drawing):
    """Fill the blanks of a text."""

    text: str = Field(default="", description="A text with blanks: ___ (any length) or [5] (five tokens).")
    tokens: list[int | None] = Field(default_factory=list, description="Or token ids, with null at the blanks.")
    given: str = Field(default="", description="For a model of pairs: the text that the other one answers.")

    @model_validator(mode="after")
    def one_form(self) -> "InfillRequest":
        if bool(self.text) == bool(self.tokens):
            raise PydanticCustomError("text", "give either a text with blanks or tokens with nulls.")
        return self


class ScoreRequest(Request):
    """Score texts: an upper bound on −log p."""

    texts: list[str] = Field(min_length=1, description="The texts to score.")
    passes: int = Field(default=16, ge=2, description="Forward passes per text; more lower the Monte Carlo error.")
    seed: int = Field(default=0, ge=0, lt=2**63)


class ClassifyRequest(Request):
    """Classify texts, or predict a number of each."""

    texts: list[str | list[str]] = Field(min_length=1, description="The texts; a pair of texts is a list of two.")

    @model_validator(mode="after")
    def pairs(self) -> "ClassifyRequest":
        if any(not isinstance(one, str) and len(one) != 2 for one in self.texts):
            raise PydanticCustomError("texts", "a pair of texts is a list of two.")
        return self
