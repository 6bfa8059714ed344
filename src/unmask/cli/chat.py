"""Talk with a model: each answer emerges from masks in the terminal, after all messages before it.

The model was trained on pairs or conversations, or is a published one with a chat template. /new begins another
conversation, /undo takes back the last question with its answer, /quit (or Ctrl-D) ends. From a pipe every line is a
message, and the answers are lines. When a conversation no longer fits, its oldest messages are forgotten.

    unmask chat runs/chats
    unmask chat runs/chats --system "Be short." --temperature 0.5
    echo "What comes after Monday?" | unmask chat runs/answers
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from rich.console import Console

from unmask.cli.flags import Drawing, ModelName, Place, Placing
from unmask.errors import UserError
from unmask.model.model import Model
from unmask.sampling.recipe import Recipe
from unmask.sampling.tasks.continuation import Sample, generate
from unmask.text.corpus.turns import Turn
from unmask.untrusted import printable
from unmask.views.terminal import watch

LEAST = 8  # tokens of room that an answer needs
COMMANDS = "/new begins another conversation, /undo takes back the last question, /quit ends"


@dataclass(frozen=True)
class Settings:
    model: ModelName
    system: str = ""  # message of the system, given before all others
    room: int | None = None  # tokens of an answer, at most; none: the rest of the row
    pace: float = 0.0  # seconds to pause after every forward pass, to watch a small model
    recipe: Drawing = field(default_factory=Recipe)
    place: Placing = field(default_factory=Place)


def run(settings: Settings) -> None:
    model = settings.place.load(settings.model).talker
    if model is None:
        raise UserError(
            f"{settings.model} was not trained on conversations or pairs and has no chat template: use `unmask "
            "sample`, or train one with `unmask train --data chats.jsonl --template roles`."
        )
    console = Console() if sys.stdout.isatty() and sys.stdin.isatty() else None
    first = [Turn("system", settings.system)] if settings.system else []
    turns = list(first)
    for number, line in enumerate(typed_lines(console)):
        if line == "/quit":
            return
        if line in ("/new", "/undo"):
            turns = list(first) if line == "/new" else turns[: max(len(first), len(turns) - 2)]
        elif line.startswith("/"):
            print(f"there is no {line.split()[0]}: {COMMANDS}.", file=sys.stderr)
        elif line:
            try:
                turns = turns_that_fit(model, [*turns, Turn("user", line)], settings.room)
            except UserError as error:
                if console is None:
                    raise
                print(f"unmask: {error}", file=sys.stderr)
                continue
            answer = draw_answer(model, turns, settings, number, console)
            turns.append(Turn("assistant", answer))
            print(printable(answer) if console else answer, flush=True)


def typed_lines(console: Console | None) -> Iterator[str]:
    """What the user writes, until the input ends."""
    if console is None:
        yield from (line.strip() for line in sys.stdin)
        return
    print(COMMANDS, file=sys.stderr)
    while True:
        try:
            yield console.input("[bold]> [/]").strip()
        except EOFError:
            return


def turns_that_fit(model: Model, turns: list[Turn], room: int | None) -> list[Turn]:
    """The turns without the oldest messages that leave no room for an answer; a message of the system stays."""
    begun = len(turns)
    while prompt_size(model, turns) + (room or LEAST) > model.spec.length:
        oldest = 1 if turns[0].role == "system" else 0
        if len(turns) - oldest < 2:
            raise UserError(
                f"the message has {prompt_size(model, turns)} tokens with what is around it, and the model reads "
                f"{model.spec.length}, {room or LEAST} of them for the answer: write less."
            )
        del turns[oldest : oldest + 2]
    if len(turns) < begun:
        print(f"(the model reads {model.spec.length} tokens: the oldest messages are forgotten)", file=sys.stderr)
    return turns


def prompt_size(model: Model, turns: list[Turn]) -> int:
    layout = model.layout
    return len(layout.opening(document=True)) + len(layout.conversation(model.text_tokenizer(), turns))


def draw_answer(model: Model, turns: list[Turn], settings: Settings, number: int, console: Console | None) -> str:
    """The answer to the last message; each has a seed of its own."""
    recipe = replace(settings.recipe, seed=settings.recipe.seed + number)
    start, tokenizer = prompt_size(model, turns), model.text_tokenizer()
    length = None if settings.room is None else start + settings.room
    prompt = model.layout.conversation(tokenizer, turns)
    events = generate(model, recipe, prompt=prompt, length=length)
    if console is not None:
        (sample,) = watch(events, tokenizer, console, pace=settings.pace, start=start)
    else:
        (sample,) = (event for event in events if isinstance(event, Sample))
    return sample.text
