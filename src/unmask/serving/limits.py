"""Limits: what one request, and all of them together, may take."""

from dataclasses import dataclass, fields

from unmask.errors import UserError


@dataclass(frozen=True)
class Limits:
    """What requests may take."""

    body: int = 1_000_000  # bytes of a request
    tokens: int = 0  # of one text, prompt and blanks together; 0: as many as the model was trained on
    rows: int = 32  # texts of one request: prompts times candidates
    steps: int = 2000  # of a sampler
    passes: int = 64  # over a text that is scored
    tries: int = 16  # of rejection: how often a text is drawn again
    states: int = 2000  # of a pattern, once it is compiled for the vocabulary
    positions: int = 32_768  # shown to the network in one call, padding included
    queue: int = 64  # requests that wait; one more is refused with 429
    seconds: float = 120.0  # for one request, waiting included

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name in ("tokens", "queue") else 1e-3
            if not value >= least:
                raise UserError(f"the limit {field.name!r} must be greater than 0; saw {value}.")

    def of_text(self, trained: int) -> int:
        """Tokens that one text may have."""
        return self.tokens or trained
