"""Chat templates: a list of messages as text, by a jinja template of a stranger.

A template is a program. It runs in jinja's sandbox, where nothing can be changed and no attribute leads out, and
within limits: on its own size, on rounds of loops and calls, on the text that it makes, on the size of values. Only
filters and methods that cannot make much of little are there. So every template ends, soon, with a text or an error.

What people say is not part of the program, nor of its marks. Special tokens are recognised in the words of the
template alone: a message that contains "<|im_end|>" is tokenized as those letters.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import loopcontrols
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from unmask.errors import UserError
from unmask.text.corpus.turns import Turn
from unmask.text.tokens.export import CONFIG
from unmask.text.tokens.tokenizer import Tokenizer, encode_given
from unmask.untrusted import parse_json, read_text

TEMPLATE = "chat_template.jinja"
LARGEST = 1 << 16  # characters of a template
ROUNDS = 100_000  # rounds of loops, calls and pieces of output of one conversation
OUTPUT = 1 << 22  # characters of one conversation, as a template writes it
VALUES = 10_000  # values in a list or a dict that a template makes
NUMBER = 2**53
GUARD = "\ufdd0"  # no character of any text (Unicode); in a message, it breaks what looks like a special token
ROLES = ("system", "user", "assistant")
METHODS = (
    "strip lstrip rstrip split rsplit startswith endswith upper lower title capitalize find count get items keys"
)
METHODS += " values"
FILTERS = (
    "trim length count upper lower capitalize title first last default d list reverse selectattr rejectattr select"
)
FILTERS += " reject map int items safe"
MARKED = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")  # TRL's marks of what is learned: it is known here


class NamedTemplate(NamedTuple):
    title: str
    text: str


NAMED = {
    "roles": NamedTemplate(
        "the role in a line before each message, an eos after it",
        "{{ bos_token }}{% for message in messages %}{{ message.role }}\n{{ message.content }}{{ eos_token }}"
        "{% endfor %}{% if add_generation_prompt %}assistant\n{% endif %}",
    ),
    "chatml": NamedTemplate(
        "<|im_start|>, the role in a line, the message, <|im_end|>",
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    ),
}


class Endless(UserError):
    """A template went beyond a limit."""


class Budget:
    """What a template has used of its limits."""

    def __init__(self) -> None:
        self.rounds = self.output = 0

    def spend(self, output: int = 0) -> None:
        self.rounds += 1
        self.output += output
        if self.rounds > ROUNDS:
            raise Endless(
                f"the chat template goes on after {ROUNDS:,} rounds of its loops and calls: it may never end."
            )
        if self.output > OUTPUT:
            raise Endless(f"the chat template has written {OUTPUT:,} characters and goes on: it may never end.")


BUDGET: ContextVar[Budget] = ContextVar("budget of a template")  # out of the template's reach


class Sandbox(ImmutableSandboxedEnvironment):
    """jinja's sandbox, with a budget for what is repeated and a limit for what grows."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], optimized=False)
        self.filters = {name: self.filters[name] for name in FILTERS.split()}
        self.filters |= {"written": write_value, "repeated": loop_values, "sized": sized_value, "string": write_value}
        self.filters |= {"tojson": as_json, "join": join_texts}
        self.globals = {"range": self.globals["range"], "namespace": self.globals["namespace"]}
        self.globals |= {
            "raise_exception": refuse_conversation,
            "strftime_now": lambda form: datetime.now().strftime(form[:64]),
        }

    def wrap_str_format(self, value: Any) -> None:
        """`format` is a method like others: not allowed."""

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        BUDGET.get().spend()
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str | bytes | list | dict | tuple | int | float) and obj.__name__ not in METHODS.split():
            raise SecurityError(f"the method {obj.__name__!r} is not allowed in a chat template")
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        numbers = all(isinstance(one, int | float) for one in (left, right))
        if (numbers and operator != "**") or (operator == "+" and isinstance(left, str | list)):
            result = super().call_binop(context, operator, left, right)
            if (isinstance(result, str) and len(result) > OUTPUT) or (numbers and abs(result) > NUMBER):
                raise Endless("a value of the chat template grows beyond all limits: it may never end.")
            return sized_value(result) if isinstance(result, list) else result
        kinds = " and ".join(type(one).__name__ for one in (left, right))
        raise SecurityError(f"{operator} of {kinds} is not allowed in a chat template")


class Bounded(NodeTransformer):
    """A template in which all that is written, repeated or put together goes through a filter that counts it."""

    def visit_Output(self, node: nodes.Output) -> nodes.Output:
        self.generic_visit(node)
        texts = [nodes.Const(one.data) if isinstance(one, nodes.TemplateData) else one for one in node.nodes]
        node.nodes = [through("written", one) for one in texts]
        return node

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        if node.recursive:
            raise UserError("the chat template has a recursive loop, which is not allowed: write it without.")
        node.iter = through("repeated", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        texts: list[nodes.Expr] = [through("written", one) for one in node.nodes]
        return reduce(nodes.Add, texts)

    def visit_List(self, node: nodes.List) -> nodes.Expr:
        self.generic_visit(node)
        return through("sized", node)

    visit_Tuple = visit_Dict = visit_List


def through(name: str, node: nodes.Node) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


@pass_context  # so that jinja does not compute it when it compiles
def write_value(context: Context, value: Any) -> str:
    return counted_text(value)


def counted_text(value: Any) -> str:
    if isinstance(value, Undefined):
        value = str(value)
    if value is not None and not isinstance(value, str | int | float):
        raise SecurityError(f"a {type(value).__name__} is written as it is: use the filter tojson")
    text = str(value)
    BUDGET.get().spend(len(text))
    return text


def loop_values(values: Any) -> Iterator[Any]:
    """The values of a loop, counted."""
    for value in values:
        BUDGET.get().spend()
        yield value


def sized_value(value: Any) -> Any:
    """A list or dict, if it is small with all that is in it."""
    count, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        count += 1
        if count > VALUES:
            raise Endless("a value of the chat template grows beyond all limits: it may never end.")
        if isinstance(one, Mapping):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple):
            waiting += one
    return value


def as_json(value: Any, indent: int | None = None) -> str:
    text = json.dumps(sized_value(value), ensure_ascii=False, indent=min(indent, 8) if indent else None)
    return counted_text(text)


def join_texts(values: Any, between: str = "") -> str:
    parts = [counted_text(one) for one in values]
    return parts[0] + "".join(counted_text(between) + one for one in parts[1:]) if parts else ""


def refuse_conversation(reason: Any) -> None:
    raise UserError(f"the chat template refuses this conversation: {str(reason)[:200]}")


@lru_cache(16)
def compile_template(text: str) -> Callable[..., str]:
    """A template, ready to render."""
    if len(text) > LARGEST:
        raise UserError(f"the chat template has {len(text):,} characters; {LARGEST:,} are allowed.")
    environment = Sandbox()
    with explained():
        tree = Bounded().visit(environment.parse(MARKED.sub("", text)))
        return environment.from_string(tree).render


class explained:
    """What goes wrong in a template, as an error of the user."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, RecursionError):
            raise Endless("the chat template calls itself without an end.") from None
        wrong = (TemplateError, TypeError, ValueError, AttributeError, KeyError, IndexError, ArithmeticError)
        if isinstance(error, (*wrong, SyntaxError, MemoryError)) and not isinstance(error, UserError):
            raise UserError(f"the chat template does not work: {type(error).__name__}: {error!s:.200}") from None


@dataclass(frozen=True)
class ChatTemplate:
    """A jinja template of conversations, as published models have it."""

    text: str

    @classmethod
    def named(cls, word: str) -> "ChatTemplate":
        """A template by its name (roles, chatml), from a jinja file, or as a text of its own."""
        if word in NAMED:
            return cls(NAMED[word].text)
        if "{" in word:
            return cls(word)
        if not Path(word).is_file():
            raise UserError(f"there is no chat template {word!r}: give {', '.join(NAMED)}, or a jinja file.")
        return cls(read_text(Path(word), limit=4 * LARGEST))

    @property
    def words(self) -> str:
        """What it writes around messages, for a vocabulary of letters."""
        bare = re.sub(r"\{[{%#].*?[}%#]\}", " ", self.text, flags=re.DOTALL)
        return bare + " " + " ".join(ROLES)

    def rendered(self, tokenizer: Tokenizer, turns: Sequence[Turn], *, asks: bool) -> str:
        """Messages as text; `asks`: up to where the assistant answers. Messages are guarded."""
        names = special_names(tokenizer)
        first = "".join({re.escape(name[0]) for name in names})
        guard = re.compile(f"([{first}])") if first else re.compile("(?!)")
        messages = [
            {"role": guard.sub(rf"\1{GUARD}", one.role), "content": guard.sub(rf"\1{GUARD}", one.text)}
            for one in turns
        ]
        ids = {"bos_token": tokenizer.bos, "eos_token": tokenizer.eos, "pad_token": tokenizer.pad}
        marks = {name: "" if id is None else tokenizer.pieces[id] for name, id in ids.items()}
        if any(GUARD in one.text or GUARD in one.role for one in turns):
            raise UserError("a message has the character U+FDD0, which stands for nothing in any text: remove it.")
        render = compile_template(self.text)
        BUDGET.set(Budget())
        with explained():
            return render(messages=messages, add_generation_prompt=asks, enable_thinking=False, **marks)

    def encode(self, tokenizer: Tokenizer, text: str) -> list[int]:
        """The ids of a rendered text: the names of special tokens are their ids, but not in messages."""
        names = special_names(tokenizer)
        if not names:
            return encode_given(tokenizer, text.replace(GUARD, ""))
        between = re.compile("(" + "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)) + ")")
        ids: list[int] = []
        for number, part in enumerate(between.split(text)):
            if number % 2:
                ids.append(names[part])
            elif part:
                ids += encode_given(tokenizer, part.replace(GUARD, ""))
        return ids

    def prompt(self, tokenizer: Tokenizer, turns: Sequence[Turn]) -> list[int]:
        """The tokens before the assistant's answer."""
        return self.encode(tokenizer, self.rendered(tokenizer, turns, asks=True))

    def end(self, tokenizer: Tokenizer) -> int:
        """The token that ends an answer: the first special token after it, or eos."""
        asked, answer = Turn("user", "0"), "1"
        whole = self.rendered(tokenizer, [asked, Turn("assistant", answer)], asks=False)
        _, shown, after = whole.rpartition(answer)
        if not shown or self.rendered(tokenizer, [asked], asks=True).rpartition("0")[1] != "0":
            raise UserError(
                "the chat template leaves messages out: it must write each message of user and assistant."
            )
        special = [id for id in self.encode(tokenizer, after) if id in tokenizer.specials]
        end = special[0] if special else tokenizer.eos
        if end is None:
            raise UserError("the chat template ends no answer: write a special token after each message.")
        return end


def published_template(folder: Path) -> ChatTemplate | None:
    """The chat template of a published model, from chat_template.jinja or tokenizer_config.json."""
    if (folder / TEMPLATE).is_file():
        return ChatTemplate(read_text(folder / TEMPLATE, limit=4 * LARGEST))
    if not (folder / CONFIG).is_file():
        return None
    config = parse_json(read_text(folder / CONFIG), str(folder / CONFIG), strict=False)
    text = config.get("chat_template") if isinstance(config, dict) else None
    if isinstance(text, list):  # several, by name
        text = next((one.get("template") for one in text if one.get("name") == "default"), None)
    return ChatTemplate(text) if isinstance(text, str) and text else None


def special_names(tokenizer: Tokenizer) -> dict[str, int]:
    return {tokenizer.pieces[id]: id for id in tokenizer.specials if tokenizer.pieces[id]}
