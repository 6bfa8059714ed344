"""What clients get: the shapes of the answers. Completions are OpenAI's, with a few fields more."""

from typing import Literal

from pydantic import BaseModel, Field


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int = Field(description="Tokens that were drawn.")
    total_tokens: int


class Choice(BaseModel):
    index: int
    text: str
    finish_reason: Literal["stop", "length"] | None
    logprobs: None = None


class Drawn(BaseModel):
    """What every draw says of itself."""

    id: str
    created: int
    model: str
    seed: int = Field(description="Send it again for the same answer.")
    law: str = Field(description="What the samples follow: exact, grid-T, or approximate and why.")


class Completion(Drawn):
    object: Literal["text_completion"] = "text_completion"
    choices: list[Choice]
    usage: Usage | None


class Token(BaseModel):
    id: int | None = Field(description="null: still a blank.")
    text: str
    given: bool
    confidence: float | None = Field(default=None, description="The model's probability when it was drawn.")
    call: int | None = Field(default=None, description="The network call that brought it.")


class Filled(BaseModel):
    index: int
    text: str
    tokens: list[Token]


class Infilled(Drawn):
    object: Literal["infill"] = "infill"
    calls: int
    choices: list[Filled]
    usage: Usage


class Score(BaseModel):
    index: int
    nats: float = Field(description="The bound on −log p of the whole text.")
    standard_error: float = Field(description="Of `nats`: what another seed would change.")
    tokens: int
    nats_per_token: float
    perplexity: float
    bits_per_byte: float


class Scores(BaseModel):
    object: Literal["list"] = "list"
    model: str
    estimator: str
    means: str = Field(description="What the number is.")
    data: list[Score]


class Sampler(BaseModel):
    name: str
    about: str
    takes_steps: bool
    needs_steps: bool
    fields: list[str] = Field(description="What NAME:FIELD=VALUE may set.")


class ModelCard(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["unmask"] = "unmask"
    objective: str
    parameters: int
    max_tokens: int = Field(description="Of one text, prompt and blanks together.")
    max_candidates: int
    samplers: list[Sampler] = Field(description="The first is the model's own.")


class Models(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class Fault(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(BaseModel):
    error: Fault
