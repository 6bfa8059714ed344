"""Errors: all errors of the application in one form, and their descriptions in the API reference."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from unmask.errors import UserError
from unmask.serving.http import answers
from unmask.serving.refusal import Refusal, server_failure, wrong

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": answers.Error, "description": about}
    for status, about in {
        400: "The request is wrong; the message says how.",
        401: "An API key is needed.",
        404: "There is no such model, or no such address.",
        408: "The body of the request did not arrive in time.",
        413: "The request is too large.",
        415: "The request is not JSON.",
        421: "The server does not answer to that host name.",
        429: "Too many requests are waiting; Retry-After says when to try again.",
        500: "The server failed.",
        503: "The server is shutting down, or every connection is in use.",
        504: "The request took too long.",
    }.items()
}


def add_errors(app: FastAPI) -> None:
    """Answer every error in the form of OpenAI's errors."""

    def shown(refusal: Refusal) -> Response:
        headers = {"content-type": "application/json", **refusal.headers}
        return Response(json.dumps(refusal.body()), refusal.status, headers)

    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, Refusal)
        return shown(error)

    async def broken(_: Request, error: Exception) -> Response:
        return shown(server_failure())  # the guard logs it

    async def mistaken(_: Request, error: Exception) -> Response:
        return shown(wrong(str(error)))

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return shown(explain_error(error))

    async def by_http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = no_address(app) if error.status_code == 404 else str(error.detail)
        refusal = wrong(message, status=error.status_code)
        refusal.headers.update(error.headers or {})
        return shown(refusal)

    app.add_exception_handler(Refusal, refused)
    app.add_exception_handler(UserError, mistaken)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, by_http)
    app.add_exception_handler(Exception, broken)


def no_address(app: FastAPI) -> str:
    """What to say where there is nothing: which addresses there are."""
    addresses = [f"{method.upper()} {path}" for path, how in app.openapi()["paths"].items() for method in how]
    return (
        f"there is nothing at this address. There are: {', '.join(addresses)}; the page at /, the reference at /docs."
    )


def explain_error(error: RequestValidationError) -> Refusal:
    """The first error in a body, without repeating the body."""
    first = error.errors()[0]
    place = [str(part) for part in first["loc"][1:2] if isinstance(part, str)]
    param = place[0] if place else first.get("ctx", {}).get("field")
    if first["type"] == "json_invalid":
        return wrong("the body is not JSON.")
    own = first["type"] in ("object", "unknown_field") or not place
    return wrong(first["msg"] if own else f"{param}: {first['msg']}.", param=param)


Answer = TypeVar("Answer")


async def unless_gone(request: Request, answer: Coroutine[Any, Any, Answer]) -> Answer:
    """The answer; cancelled if the client disconnects first."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(answer), asyncio.ensure_future(left())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise wrong("the client has disconnected.", status=400)
    finally:
        working.cancel()
        leaving.cancel()
