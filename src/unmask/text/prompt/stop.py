"""Until: the mark or the token at which a generated text ends."""

from collections.abc import Sequence
from dataclasses import dataclass

from unmask.errors import UserError
from unmask.text.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Until:
    """An end mark, the name of a special token ("<|endoftext|>") or any text, and ids that end a text too."""

    mark: str | None
    ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.mark == "":
            raise UserError(
                "the end mark is empty: give a special token or a text, such as '<|endoftext|>' or 'The end'."
            )

    def end(self, tokenizer: Tokenizer, ids: Sequence[int], start: int = 0) -> int | None:
        """The number of tokens up to the one that completes the mark, included; None: there is no mark.

        The first `start` tokens are not searched.
        """
        ended = next((i + 1 for i in range(start, len(ids)) if ids[i] in self.ids), None)
        if self.mark is None:
            return ended
        ids = ids[:ended]
        special = [id for id in tokenizer.specials if tokenizer.pieces[id] == self.mark]
        if special:
            return next((i + 1 for i in range(start, len(ids)) if ids[i] == special[0]), ended)
        given = len(tokenizer.decode(ids[:start]))
        if self.mark not in tokenizer.decode(ids)[given:]:
            return ended
        low, high = start, len(ids)  # the first `high` tokens contain the mark, the first `low` do not
        while high - low > 1:
            middle = (low + high) // 2
            contained = self.mark in tokenizer.decode(ids[:middle])[given:]
            low, high = (low, middle) if contained else (middle, high)
        return high

    def cut(
        self, tokenizer: Tokenizer, ids: Sequence[int], start: int = 0, *, shown: int = 0
    ) -> tuple[list[int], str]:
        """The tokens up to the mark, included, and their text without the mark, from token `shown` on."""
        end = self.end(tokenizer, ids, start)
        before = list(ids[:end])
        if end is not None and before[-1] in self.ids:
            return before, tokenizer.decode(before[shown:-1])
        text, given = tokenizer.decode(before[shown:]), len(tokenizer.decode(ids[shown:start]))
        at = text.find(self.mark, given) if end is not None and self.mark else -1
        return before, text if at < 0 else text[:at]
