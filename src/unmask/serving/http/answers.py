"""Response bodies. Completions are OpenAI's, with a few more fields."""

from typing import Literal

from pydantic import BaseModel, Field


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int = Field(description="Generated tokens.")
    total_tokens: int


class Logprobs(BaseModel):
    tokens: list[str] = Field(description="The text of each generated token.")
    token_logprobs: list[float] = Field(description="log p of each token; −9999 for probability 0.")
    top_logprobs: list[dict[str, float]] | None = Field(
        description="The most likely tokens there with log p, and the generated one; null: none were asked for."
    )
    text_offset: list[int] = Field(description="Where each token begins in the text of the choice.")
    means: str = Field(description="Which probability this is.")


class Choice(BaseModel):
    index: int
    text: str
    finish_reason: Literal["stop", "length"] | None
    logprobs: Logprobs | None = None


class DrawnAnswer(BaseModel):
    """Fields of every sampling response."""

    id: str
    created: int
    model: str
    seed: int = Field(description="The seed of this answer; send it again for the same answer.")
    law: str = Field(description="The distribution that the samples follow: exact, grid-T, or approximate and why.")


class Completion(DrawnAnswer):
    object: Literal["text_completion"] = "text_completion"
    choices: list[Choice]
    usage: Usage | None


class ChatMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    index: int
    message: ChatMessage
    finish_reason: Literal["stop", "length"] | None
    logprobs: None = None


class ChatCompletion(DrawnAnswer):
    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]
    usage: Usage | None

    @classmethod
    def of(cls, whole: Completion) -> "ChatCompletion":
        choices = [
            ChatChoice(index=one.index, message=ChatMessage(content=one.text), finish_reason=one.finish_reason)
            for one in whole.choices
        ]
        about = whole.model_dump(include={"created", "model", "seed", "law"})
        return cls(id=f"chat{whole.id}", choices=choices, usage=whole.usage, **about)


class Token(BaseModel):
    id: int | None = Field(description="Token id; null: still a blank.")
    text: str
    given: bool
    confidence: float | None = Field(default=None, description="The model's probability when it was drawn.")
    call: int | None = Field(default=None, description="The forward pass that drew it: 1, 2, ...")


class Filled(BaseModel):
    index: int
    text: str
    tokens: list[Token]
    score: float | None = Field(
        default=None, description="The score of `unmask infill`, at most 0; null: the server was closing."
    )


class InfillAnswer(DrawnAnswer):
    object: Literal["infill"] = "infill"
    calls: int
    choices: list[Filled]
    usage: Usage


class ScoreAnswer(BaseModel):
    index: int
    nats: float = Field(description="Upper bound on −log p of the whole text, in nats.")
    standard_error: float = Field(description="Standard error of `nats`: Monte Carlo error.")
    tokens: int
    nats_per_token: float
    perplexity: float
    bits_per_byte: float


class Scores(BaseModel):
    object: Literal["list"] = "list"
    model: str
    estimator: str
    means: str = Field(description="What the number is: a bound, or exact.")
    data: list[ScoreAnswer]


class ClassAnswer(BaseModel):
    index: int
    label: str | None = Field(description="The most likely label; null: a number is predicted.")
    probabilities: dict[str, float] = Field(description="The probability of every label.")
    number: float | None = Field(description="The predicted number; null: labels are predicted.")
    tokens: int = Field(description="Tokens of the text that were read.")
    cut: bool = Field(description="Whether the text was longer and was cut.")


class Classes(BaseModel):
    object: Literal["list"] = "list"
    model: str
    labels: list[str] = Field(description="All labels, in order; empty: a number is predicted.")
    data: list[ClassAnswer]


class SamplerField(BaseModel):
    name: str
    about: str
    kind: Literal["integer", "number", "boolean", "text"]
    choices: list[str] = Field(description="The possible values; empty: any of its kind.")
    default: int | float | bool | str | None
    steps: bool = Field(description="Whether `steps` sets it.")


class Sampler(BaseModel):
    name: str
    about: str
    takes_steps: bool
    needs_steps: bool
    fields: list[SamplerField] = Field(description="Fields that NAME:FIELD=VALUE may set.")


class Defaults(BaseModel):
    """What a request that gives no sampling option gets."""

    sampler: str
    steps: int | None
    temperature: float
    top_p: float
    top_k: int
    no_repeat: int
    law: str = Field(description="The distribution that the samples then follow.")


class ModelCard(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["unmask"] = "unmask"
    objective: str
    parameters: int
    max_tokens: int = Field(description="Most tokens of one text, prompt and blanks together.")
    max_candidates: int
    defaults: Defaults = Field(description="The sampling settings in force unless a request gives others.")
    samplers: list[Sampler] = Field(description="Samplers for this model; its own reverse process first.")
    talks: bool = Field(description="Whether /v1/chat/completions answers: it learned pairs, or has a chat template.")
    labels: list[str] = Field(description="What `classifier_label` may be; empty: the server has no classifier.")
    classes: list[str] = Field(description="Labels of /v1/classify; empty: it has none, or predicts a number.")


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
