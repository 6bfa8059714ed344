"""Connection: uvicorn's HTTP protocol with what it lacks against clients that keep a connection and do not use it.

It adds a time for the headers to arrive, a time for the client to read what was sent, and a limit on open
connections: beyond it a new one takes the place of the one that has waited longest for a request.
"""

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from unmask.serving.limits import Limits
from unmask.serving.log import log
from unmask.serving.refusal import crowded_refusal

try:
    import resource
except ModuleNotFoundError:  # Windows has no limit of this kind
    resource = None  # type: ignore[assignment]

SPARE = 64  # file descriptors that are no connections: model, sockets, pipes, metrics
UNREAD = 2**17  # bytes that the kernel keeps for a client: it would take megabytes, and hide who does not read
PROGRESS = 2**14  # bytes that a client must read within the time of delivery, or all there is

Open = dict["Connection", None]  # the open connections, by the time of their last request


class Connection(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, limits: Limits, most: int, open_: Open, **uvicorn: Any) -> None:
        self.limits, self.most, self.open = limits, most, open_
        self.inner = H11Protocol(**uvicorn)
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.request: RequestResponseCycle | None = None  # the last one that began
        self.refused = False
        self.arriving: asyncio.TimerHandle | None = None  # ends the wait for headers
        self.reading: asyncio.TimerHandle | None = None  # ends the wait for the client to read

    @property
    def answering(self) -> bool:
        """Whether a request is complete and its answer is not."""
        cycle = self.inner.cycle
        return cycle is not None and not cycle.response_complete and not cycle.more_body

    @property
    def asking(self) -> bool:
        """Whether a request has begun, its headers complete, and its answer is not complete."""
        return self.inner.cycle is not None and not self.inner.cycle.response_complete

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if not self.make_room():
            self.refused = True
            transport.write(FULL)
            transport.close()
            return
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD)
        transport.set_write_buffer_limits(high=0)  # `pause_writing` whenever the kernel takes no more
        self.open[self] = None
        self.inner.connection_made(transport)
        self.await_headers()

    def make_room(self) -> bool:
        """At the limit, end the connection that has waited longest for a request; False if all are being answered."""
        if len(self.open) < self.most:
            return True
        idle = next((one for one in self.open if not one.answering), None)
        if idle is None:
            return False
        del self.open[idle]
        idle.end()
        return True

    def await_headers(self) -> None:
        if self.arriving is None:
            self.arriving = self.loop.call_later(self.limits.arrival, self.end)

    def data_received(self, data: bytes) -> None:
        self.inner.data_received(data)
        if not self.asking:
            self.await_headers()
            return
        if self.arriving is not None:
            self.arriving.cancel()
            self.arriving = None
        if self.inner.cycle is not self.request and self in self.open:
            self.request = self.inner.cycle
            del self.open[self]  # to the end: of all connections it has waited least for a request
            self.open[self] = None

    def pause_writing(self) -> None:
        self.inner.pause_writing()
        self.await_reader()

    def await_reader(self) -> None:
        assert self.transport is not None
        left = self.transport.get_write_buffer_size()
        self.reading = self.loop.call_later(self.limits.delivery, self.check_reader, left)

    def check_reader(self, before: int) -> None:
        """End the connection of a client that has hardly read anything."""
        assert self.transport is not None
        if before - self.transport.get_write_buffer_size() < PROGRESS:
            log.info("a client that does not read was cut off")
            self.end()
        else:
            self.await_reader()

    def resume_writing(self) -> None:
        if self.reading is not None:
            self.reading.cancel()
            self.reading = None
        self.inner.resume_writing()

    def end(self) -> None:
        assert self.transport is not None
        self.transport.abort()

    def eof_received(self) -> None:
        self.inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.open.pop(self, None)
        for timer in (self.arriving, self.reading):
            if timer is not None:
                timer.cancel()
        if not self.refused:
            self.inner.connection_lost(exc)


def full() -> bytes:
    """The answer to a connection for which there is no room."""
    body = json.dumps(crowded_refusal().body())
    head = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 5\r\nconnection: close"
    return f"{head}\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()


FULL = full()


def connections(limits: Limits) -> Callable[..., Connection]:
    """A factory of connections, for uvicorn's setting `http`."""
    open_: Open = {}
    most = min(limits.connections, descriptors() - SPARE)

    def made(**uvicorn: Any) -> Connection:
        return Connection(limits, max(1, most), open_, **uvicorn)

    return made


def descriptors() -> int:
    """The number of files and sockets that this process may open, raised to what the system allows."""
    if resource is None:
        return 2**31
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = 2**16
    if soft != resource.RLIM_INFINITY and soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
            soft = hard
        except (OSError, ValueError):  # macOS refuses more than its kernel's own limit
            pass
    return 2**31 if soft == resource.RLIM_INFINITY else soft
