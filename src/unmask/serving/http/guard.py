"""The guard: middleware around the application for every request and every answer.

It checks host, key, content type and size; a failure inside becomes a plain 500, and a request that is cancelled at
the end of the grace a 503. It logs the id, which every answer carries too, the method, the route, the status
and the time: no body, no query, no address.
"""

import asyncio
import hmac
import json
import re
import secrets
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from unmask.serving.log import Report, log, request_id
from unmask.serving.metrics import Metrics
from unmask.serving.refusal import Refusal, closing, no_entry, server_failure, slow, wrong
from unmask.serving.settings import ServerSettings

HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::[0-9]{0,5})?")  # a name or an address, and perhaps a port
FAREWELL = 1.0  # seconds to send the last words of a server that ends
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", POLICY.encode()),
]


@dataclass
class Seen:
    """What has been sent so far."""

    status: int = 0
    stream: bool = False  # whether it is a stream of events
    complete: bool = False

    def note(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.stream = dict(message.get("headers", [])).get(b"content-type", b"").startswith(b"text/event-stream")
        elif message["type"] == "http.response.body":
            self.complete = not message.get("more_body", False)


class Guard:
    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        *,
        key: str | None,
        metrics: Metrics,
        report: Report,
        routes: frozenset[str],
    ) -> None:
        self.app, self.key, self.hosts, self.limits = app, key, settings.host_names, settings.limits
        self.metrics, self.report, self.routes = metrics, report, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, seen, number = monotonic(), Seen(), secrets.token_hex(12)
        request_id.set(number)
        headers = [*HEADERS, (b"x-request-id", number.encode())]

        async def sending(message: Message) -> None:
            seen.note(message)
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), *headers]}
            await send(message)

        try:
            self.check(scope)
            body = await self.read(scope, receive)
            await self.app(scope, replay(body, receive), sending)
        except Refusal as refusal:
            await refuse(refusal, sending)
        except Exception as error:
            self.report(error)
            if not seen.status:
                await refuse(server_failure(), sending)
        except asyncio.CancelledError:  # the server ends, and this request has outlasted the grace
            await cut_off(seen, sending)
        finally:
            self.account(scope, seen.status, monotonic() - began)

    def check(self, scope: Scope) -> None:
        """Refuse a request with a wrong host, key or content type."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = HOST.fullmatch(headers.get(b"host", "").lower())
        if self.hosts and (host is None or host[1] not in self.hosts):
            raise wrong("this server does not answer to that host name.", status=421, code="wrong_host")
        if b"content-length" in headers and b"transfer-encoding" in headers:
            # Two readers of such a request may disagree where it ends. [RFC 9112, 6.1]
            refusal = wrong("give Content-Length or Transfer-Encoding, not both.")
            refusal.headers["Connection"] = "close"
            raise refusal
        path = scope["path"]
        if self.key is not None and (path.startswith("/v1/") or path == "/metrics"):
            scheme, _, given = headers.get(b"authorization", "").partition(" ")
            # compare_digest takes the same time wherever the first difference is.
            right = hmac.compare_digest(given.strip().encode("latin-1"), self.key.encode())
            if scheme.lower() != "bearer" or not right:
                raise no_entry()
        if scope["method"] == "POST":
            # Without CORS a page of another site can send a form or plain text, but not JSON.
            kind = headers.get(b"content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                raise wrong("send JSON, with the header 'Content-Type: application/json'.", status=415)

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        """The body; refused if it is too large or too late."""
        if scope["method"] != "POST":
            return b""
        length = dict(scope["headers"]).get(b"content-length", b"0")
        parts: list[bytes] = []
        size, more = int(length) if length.isdigit() else 0, True
        try:
            async with asyncio.timeout(self.limits.arrival):
                while more and size <= self.limits.body:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise wrong("the client has disconnected.", status=400)
                    parts.append(message.get("body", b""))
                    size, more = sum(map(len, parts)), message.get("more_body", False)
        except TimeoutError:
            raise slow(self.limits.arrival) from None
        if size > self.limits.body:
            raise wrong(f"a request may have {self.limits.body:,} bytes at most.", status=413, code="too_large")
        return b"".join(parts)

    def account(self, scope: Scope, status: int, seconds: float) -> None:
        route = scope["path"] if scope["path"] in self.routes else "other"
        self.metrics.answered(route, status or 499, seconds)
        log.info("%s %s %s %s %.3fs", request_id.get(), scope["method"], route, status or "gone", seconds)


def replay(body: bytes, receive: Receive) -> Receive:
    """`receive` for a body that was read already: the body once, then further messages (a disconnect)."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def cut_off(seen: Seen, send: Send) -> None:
    """End an answer that cannot be finished: with an error, or in a stream with an event that says so."""
    with suppress(TimeoutError, asyncio.CancelledError):  # a client that does not read is not waited for
        async with asyncio.timeout(FAREWELL):
            if not seen.status:
                await refuse(closing(), send)
            elif seen.stream and not seen.complete:
                event = f"event: error\ndata: {json.dumps(closing().body())}\n\n"
                await send({"type": "http.response.body", "body": event.encode()})


async def refuse(refusal: Refusal, send: Send) -> None:
    """Answer with an error."""
    body = json.dumps(refusal.body()).encode()
    headers: list[tuple[bytes, bytes]] = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *[(name.lower().encode(), value.encode()) for name, value in refusal.headers.items()],
    ]
    start: dict[str, Any] = {"type": "http.response.start", "status": refusal.status, "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": body})
