"""The routes that tell of the server itself: its model, its health, its numbers."""

import time

from fastapi import FastAPI, Response

from unmask.sampling.recipe import LEFT_TO_RIGHT, ONLY_FOR, OWN
from unmask.sampling.samplers import SAMPLERS
from unmask.serving.http import answers
from unmask.serving.http.errors import check_name
from unmask.serving.http.requests import Kitchen
from unmask.serving.metrics import Metrics


def add_facts(app: FastAPI, kitchen: Kitchen, name: str, metrics: Metrics) -> None:
    model, limits = kitchen.model, kitchen.limits
    card = answers.ModelCard(
        id=name,
        created=int(time.time()),
        objective=model.objective,
        parameters=model.num_parameters,
        max_tokens=limits.of_text(model.spec.length),
        max_candidates=limits.rows,
        samplers=samplers_of(model.objective),
    )

    @app.get("/v1/models")
    async def models() -> answers.Models:
        """The model that is served, with its samplers."""
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
        """Numbers for Prometheus."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")


def samplers_of(objective: str) -> list[answers.Sampler]:
    """The samplers a model of this objective can use, its own first."""
    own = OWN[objective]
    if own == LEFT_TO_RIGHT:
        return [answers.Sampler(name=own, about="left to right", takes_steps=False, needs_steps=False)]
    names = [own, *(name for name in SAMPLERS if name not in ONLY_FOR and name != own)]
    return [
        answers.Sampler(
            name=name,
            about=SAMPLERS[name].about,
            takes_steps=SAMPLERS[name].build is not None,
            needs_steps=SAMPLERS[name].build_free is None,
        )
        for name in names
    ]
