"""Refusal: a request that is not answered, as an HTTP status and in the form of OpenAI's errors."""

from dataclasses import dataclass, field


@dataclass(eq=False)
class Refusal(Exception):
    """The error that the client gets. It contains no internals of the server."""

    status: int
    message: str
    kind: str  # OpenAI's "type"
    code: str | None = None
    param: str | None = None  # the field that is wrong
    headers: dict[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, dict[str, str | None]]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def wrong(message: str, *, param: str | None = None, status: int = 400, code: str | None = None) -> Refusal:
    """A refusal for a mistake of the client."""
    return Refusal(status, message, "invalid_request_error", code, param)


def no_entry() -> Refusal:
    message = "a valid API key is needed: send it as 'Authorization: Bearer KEY'."
    return Refusal(401, message, "authentication_error", "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def busy(seconds: int) -> Refusal:
    message = f"too many requests are waiting; try again in {seconds} s."
    return Refusal(429, message, "rate_limit_error", "queue_full", headers={"Retry-After": str(seconds)})


def closing() -> Refusal:
    return Refusal(503, "the server is shutting down.", "server_error", "closing", headers={"Retry-After": "5"})


def stuck() -> Refusal:
    """Nothing moves any more: only a new start helps."""
    return Refusal(503, "the server does not get on with its work.", "server_error", "stuck")


def crowded_refusal() -> Refusal:
    message = "every connection of this server is in use; try again in 5 s."
    return Refusal(503, message, "server_error", "connections_full", headers={"Retry-After": "5"})


def slow(seconds: float) -> Refusal:
    message = f"the body of the request did not arrive within the limit of {seconds:g} s."
    return Refusal(408, message, "invalid_request_error", "body_late")


def late(seconds: float) -> Refusal:
    return Refusal(504, f"the request took longer than the limit of {seconds:g} s.", "server_error", "timeout")


def server_failure() -> Refusal:
    """A failure inside the server; its cause goes to the log only."""
    return Refusal(
        500, "the server failed to answer this request; the request is not at fault.", "server_error", "internal"
    )
