"""chat: a conversation as a chat template writes it; only the assistant's answer and its end are learned.

    <|im_start|> user Hello <|im_end|> <|im_start|> assistant   Hi   <|im_end|>  eos ... eos
    GIVEN .............................................. GIVEN  FREE FREE        END ... END

The template writes all that stands before an answer, so its rows have no other marks. Every message of the assistant
is the answer of one row, and the messages before it are given. The token that ends an answer is the first special
token that the template writes after it. As in `exchange`, it is counted once, and training draws the room after it.

What is longer than a row follows the rule `long`, as in `exchange`: `cut`, `drop` or `refuse`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from unmask.errors import UserError
from unmask.text.corpus.chat_template import ChatTemplate
from unmask.text.corpus.corpus import Corpus
from unmask.text.corpus.spans import Spans
from unmask.text.corpus.turns import Turn
from unmask.text.layout import LAYOUTS, Layout, Written
from unmask.text.layouts.exchange import AnswerSpans, Long, exchange_room, rows_of_answers, start_of, starts_in
from unmask.text.layouts.padded import NO_STRIDE, with_ends
from unmask.text.row import Role, Row
from unmask.text.stretch import Document
from unmask.text.tokens.tokenizer import Tokenizer


@LAYOUTS.register("chat", "conversations, as a chat template writes them; answers alone are learned, with their ends")
@dataclass(frozen=True)
class ChatLayout(Layout):
    """A causal network reads nothing after the end of an answer."""

    least = 3
    whole = closed = answers = draws_room = documents = True
    before = 0
    extra = 1  # the end of the answer
    without_stride = NO_STRIDE
    chosen = "conversations: one answer per row of {length} tokens, after what the chat template writes before it"

    long: Long = "cut"  # what does not fit into a row: cut the start of what is given, drop the answer, or refuse it
    template: str = ""  # jinja
    end: int = -1  # the token that ends an answer

    def with_template(self, template: str, tokenizer: Tokenizer | None) -> Layout:
        if not template or tokenizer is None:
            raise UserError("packing 'chat' needs a chat template and a tokenizer: give --template roles, or a file.")
        if tokenizer.eos is None:
            raise UserError("packing 'chat' needs a tokenizer with an eos.")
        return replace(self, template=template, end=ChatTemplate(template).end(tokenizer))

    def by_document(self) -> Layout:
        return self

    def opening(self, *, document: bool = False) -> list[int]:
        return []

    @property
    def end_ids(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys((self.end, *super().end_ids)))

    def conversation(self, tokenizer: Tokenizer, turns: Sequence[Turn]) -> list[int]:
        return ChatTemplate(self.template).prompt(tokenizer, turns)

    def question(self, tokenizer: Tokenizer, text: str) -> list[int]:
        return self.conversation(tokenizer, [Turn("user", text)])

    def spans(self, corpus: Corpus, length: int) -> Spans:
        return AnswerSpans(corpus, length - 1, starts_in(corpus, length - 1, self.long))

    def write(self, contents: Sequence[np.ndarray], length: int) -> Written:
        tokens = np.full((len(contents), length), self.filler, np.int64)
        for into, content in zip(tokens, contents, strict=True):
            into[: len(content)] = content
            into[len(content)] = self.end
        ends = np.array([len(content) + 1 for content in contents])[:, None]
        return Written(tokens, np.where(np.arange(length) < ends, Role.FREE, Role.END).astype(np.int8))

    @property
    def filler(self) -> int:
        """The token after the end of an answer."""
        return self.end if self.marks.eos is None else self.marks.eos

    def room(self, roles: np.ndarray, u: float) -> int:
        return exchange_room(roles, u)

    def cut(self, documents: Sequence[Document], *, length: int, stride: int | None, separate: bool) -> Iterator[Row]:
        return rows_of_answers(self, documents, length=length, most=length - 1, rule=self.long)

    def exchange(self, given: Sequence[int] | np.ndarray, answer: Document, *, length: int, number: int = 0) -> Row:
        inner = np.asarray(answer.tokens, np.int64)
        rule: Long = "refuse" if self.long == "refuse" else "cut"
        start = start_of(len(given) + len(inner), len(inner), length - 1, rule, f"answer {number + 1}")
        before = np.asarray(given if len(given) else self.marks.lead, np.int64)[start or 0 :]
        roles = np.repeat(np.array([Role.GIVEN, Role.FREE], np.int8), [len(before), len(inner) + 1])
        tokens = np.concatenate([before, inner, [self.end]]).astype(np.int64)
        row = self.known(Row(tokens, roles, float(answer.bytes), float(answer.words), number))
        return with_ends(row, 0 if self.marks.leads else length - len(tokens), self.filler, Role.END)

    def leaves_out(self, given: Sequence[int] | np.ndarray, answer: Document, *, length: int) -> bool:
        return self.long == "drop" and len(given) + len(answer.tokens) > length - 1

    def filled(self, template: Sequence[int], *, mask: int, length: int) -> Row:
        return with_ends(super().filled(template, mask=mask, length=length), 1, self.end, Role.MARK)
