"""The routes about the server itself: its model, health and metrics."""

import time

from fastapi import FastAPI, Response

from unmask.model.model import Model
from unmask.registry import own_fields
from unmask.sampling.policy import POLICIES
from unmask.sampling.recipe import samplers_for
from unmask.serving.http import answers
from unmask.serving.http.errors import check_name
from unmask.serving.http.requests import Requests
from unmask.serving.metrics import Metrics


def add_facts(app: FastAPI, requests: Requests, name: str, metrics: Metrics) -> None:
    model, limits = requests.model, requests.limits
    card = answers.ModelCard(
        id=name,
        created=int(time.time()),
        objective=model.objective.name,
        parameters=model.num_parameters,
        max_tokens=limits.of_text(model.spec.length),
        max_candidates=limits.rows,
        samplers=samplers_of(model),
    )

    @app.get("/v1/models")
    async def models() -> answers.Models:
        """The served model, with its samplers."""
        return answers.Models(data=[card])

    @app.get("/v1/models/{model_id}")
    async def one_model(model_id: str) -> answers.ModelCard:
        check_name(model_id, name)
        return card

    @app.get("/health")
    async def health() -> answers.Health:
        """Whether the server is up."""
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
            fields=[one for one in own_fields(POLICIES[name]) if one not in POLICIES.entry(name).preset],
        )
        for name in samplers_for(model)
    ]
