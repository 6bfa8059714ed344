"""Generate text from a model: watch it emerge from masks in a terminal, or pipe it on.

Under torchrun the processes share the batches; the texts are the same.

    unmask sample stories --prompt "Once upon a time" -n 3 --seed 1
    unmask sample stories --film story.html              an animation, with a play button
    unmask sample runs/mine --sampler ancestral --steps 64 --json > samples.jsonl
    unmask sample runs/mine --sampler threshold:tau=0.8 --temperature 0.7
    unmask sample runs/mine --json-schema person.json
    unmask sample runs/mine --pattern "[A-Z][a-z ]+\\." --length 512 --window 128
    torchrun --nproc-per-node 4 -m unmask sample runs/mine -n 1000 --json
"""

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from unmask.cli.film import check_film, write_film
from unmask.cli.flags import DOCUMENT, AsJson, Document, Drawing, ModelName, On, Place, Placing
from unmask.errors import UserError, how_many
from unmask.model.model import Model
from unmask.processes.cluster import Shared, check_alone, connect_cluster
from unmask.processes.team import Team, collect_lists, together
from unmask.sampling.recipe import Recipe, doubt
from unmask.sampling.tasks.continuation import Sample, generate
from unmask.sampling.tasks.rows import Event, Moment, note_events
from unmask.text.tokens.tokenizer import Tokenizer
from unmask.untrusted import printable
from unmask.views.terminal import watch

# The fields of a sample in a line of --json.
FIELDS = ("text", "tokens", "seed", "row", "calls", "sampler", "law", "seconds")

LONGEST_PACE = 3600  # seconds


@dataclass(frozen=True)
class Settings:
    model: ModelName
    n: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 1  # samples to draw (under torchrun write -n)
    length: int | None = None  # tokens per sample, prompt included; none: the training length
    prompt: str = ""  # text to begin with
    until: str | None = None  # end before this text or special token, such as '<|endoftext|>'
    document: Document = "auto"  # write a whole document, with its beginning and end; auto: if trained on a stream
    json: AsJson = False
    stream: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False  # print every step
    pace: float = 0.0  # seconds to pause after every forward pass, to watch a small model
    film: Path | None = None  # write an .html file that shows the first text emerging from masks
    on: On = ""
    recipe: Drawing = field(default_factory=Recipe)
    place: Placing = field(default_factory=Place)

    def __post_init__(self) -> None:
        if not 0 <= self.pace <= LONGEST_PACE:
            raise UserError(f"--pace is a pause of 0 to {LONGEST_PACE} seconds; saw {self.pace:g}.")


def run(settings: Settings) -> None:
    check_film(settings.film)
    if settings.stream and settings.on:
        raise UserError("--stream shows the steps of one process: leave out --on, or --stream.")
    with together() as team:
        check_alone(team, settings.on)
        draw_samples(shared_batches(settings, team), team)


def shared_batches(settings: Settings, team: Team) -> Settings:
    """Batches small enough that every process has one."""
    if team.world == 1:
        return settings
    if settings.stream:
        raise UserError("--stream shows the steps of one process: leave out torchrun, or --stream.")
    share = max(1, -(-settings.n // team.world))
    return replace(settings, recipe=replace(settings.recipe, batch=min(settings.recipe.batch, share)))


def draw_samples(settings: Settings, team: Team) -> None:
    model = settings.place.load(settings.model, rows=min(settings.n, settings.recipe.batch))
    tokenizer = model.text_tokenizer()
    warning = doubt(model, settings.length or model.spec.length, settings.recipe)
    if warning is not None and team.rank == 0:
        print(f"unmask: warning: {warning}", file=sys.stderr)
    events = texts_of(model, settings, (team.rank, team.world))
    finished: Iterable[Sample]
    if settings.on:
        finished = drawn_on_cluster(model, settings)
    elif team.world > 1:
        mine = [event for event in events if isinstance(event, Sample)]
        finished = sorted(collect_lists(team, mine), key=lambda sample: sample.row)
    elif settings.stream:
        finished = print_steps(events, tokenizer, as_json=settings.json)
    elif sys.stdout.isatty() and not settings.json:
        # Print only after the live view has been cleared.
        finished = list(watch(events, tokenizer, Console(), pace=settings.pace))
    else:
        finished = (event for event in events if isinstance(event, Sample))
    done = []
    for sample in finished:
        write_sample(sample, as_json=settings.json, event=settings.stream)
        done.append(sample)
    if team.rank == 0:
        write_film(settings.film, model, done[0])
        print(report(model, done, batch=settings.recipe.batch), file=sys.stderr)


def texts_of(model: Model, settings: Settings, share: tuple[int, int]) -> Iterator[Moment | Sample]:
    return generate(
        model,
        settings.recipe,
        n=settings.n,
        length=settings.length,
        prompt=settings.prompt,
        until=settings.until,
        document=DOCUMENT[settings.document],
        share=share,
    )


def drawn_on_cluster(model: Model, settings: Settings) -> Iterator[Sample]:
    """The samples in their order; each batch is a task of the cluster."""
    batches = -(-settings.n // settings.recipe.batch)
    with connect_cluster(settings.on) as cluster:
        assert cluster is not None
        shared = cluster.share((model, settings))
        for samples in cluster.map(draw_batch, ((shared, number, batches) for number in range(batches))):
            yield from samples


def draw_batch(shared: Shared[tuple[Model, Settings]], number: int, batches: int) -> list[Sample]:
    model, settings = shared.value
    return [event for event in texts_of(model, settings, (number, batches)) if isinstance(event, Sample)]


def write_sample(sample: Sample, *, as_json: bool, event: bool) -> None:
    """One sample on stdout: its text, or a line of JSON in ASCII, which survives every locale."""
    if as_json:
        line = {name: getattr(sample, name) for name in FIELDS}
        print(json.dumps({"event": "sample", **line} if event else line), flush=True)
    else:
        print(printable(sample.text) if sys.stdout.isatty() else sample.text, flush=True)


def print_steps(events: Iterable[Moment | Sample], tokenizer: Tokenizer, *, as_json: bool) -> Iterator[Sample]:
    """Print the new tokens of each row after each network call, and yield the samples."""
    for event in events:
        if isinstance(event, Sample):
            yield event
            continue
        step = event.step
        new: list[list[Event]] = [[] for _ in step.canvas.tokens]
        note_events(new, step)
        for row, (tokens, came) in enumerate(zip(step.canvas.tokens.tolist(), new, strict=True), event.first):
            if not came:
                continue
            text = tokenizer.decode(tokens)
            if as_json:
                drawn = [{name: value for name, value in asdict(token).items() if name != "call"} for token in came]
                line = {"event": "step", "call": step.call, "row": row, "new": drawn, "text": text}
                print(json.dumps(line), flush=True)
            else:
                print(f"{step.call}\t{row}\t{text!r}", flush=True)


def report(model: Model, samples: list[Sample], *, batch: int) -> str:
    """The cost of the samples, and the law that they follow."""
    firsts = samples[::batch]  # one of each batch
    calls = sum(max(one.calls for one in samples[i : i + batch]) for i in range(0, len(samples), batch))
    seconds = sum(one.seconds for one in firsts)
    drawn = sum(len({event.position for event in one.trace}) for one in samples)  # once, even if drawn again
    pace = f"{drawn / seconds:,.0f} tokens/s" if seconds else "nothing to draw"
    return (
        f"{len(samples)} x {samples[0].sampler}: {samples[0].law}\n"
        f"{how_many(calls, 'forward pass')}, {how_many(drawn, 'token')} in {seconds:.2f} s, {pace}"
    )
