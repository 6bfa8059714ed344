"""Progress of a request: texts that fill in any order, and the final part at their beginning.

A client that can only append text is sent the final part: up to the first blank, without an incomplete character at
its end, and without a possible beginning of a stop text. If tokens may be hidden again or replaced, nothing is final
until all of them are.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from unmask.sampling.recipe import Method
from unmask.serving.batch import Job
from unmask.serving.tick import Alternatives, EngineTurn
from unmask.text.tokens.pieces import UNFINISHED, pieces
from unmask.text.tokens.tokenizer import Tokenizer

CONTEXT = 8  # tokens before the answer that may change how its first token is decoded


def text_after(tokenizer: Tokenizer, before: Sequence[int], ids: Sequence[int]) -> str:
    """The text that tokens add to the text before them."""
    near = list(before[-CONTEXT:])
    known = tokenizer.decode(near)
    both = tokenizer.decode([*near, *ids])
    return both[len(known) :] if both.startswith(known) else tokenizer.decode(ids)


def stop_begun(text: str, stops: Sequence[str]) -> int:
    """The number of characters at the end of a text that may begin a stop text.

    >>> begun("the e", ["end", "fin"])
    1
    """
    longest = max((len(stop) - 1 for stop in stops), default=0)
    sizes = range(min(longest, len(text)), 0, -1)
    return next((size for size in sizes if any(stop.startswith(text[-size:]) for stop in stops)), 0)


@dataclass
class Growing:
    """One candidate: the answer's tokens, None at blanks."""

    tokenizer: Tokenizer
    before: list[int]  # the prompt
    ids: list[int | None]
    stops: tuple[str, ...] = ()
    ends: frozenset[int] = frozenset()  # tokens that end the text
    revised: bool = False  # drawn tokens may be hidden again while blanks are left
    healed: bool = False  # its first token contains the space at the end of the prompt, which is not sent again
    sent: str = ""
    settled: int = field(default=0, init=False)  # tokens up to the first blank, or up to the end
    moving: bool = field(default=False, init=False)  # every token may still be replaced, as in continuous diffusion
    ended: bool = field(default=False, init=False)  # by a stop text or an end token, whatever is still hidden

    def put(self, position: int, token: int | None) -> None:
        """Set a token, or None if it was hidden again."""
        self.ids[position] = token

    @property
    def over(self) -> bool:
        """Whether the text is complete."""
        return self.ended or self.settled == len(self.ids)

    @property
    def finish(self) -> str:
        """OpenAI's finish_reason."""
        return "stop" if self.ended else "length"

    def more(self) -> str:
        """The text that has become final since the last call."""
        if not self.advance():
            return ""
        known = [id for id in self.ids[: self.settled] if id is not None]
        text = text_after(self.tokenizer, self.before, known)
        text = text.removeprefix(" ") if self.healed else text
        end = min((at for stop in self.stops if (at := text.find(stop)) >= 0), default=None)
        if not self.over:
            whole = text.rstrip(UNFINISHED)
            certain = len(whole) - stop_begun(whole, self.stops)
            if end is not None and end > certain:
                end = None  # another stop text may begin before this one
            text = text if end is not None else text[:certain]
        if end is not None:
            self.ended, text = True, text[:end]
        if not text.startswith(self.sent):  # the decoder changed text that was sent: wait until it agrees
            return ""
        new, self.sent = text[len(self.sent) :], text
        return new

    def parts(self) -> list[str]:
        """The text of each token whose text is final; joined they are the text that was sent, up to a token."""
        known, near = [id for id in self.ids[: self.settled] if id is not None], self.before[-CONTEXT:]
        parts = pieces(self.tokenizer, [*near, *known])[len(near) :]
        if self.healed and parts:
            parts[0] = parts[0].removeprefix(" ")
        ends = list(accumulate(map(len, parts)))
        if self.over and (not ends or ends[-1] <= len(self.sent)):
            return parts
        whole = [i for i, end in enumerate(ends) if parts[i] and end <= len(self.sent)]
        count = whole[-1] + 1 if whole else 0
        rest = self.sent[ends[count - 1] if count else 0 :] if self.over else ""
        return [*parts[:count], *([rest] if rest else [])]  # a stop text may have cut the last one

    def advance(self) -> bool:
        """Advance over the known tokens at the front; returns whether there were any."""
        if self.revised and (self.moving or None in self.ids):
            return False
        before = (self.settled, self.ended)
        while not self.over and (id := self.ids[self.settled]) is not None:
            if id in self.ends:
                self.ended = True
            else:
                self.settled += 1
        return before != (self.settled, self.ended)


@dataclass(frozen=True)
class Came:
    """When and how surely a token was drawn."""

    call: int
    log_prob: float  # under the model, before temperature and truncation
    likeliest: Alternatives = field(default_factory=list)  # on request

    @property
    def confidence(self) -> float:
        return math.exp(self.log_prob)


@dataclass
class Filling:
    """The candidates of one request."""

    work: Job  # for the engine
    method: Method
    seed: int
    rows: list[list[int]]  # the tokens of each candidate, masks at blanks
    answers: list[Growing]  # the answer in each
    starts: list[int]  # first position of each answer
    prompt_tokens: int
    in_order: bool = False  # an autoregressive model, which draws each token given those before it
    written: Callable[[int, list[int]], str] | None = None  # the text of a finished candidate; None: as it was sent
    calls: int = 0
    came: list[dict[int, Came]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Set the tokens that take no forward pass: those to which a constraint leaves no alternative."""
        self.came = [{} for _ in self.rows]
        for row, (now, before) in enumerate(zip(self.work.canvas.tokens.tolist(), self.rows, strict=True)):
            for position, id in enumerate(list(before)):
                if id == self.work.canvas.mask and now[position] != id:
                    self.put(row, position, now[position])
                    self.came[row][position] = Came(0, 0.0)

    def take(self, turn: EngineTurn) -> None:
        """Apply a turn: set the tokens it drew, and remove those it hid again."""
        self.calls += 1
        width = turn.work.canvas.tokens.shape[1]
        brought = turn.brought
        for answer in self.answers:
            answer.moving = turn.work.moving
        for number, (at, id) in enumerate(zip(brought.rows, brought.ids, strict=True)):
            row, position = divmod(at, width)
            self.put(row, position, id)
            likeliest = brought.likeliest[number] if brought.likeliest else []
            self.came[row][position] = Came(self.calls, brought.log_probs[number], likeliest)
        for at in turn.masked:
            row, position = divmod(at, width)
            self.put(row, position, None)
            del self.came[row][position]

    def put(self, row: int, position: int, id: int | None) -> None:
        """Set a token, or None for a blank."""
        self.rows[row][position] = self.work.canvas.mask if id is None else id
        answer, place = self.answers[row], position - self.starts[row]
        if 0 <= place < len(answer.ids):
            answer.put(place, id)

    def text(self, row: int) -> str:
        """The text of a candidate; a template's own words stay as they were written."""
        answer = self.answers[row]
        return answer.sent if self.written is None or not answer.over else self.written(row, self.rows[row])

    @property
    def means(self) -> str:
        """Which probability `Came` has."""
        order = "the text before it" if self.in_order else "the text visible at the forward pass that drew it"
        return f"the model's log-probability of each token given {order}; before temperature, truncation and patterns"

    @property
    def drawn(self) -> int:
        """Drawn tokens that are visible now."""
        return sum(map(len, self.came))

    @property
    def over(self) -> bool:
        """Whether every answer has ended, whatever is still hidden after it."""
        return all(answer.over for answer in self.answers)
