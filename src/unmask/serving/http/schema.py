"""What clients send: the fields of each request, with their bounds. A field that does nothing is refused.

`Drawing` is the place for further ways to steer a draw; `controls.py` turns them into a policy and a shape.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from unmask.errors import unknown

Text = Field(default="", description="A text, several, or the same as token ids.")


class Request(BaseModel):
    """What all requests share."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    model: str = Field(default="", description="The name of the model; empty: the one that is served.")

    @model_validator(mode="before")
    @classmethod
    def only_known(cls, body: Any) -> Any:
        """Refuse unknown fields by name; null means the default."""
        if not isinstance(body, dict):
            raise PydanticCustomError("object", "a request must be a JSON object.")
        for name in body:
            if name not in cls.model_fields:
                said = str(unknown("field", str(name)[:80], cls.model_fields))
                raise PydanticCustomError("unknown_field", "{said}", {"said": said, "field": str(name)[:80]})
        return {name: value for name, value in body.items() if value is not None}


class Allowed(BaseModel):
    """The tokens that may stand at a position."""

    model_config = ConfigDict(extra="forbid", strict=True)

    position: int = Field(ge=0, lt=2**31, description="Among all tokens of the text, the prompt's included.")
    tokens: list[int] = Field(min_length=1, description="Token ids.")


class Controlled(Request):
    """What is asked of the text: the same as the flags of `unmask sample`."""

    pattern: str | None = Field(
        default=None, description="A regular expression that what is drawn matches: the continuation, or each blank."
    )
    one_of: list[str] = Field(default_factory=list, description="Or texts, of which it is one.")
    form: str | None = Field(
        default=None, description='Or a text with holes: {"name": <string>, "age": <int>}.', examples=["<int> cats"]
    )
    whole: bool = Field(default=False, description="The pattern is for the whole text, what is given included.")
    exact_length: bool = Field(default=False, description="The match takes all of its place: no end token behind it.")
    allowed: list[Allowed] = Field(
        default_factory=list, description="Sets of tokens by position, alone or with a pattern."
    )
    guidance: float = Field(
        default=1.0,
        ge=-100,
        le=100,
        description="Above 1 the given text counts for more than the model says; 0: it is not seen.",
    )
    eta: float | None = Field(
        default=None, description="Strength of the remask- samplers, 0 to 1; none: the sampler's own."
    )


class Drawing(Controlled):
    """How to draw, and how to be answered."""

    n: int = Field(default=1, ge=1, description="Candidates for each prompt.")
    temperature: float = Field(default=1.0, ge=0, le=2, description="0: always the likeliest token.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Only the likeliest tokens of this mass.")
    top_k: int | None = Field(default=None, ge=1, description="Only the k likeliest tokens.")
    no_repeat: int | None = Field(
        default=None, ge=2, description="A run of so many tokens stands once in a text, if it can be helped."
    )
    seed: int | None = Field(
        default=None, ge=-(2**63), lt=2**63, description="With it the answer is the same wherever it is drawn."
    )
    sampler: str | None = Field(default=None, description="Names are in /v1/models; none: the model's own.")
    steps: int | None = Field(default=None, ge=1, description="Steps of a grid, or network calls.")
    stream: bool = Field(default=False, description="Answer by Server-Sent Events.")
    events: Literal["text", "steps"] = Field(
        default="text", description="What is streamed: text to append, or what every step brings."
    )
    draft: bool = Field(default=False, description="With steps: also what the model would say at each blank.")

    @model_validator(mode="after")
    def streamed(self) -> "Drawing":
        if self.events == "steps" and not self.stream:
            raise PydanticCustomError("events", "events are for streams: set stream to true.")
        if self.draft and self.events != "steps":
            raise PydanticCustomError("draft", "a draft is shown with every step: set events to 'steps'.")
        return self


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = Field(default=False, description="A last chunk with the usage.")


class CompletionRequest(Drawing):
    """Continue a text, or fill between a prompt and a suffix."""

    prompt: str | list[str] | list[int] | list[list[int]] = Text
    suffix: str = Field(default="", description="What stands behind the text to be filled in.")
    max_tokens: int = Field(default=16, ge=1, description="Tokens to fill in.")
    stop: str | list[str] = Field(default_factory=list, description="The text ends before one of these.")
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def sensible(self) -> "CompletionRequest":
        if len(self.stops) > 16 or any(not stop for stop in self.stops):
            raise PydanticCustomError("stop", "stop must be up to 16 texts, none of them empty.")
        if isinstance(self.prompt, list) and not self.prompt:
            raise PydanticCustomError("prompt", "a list of prompts must not be empty.")
        if self.stream_options is not None and not (self.stream and self.events == "text"):
            raise PydanticCustomError("stream_options", "stream_options are for streams of text.")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt by itself."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        whole = [one for one in self.prompt if isinstance(one, int)]
        return [whole] if whole else [one for one in self.prompt if not isinstance(one, int)]


class InfillRequest(Drawing):
    """Fill the blanks of a text."""

    text: str = Field(default="", description="A text with blanks: ___ or [5] for five tokens.")
    tokens: list[int | None] = Field(
        default_factory=list, description="Or token ids, null where a token is to be filled in."
    )

    @model_validator(mode="after")
    def one_form(self) -> "InfillRequest":
        if bool(self.text) == bool(self.tokens):
            raise PydanticCustomError("text", "give either a text with blanks or tokens with nulls.")
        return self


class ScoreRequest(Request):
    """Bound −log p of texts."""

    texts: list[str] = Field(min_length=1, description="The texts to score.")
    passes: int = Field(default=16, ge=2, description="Looks at each text; more make the error bar smaller.")
    seed: int = Field(default=0, ge=0, lt=2**63)
