"""Limits: resources of one request, and of all requests together."""

import math
from dataclasses import dataclass, fields

from unmask.errors import UserError


@dataclass(frozen=True)
class Limits:
    """Resource limits of the server."""

    body: int = 1_000_000  # bytes of a request body
    tokens: int = 0  # tokens per text, prompt and blanks together; 0: the length the model was trained on
    rows: int = 32  # texts per request: prompts times candidates
    steps: int = 2000  # sampler steps
    passes: int = 64  # forward passes per scored text
    tries: int = 16  # tries of rejection sampling
    states: int = 2000  # states of a pattern after compilation for the vocabulary
    positions: int = 32_768  # tokens per forward pass, padding included
    queue: int = 64  # waiting requests; further ones are refused with status 429
    seconds: float = 120.0  # seconds per request, waiting included
    connections: int = 1000  # open connections per process; a new one then ends the oldest that is not being answered
    arrival: float = 30.0  # seconds for the headers of a request to arrive, and for its body
    delivery: float = 30.0  # seconds after which a client that reads nothing of its answer is cut off

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name in ("tokens", "queue") else 1e-3
            if not least <= value < math.inf:
                raise UserError(f"the limit {field.name!r} must be a finite number above 0; saw {value}.")

    def of_text(self, trained: int) -> int:
        """The most tokens that one text may have."""
        return self.tokens or trained
