"""Until: where a text is to end."""

from collections.abc import Sequence
from dataclasses import dataclass

from unmask.errors import UserError
from unmask.text.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Until:
    """The end of a text: a special token by its name ("<|endoftext|>"), or a text."""

    mark: str

    def __post_init__(self) -> None:
        if not self.mark:
            raise UserError(
                "a text cannot end at an empty text: say until what, such as '<|endoftext|>' or 'The end'."
            )

    def end(self, tokenizer: Tokenizer, ids: Sequence[int], start: int = 0) -> int | None:
        """How many tokens there are up to and with the one that completes the mark; None: it does not come.

        Only what follows the first `start` tokens is looked at.
        """
        special = [id for id in tokenizer.specials if tokenizer.pieces[id] == self.mark]
        if special:
            return next((i + 1 for i in range(start, len(ids)) if ids[i] == special[0]), None)
        given = len(tokenizer.decode(ids[:start]))
        if self.mark not in tokenizer.decode(ids)[given:]:
            return None
        low, high = start, len(ids)  # with `high` tokens the mark is there, with `low` it is not
        while high - low > 1:
            middle = (low + high) // 2
            found = self.mark in tokenizer.decode(ids[:middle])[given:]
            low, high = (low, middle) if found else (middle, high)
        return high

    def cut(self, tokenizer: Tokenizer, ids: Sequence[int], start: int = 0) -> tuple[list[int], str]:
        """The tokens up to the mark, with it, and their text, without it."""
        end = self.end(tokenizer, ids, start)
        kept = list(ids[:end])
        text, given = tokenizer.decode(kept), len(tokenizer.decode(ids[:start]))
        at = text.find(self.mark, given) if end is not None else -1
        return kept, text if at < 0 else text[:at]
