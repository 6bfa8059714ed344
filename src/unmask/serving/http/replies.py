"""Replies: the answers to clients, whole or as events."""

import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from sse_starlette import ServerSentEvent

from unmask.serving.engine import Ticket
from unmask.serving.http.answers import Choice, Completion, Filled, InfillAnswer, Logprobs, Token, Usage
from unmask.serving.log import request_id
from unmask.serving.progress import Came, Filling, text_after
from unmask.serving.tick import EngineTurn, Tokens
from unmask.text.tokens.pieces import pieces
from unmask.text.tokens.tokenizer import Tokenizer

LINE = "\n"  # ends every line of a stream; the library's own default is CR LF
DONE = ServerSentEvent("[DONE]", sep=LINE)
LEAST = -9999.0  # stands for −∞, which JSON does not have; OpenAI's number


def clamp_log_prob(log_prob: float) -> float:
    return max(log_prob, LEAST)


def event(data: Any, name: str | None = None) -> ServerSentEvent:
    """One Server-Sent Event: its data is one line of JSON in ASCII, which is safe for any text."""
    return ServerSentEvent(json.dumps(data, separators=(",", ":")), event=name, sep=LINE)


@dataclass(frozen=True)
class Reply:
    """One request in the engine."""

    filling: Filling
    ticket: Ticket
    tokenizer: Tokenizer
    model: str  # its name
    kind: str  # "cmpl" or "infill"
    top: int | None = None  # alternatives to each token, for clients that ask for log-probabilities
    scores: Callable[[Filling], Awaitable[Sequence[float | None]]] | None = None  # of the finished candidates
    number: str = field(default_factory=request_id.get)  # of the request, as in the log
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def common(self) -> dict[str, Any]:
        filling = self.filling
        return {
            "id": f"{self.kind}-{self.number}",
            "created": self.created,
            "model": self.model,
            "seed": filling.seed,
            "law": filling.method.law,
        }

    @property
    def usage(self) -> Usage:
        given, drawn = self.filling.prompt_tokens, self.filling.drawn
        return Usage(prompt_tokens=given, completion_tokens=drawn, total_tokens=given + drawn)

    async def turns(self) -> AsyncIterator[EngineTurn]:
        """The engine's turns until every answer is finished; then the request leaves the engine."""
        try:
            async for turn in self.ticket:
                self.filling.take(turn)
                yield turn
                if self.kind == "cmpl" and self.filling.over:
                    return
        finally:
            self.ticket.leave()

    async def whole(self) -> Completion | InfillAnswer:
        """The whole answer at once."""
        async for _ in self.turns():
            self.grow()
        self.grow()
        return self.completion() if self.kind == "cmpl" else await self.infilled()

    def grow(self) -> list[str]:
        """The text that became final in each answer."""
        return [answer.more() for answer in self.filling.answers]

    def completion(self) -> Completion:
        choices = [
            Choice(index=i, text=answer.sent, finish_reason=answer.finish, logprobs=self.logprobs(i))  # type: ignore[arg-type]
            for i, answer in enumerate(self.filling.answers)
        ]
        return Completion(**self.common, choices=choices, usage=self.usage)

    def logprobs(self, row: int, first: int = 0) -> Logprobs | None:
        """The log-probabilities of an answer's tokens from its `first` on, if they were asked for."""
        if self.top is None:
            return None
        filling, parts = self.filling, self.filling.answers[row].parts()
        came = [filling.came[row][filling.starts[row] + i] for i in range(len(parts))]
        starts = [0, *accumulate(map(len, parts))]
        return Logprobs(
            tokens=parts[first:],
            token_logprobs=[clamp_log_prob(one.log_prob) for one in came[first:]],
            top_logprobs=[self.alternatives(row, i, came[i]) for i in range(first, len(parts))] if self.top else None,
            text_offset=starts[first : len(parts)],
            means=filling.means,
        )

    def alternatives(self, row: int, place: int, how: Came) -> dict[str, float]:
        """The most likely tokens at a place by their text, and the drawn one. Of equal texts the likelier counts."""
        answer = self.filling.answers[row]
        before = [id for id in answer.ids[:place] if id is not None]
        drawn = answer.ids[place]
        assert drawn is not None
        log_probs: dict[str, float] = {}
        for id, log_prob in [*how.likeliest[: self.top], (drawn, how.log_prob)]:
            log_probs.setdefault(self.written([*answer.before, *before], id), clamp_log_prob(log_prob))
        return log_probs

    async def infilled(self) -> InfillAnswer:
        scores = [None] * len(self.filling.answers) if self.scores is None else await self.scores(self.filling)
        choices = [
            Filled(index=i, text=self.filling.text(i), tokens=self.tokens(i), score=scores[i])
            for i in range(len(self.filling.answers))
        ]
        return InfillAnswer(**self.common, calls=self.filling.calls, choices=choices, usage=self.usage)

    def tokens(self, row: int) -> list[Token]:
        """The tokens of a candidate in its current state."""
        ids, came = self.filling.rows[row], self.filling.came[row]
        mask = self.filling.work.canvas.mask
        tokens = []
        for at, (id, text) in enumerate(zip(ids, pieces(self.tokenizer, ids, blank=""), strict=True)):
            how = came.get(at)
            tokens.append(
                Token(
                    id=None if id == mask else id,
                    text=text,
                    given=how is None and id != mask,
                    confidence=None if how is None else round(how.confidence, 4),
                    call=None if how is None else how.call,
                )
            )
        return tokens

    async def text_events(self, *, with_usage: bool) -> AsyncIterator[ServerSentEvent]:
        """Text to append, in OpenAI's chunks."""
        open_rows = set(range(len(self.filling.answers)))
        sent = [0] * len(self.filling.answers)  # tokens whose log-probabilities were sent

        def chunks() -> list[ServerSentEvent]:
            events = []
            for i, text in enumerate(self.grow()):
                answer = self.filling.answers[i]
                over = answer.over and i in open_rows
                if over:
                    open_rows.discard(i)
                if text or over:
                    logprobs = self.logprobs(i, sent[i])
                    sent[i] += 0 if logprobs is None else len(logprobs.tokens)
                    reason = answer.finish if over else None
                    choice = Choice(index=i, text=text, finish_reason=reason, logprobs=logprobs)  # type: ignore[arg-type]
                    events.append(event(self.chunk([choice.model_dump()], with_usage)))
            return events

        for chunk in chunks():  # given text at the front
            yield chunk
        async for _ in self.turns():
            for chunk in chunks():
                yield chunk
        if with_usage:
            yield event({**self.chunk([], with_usage), "usage": self.usage.model_dump()})
        yield DONE

    async def chat_events(self, *, with_usage: bool) -> AsyncIterator[ServerSentEvent]:
        """The same as chunks of a conversation: the first one of each answer names its role."""
        begun: set[int] = set()
        async for sent in self.text_events(with_usage=with_usage):
            if sent is DONE:
                yield sent
                return
            data = json.loads(str(sent.data))
            for choice in data["choices"]:
                role = {} if choice["index"] in begun else {"role": "assistant"}
                begun.add(choice["index"])
                choice["delta"] = {**role, "content": choice.pop("text")}
            yield event({**data, "id": f"chat{data['id']}", "object": "chat.completion.chunk"})

    def chunk(self, choices: list[dict[str, Any]], with_usage: bool) -> dict[str, Any]:
        kind = "text_completion" if self.kind == "cmpl" else "infill.chunk"
        return {**self.common, "object": kind, "choices": choices, **({"usage": None} if with_usage else {})}

    async def step_events(self) -> AsyncIterator[ServerSentEvent]:
        """The tokens of every forward pass: event `begin`, one event `step` per pass, event `end`."""
        count = len(self.filling.answers)
        start = [[token.model_dump() for token in self.tokens(i)] for i in range(count)]
        sampler = self.filling.method.sampler
        yield event({**self.common, "object": "begin", "sampler": sampler, "candidates": start}, "begin")
        async for turn in self.turns():
            self.grow()
            data: dict[str, Any] = {"call": self.filling.calls, "committed": self.placed(turn, turn.brought)}
            if turn.masked:
                data["masked"] = [self.place(turn, at) for at in turn.masked]
            if turn.draft is not None:
                data["draft"] = self.placed(turn, turn.draft)
            yield event(data, "step")
        self.grow()
        yield event((await self.infilled()).model_dump(), "end")
        yield DONE

    def placed(self, turn: EngineTurn, tokens: Tokens) -> list[dict[str, Any]]:
        width = turn.work.canvas.tokens.shape[1]
        return [
            {
                **self.place(turn, at),
                "token": id,
                "text": self.written(self.filling.rows[at // width][: at % width], id),
                "confidence": round(math.exp(log_prob), 4),
            }
            for at, id, log_prob in zip(tokens.rows, tokens.ids, tokens.log_probs, strict=True)
        ]

    def place(self, turn: EngineTurn, at: int) -> dict[str, int]:
        """A flat position as the clients' row and position."""
        candidate, position = divmod(at, turn.work.canvas.tokens.shape[1])
        return {"candidate": candidate, "position": position}

    def written(self, before: list[int], id: int) -> str:
        """A token's text, decoded after the token before it if that is known."""
        known = before[-1:] if before and before[-1] != self.filling.work.canvas.mask else []
        return text_after(self.tokenizer, known or self.anchor, [id])

    @property
    def anchor(self) -> list[int]:
        """A stand-in for an unknown token before it, so that a word keeps its leading space."""
        return next(([id] for id in range(self.tokenizer.size) if id not in self.tokenizer.specials), [])
