"""Classification: the labels or numbers of texts, by a model that `unmask classify` wrote, and the route for it."""

from functools import partial
from time import monotonic

import torch
from fastapi import FastAPI, Request

from unmask.model.head_files import is_predictor
from unmask.model.predictor import Predictor, of_model
from unmask.model.reading import Encoded
from unmask.serving.engine import Engine
from unmask.serving.http import answers
from unmask.serving.http.errors import unless_gone
from unmask.serving.http.requests import Requests
from unmask.serving.http.schema import ClassifyRequest
from unmask.serving.http.served import Served
from unmask.serving.refusal import late, wrong


def predictor_of(requests: Requests) -> Predictor | None:
    """The classifier of the served model; None: it was not fine-tuned for classification."""
    model = requests.model
    return of_model(model) if is_predictor(model.folder) else None


async def classify_texts(
    engine: Engine, requests: Requests, predictor: Predictor, body: ClassifyRequest
) -> list[answers.ClassAnswer]:
    """The answers to all texts, some between two ticks, so that classification and sampling share the machine."""
    requests.check_rows(len(body.texts), 1)
    deadline = monotonic() + requests.limits.seconds
    texts = [one if isinstance(one, str) else (one[0], one[1]) for one in body.texts]
    rows, lengths = await engine.between(lambda: predictor.encode_whole(texts))
    size = max(1, requests.limits.positions // predictor.reading.length)
    replies: list[answers.ClassAnswer] = []
    for low in range(0, len(rows), size):
        if monotonic() > deadline:
            raise late(requests.limits.seconds)
        some = rows[low : low + size]
        values = await engine.between(partial(predict_rows, predictor, some), again=True)
        for row, length, one in zip(some, lengths[low:], values, strict=False):
            prediction = predictor.answer.prediction(one)
            replies.append(
                answers.ClassAnswer(
                    index=len(replies),
                    label=prediction.label,
                    probabilities=prediction.probabilities,
                    number=prediction.number,
                    tokens=row.size,
                    cut=length > row.size,
                )
            )
    return replies


def predict_rows(predictor: Predictor, rows: list[Encoded]) -> list[list[float]]:
    with torch.inference_mode():
        return predictor.answers(rows, batch=len(rows)).tolist()


def add_classifying(app: FastAPI, engine: Engine, served: Served) -> None:
    predictor = predictor_of(served.base)

    @app.post("/v1/classify")
    async def classify(request: Request, body: ClassifyRequest) -> answers.Classes:
        """The label of each text with the probabilities of all labels, or a number."""
        name, requests = served.named(body.model)
        if predictor is None or requests is not served.base:
            raise wrong("the served model is no classifier: serve a folder that `unmask classify` wrote.")
        data = await unless_gone(request, classify_texts(engine, requests, predictor, body))
        return answers.Classes(model=name, labels=list(predictor.answer.labels), data=data)
