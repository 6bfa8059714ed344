"""Leaving: a client that goes away before its answer is there."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

from unmask.serving.refusal import wrong

Answer = TypeVar("Answer")


async def unless_gone(request: Request, answer: Coroutine[Any, Any, Answer]) -> Answer:
    """The answer; if the client leaves first, the work is given up."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(answer), asyncio.ensure_future(left())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise wrong("the client has gone.", status=400)
    finally:
        working.cancel()
        leaving.cancel()
