"""Pieces: the text of each token, for showing tokens in different colours."""

from collections.abc import Sequence

from unmask.text.tokens.tokenizer import BLANK, Tokenizer

UNFINISHED = "\ufffd"  # what decoding shows for some bytes of a character whose other bytes are in the next token


def pieces(tokenizer: Tokenizer, ids: Sequence[int], *, blank: str = BLANK) -> list[str]:
    """One string per token; joined, they are the decoded text. Masks are shown as `blank`.

    A character spread over several tokens belongs to the last of them.
    """
    shown: list[str] = []
    before: list[int] = []  # the last token with visible text: the decoding of the next one may depend on it
    group: list[int] = []
    for id in ids:
        group.append(id)
        text = _after(tokenizer, before, group, blank)
        if text.endswith(UNFINISHED) and len(shown) + 1 < len(ids):
            shown.append("")
            continue
        shown.append(text)
        if text:
            before = [id]
        group = []
    return shown


def _after(tokenizer: Tokenizer, before: list[int], group: list[int], blank: str) -> str:
    """The text that a group of tokens adds after the token before it."""
    known = tokenizer.decode(before, blank=blank) if before else ""
    return tokenizer.decode([*before, *group], blank=blank)[len(known) :]
