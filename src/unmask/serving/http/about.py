"""The routes about the server itself: its model, health and metrics."""

import time
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fastapi import FastAPI, Response

from unmask.model.model import Model
from unmask.model.predictor import load_guide
from unmask.registry import own_fields
from unmask.sampling.fitting import samplers_for
from unmask.sampling.policy import POLICIES
from unmask.sampling.recipe import DEFAULTS, Recipe, method_for, recipe_record
from unmask.serving.engine import Engine
from unmask.serving.http import answers
from unmask.serving.http.classifying import predictor_of
from unmask.serving.http.requests import Requests
from unmask.serving.http.served import Served
from unmask.serving.metrics import Metrics
from unmask.settings import help_of


def model_entry(name: str, requests: Requests) -> answers.ModelCard:
    model, limits = requests.model, requests.limits
    return answers.ModelCard(
        id=name,
        created=int(time.time()),
        objective=model.objective.name,
        parameters=model.num_parameters,
        max_tokens=limits.of_text(model.spec.length),
        max_candidates=limits.rows,
        defaults=defaults_of(model),
        samplers=samplers_of(model),
        talks=model.talker is not None,
        labels=labels_of(requests),
        classes=classes_of(requests),
    )


def add_facts(app: FastAPI, engine: Engine, served: Served, metrics: Metrics) -> None:
    cards = {name: model_entry(name, requests) for name, requests in served.models.items()}

    @app.get("/v1/models")
    async def models() -> answers.Models:
        """The served model and its adapters, with their samplers."""
        return answers.Models(data=list(cards.values()))

    @app.get("/v1/models/{model_id}")
    async def one_model(model_id: str) -> answers.ModelCard:
        return cards[served.named(model_id)[0]]

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health() -> answers.Health:
        """Whether the server is alive; if not (503), only a new start helps."""
        engine.check_alive()
        return answers.Health()

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready")
    async def ready() -> answers.Health:
        """Whether the server takes another request: not (503) before it stops, nor (429) while its queue is full."""
        engine.check_ready()
        return answers.Health()

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def numbers() -> Response:
        """Metrics for Prometheus."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")


def samplers_of(model: Model) -> list[answers.Sampler]:
    """The samplers that a model can use, its own reverse process first."""
    return [
        answers.Sampler(
            name=name,
            about=POLICIES.entry(name).about,
            takes_steps=POLICIES[name].budget is not None,
            needs_steps=POLICIES[name].needs_budget,
            fields=[
                described_field(POLICIES[name], one)
                for one in own_fields(POLICIES[name])
                if one not in POLICIES.entry(name).preset
            ],
        )
        for name in samplers_for(model.objective)
    ]


KINDS: dict[Any, Literal["integer", "number", "boolean"]] = {int: "integer", float: "number", bool: "boolean"}


def described_field(kind: Any, name: str) -> answers.SamplerField:
    """A field of a sampler: what it means, which values it takes, and its default."""
    hint, default = get_type_hints(kind)[name], next(one.default for one in fields(kind) if one.name == name)
    if get_origin(hint) in (Union, UnionType):
        hint = next(one for one in get_args(hint) if one is not NoneType)
    return answers.SamplerField(
        name=name,
        about=help_of(kind).get(name, ""),
        kind=KINDS.get(hint, "text"),
        choices=[str(one) for one in get_args(hint)] if get_origin(hint) is Literal else [],
        default=default if isinstance(default, int | float | bool | str) else None,
        steps=name == kind.budget,
    )


def defaults_of(model: Model) -> answers.Defaults:
    """The sampling settings in force unless a request gives others; refuses a model whose own are not valid."""
    law, options = method_for(model, Recipe()).law, recipe_record(model, Recipe())
    return answers.Defaults(law=law, **{name: options[name] for name in DEFAULTS})


def labels_of(requests: Requests) -> list[str]:
    folder = requests.controls.classifier
    return [] if folder is None else list(load_guide(folder, requests.model).answer.labels)


def classes_of(requests: Requests) -> list[str]:
    predictor = predictor_of(requests)
    return [] if predictor is None else list(predictor.answer.labels)
