"""A plan: the commands of a study, in order, each with a folder named by everything that determines its result.

A folder's name contains the fingerprint of the command, its settings and the folders it reads. So a change of the
study's file touches just the rows it concerns, nothing that was computed is ever overwritten, and undoing the change
finds the old results again.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from unmask.errors import UserError, unknown
from unmask.model.checkpoint import find
from unmask.settings import merge_settings
from unmask.studies import corpus
from unmask.studies.row import StudyRow
from unmask.studies.study import SPLITS, VERBS, Measure, Study, fill_word
from unmask.training.estimate import RunCost, estimate
from unmask.training.phases import phases, spec_of
from unmask.training.settings import Train, settle_training

TOKENS, MODEL, CONFIG = "tokens.jsonl", "run", "settings.toml"
GUESSED_VOCABULARY = 128  # ids of a tokenizer whose size the settings do not tell


@dataclass(frozen=True)
class Task:
    """One command of a study."""

    name: str
    kind: Literal["data", "train", "measure"]
    row: str
    seed: int
    folder: Path
    command: tuple[str, ...]  # of unmask
    needs: tuple[str, ...]  # names of the tasks before it
    config: Mapping[str, Any] | None = None  # the settings of a training
    data: Mapping[str, Any] | None = None  # the text to lay out
    seconds: float = 0.0  # train for so long: the number of steps is measured first
    measure: str = ""
    result_file: str = "result.json"  # of a measurement

    @property
    def result(self) -> Path:
        return self.folder / self.result_file


@dataclass(frozen=True)
class StudyPlace:
    """Where a study reads and writes."""

    out: Path
    root: Path  # of the data


def plan_tasks(study: Study, place: StudyPlace, *, there: bool = True) -> tuple[Task, ...]:
    """Every command of a study, those first that others need; `there`: the data must exist."""
    study = fill_root(study, place.root)
    if there:
        corpus.check_present(study.data, place.root)
        for row in study.rows:
            if row.checkpoint:
                find(row.checkpoint)
    tasks: dict[str, Task] = {}
    for task in every_task(study, place, tasks):
        tasks[task.name] = task
    return tuple(tasks.values())


def fill_root(study: Study, root: Path) -> Study:
    """The study with {root} replaced in its checkpoints and in how its text is prepared."""
    data = dict(study.data)
    if "prepare" in data:
        data["prepare"] = {key: fill_word(value, "root", root) for key, value in data["prepare"].items()}
    rows = tuple(replace(row, checkpoint=fill_word(row.checkpoint, "root", root)) for row in study.rows)
    return replace(study, data=data, rows=rows)


def every_task(study: Study, place: StudyPlace, tasks: Mapping[str, Task]) -> Iterator[Task]:
    """The data, the trainings, the measurements; `tasks` holds those that came before."""
    if study.data:
        yield data_task(study, place)
    for row in rows_in_order(study):
        if row.train is not None:
            yield from (train_task(study, place, row, seed, tasks) for seed in seeds_of(study, row))
    for row in study.rows:
        wanted = [one for one in study.measures if row.measures is None or one.name in row.measures]
        for seed in seeds_of(study, row):
            for measure in wanted:
                yield from measure_tasks(study, place, row, seed, measure, tasks)


def rows_in_order(study: Study) -> list[StudyRow]:
    """The rows, each after the one whose weights it begins with."""
    rows: list[StudyRow] = []
    while len(rows) < len(study.rows):
        for row in study.rows:
            if row not in rows and (not row.after or study.row(row.after) in rows):
                rows.append(row)
    return rows


def seeds_of(study: Study, row: StudyRow) -> tuple[int, ...]:
    trained = study.row(row.of) if row.of else row
    return study.seeds if trained.train is not None else study.seeds[:1]


def data_task(study: Study, place: StudyPlace) -> Task:
    """Lay out the text and tokenize it; without rows to train it is only laid out."""
    data = study.data
    files = [corpus.locate_path(one["path"], place.root) for split in SPLITS for one in data.get(split, [])] or [
        corpus.locate_path(data["source"], place.root)
    ]
    key = mark(place, "data", data, [contents_of(path) for path in files])
    folder = place.out / "data" / key
    source = files[0] if "source" in data else str(folder / "text")
    trained = any(row.train is not None for row in study.rows)
    command = ("prepare", source, "--out", str(folder / "tokens"), *options(data["prepare"])) if trained else ()
    return Task("data", "data", "", 0, folder, command, (), data=data)


def contents_of(path: str) -> str:
    """What a source holds: its sha256, or its name where that is all there is to know beforehand."""
    files = [Path(path)] if Path(path).is_file() else sorted(p for p in Path(path).rglob("*") if p.is_file())
    if not files:
        return path
    held = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            held.update(hashlib.file_digest(opened, "sha256").digest())
    return held.hexdigest()


def train_task(study: Study, place: StudyPlace, row: StudyRow, seed: int, tasks: Mapping[str, Task]) -> Task:
    settings = dict(row.train or {})
    steps = steps_of(study, row)
    seconds = study.seconds if study.budget == "seconds" else 0.0
    settings |= {"seed": seed, "data": str(tasks["data"].folder / "tokens")} | ({"steps": steps} if steps else {})
    needs: list[str] = ["data"]
    begun: tuple[str, ...] = ()
    if row.after:
        settings["init"] = model_of(study, row.after, seed, tasks, needs)
        begun = weights_of(study.row(row.after))
    key = mark(place, "train", settings, seconds, study.threads, *begun)
    folder = place.out / "rows" / slug(row.name) / f"seed-{seed}" / f"train-{key}"
    command = ("train", "--config", str(folder / CONFIG), "--out", str(folder / MODEL), "--resume")
    return Task(
        name_of(row.name, seed), "train", row.name, seed, folder, command, tuple(needs), settings, seconds=seconds
    )


def name_of(row: str, seed: int) -> str:
    return f"train {row}, seed {seed}"


def measure_tasks(
    study: Study, place: StudyPlace, row: StudyRow, seed: int, measure: Measure, tasks: Mapping[str, Task]
) -> Iterator[Task]:
    for again in measure.seeds or (None,):
        needs: list[str] = []
        model = model_of(study, row.name, seed, tasks, needs)
        words = {
            "seed": str(seed),
            "root": str(place.root),
            "here": str(study.path.parent),
            "model": model,
            **texts(study, place, tasks, needs),
        }
        fill = Filler(study, seed, tasks, needs, words)
        extra = {"seed": again} if again is not None else {}
        words_before = (measure.verb, model, *map(fill, measure.arguments))
        asked = tuple(
            fill(part) for part in options({**measure.options, **row.options.get(measure.name, {}), **extra})
        )
        weights = "".join(weights_of(study.row(row.of) if row.of else row))
        key = mark(place, words_before, asked, weights, study.threads)
        suffix = f"-{again}" if again is not None else ""
        folder = place.out / "rows" / slug(row.name) / f"seed-{seed}" / f"{slug(measure.name)}{suffix}-{key}"
        verb = VERBS[measure.verb]
        aside = (*verb.options, verb.aside, str(folder / TOKENS)) if verb.aside else verb.options
        command = (*words_before, *asked, *aside, "--out", str(folder / verb.out))
        name = f"{measure.name} of {row.name}, seed {seed}" + (f", {again}" if again is not None else "")
        yield Task(
            name,
            "measure",
            row.name,
            seed,
            folder,
            command,
            tuple(needs),
            measure=measure.name,
            result_file=verb.result,
        )


def weights_of(row: StudyRow) -> tuple[str, ...]:
    """What a checkpoint that the study did not train holds; its path, if it is not there yet."""
    path = Path(row.checkpoint)
    there = not path.is_absolute() or path.exists()
    return (contents_of(str(find(path)[0]) if there else row.checkpoint),) if row.checkpoint else ()


def model_of(study: Study, name: str, seed: int, tasks: Mapping[str, Task], needs: list[str]) -> str:
    """The model of a row, for the seed or for the only one it has."""
    rows = {row.name: row for row in study.rows}
    if name not in rows:
        raise unknown("row", name, rows)
    row = rows[rows[name].of] if rows[name].of else rows[name]
    if row.train is None:
        return row.checkpoint
    before = name_of(row.name, seed)
    needs.append(before)
    return str(tasks[before].folder / MODEL)


def texts(study: Study, place: StudyPlace, tasks: Mapping[str, Task], needs: list[str]) -> dict[str, str]:
    if not study.data:
        return {}
    folder = tasks["data"].folder
    needs.append("data")
    if "source" in study.data:
        return {"data": corpus.locate_path(study.data["source"], place.root), "tokens": str(folder / "tokens")}
    ending = "jsonl" if corpus.are_pairs(study.data) else "txt"
    return {
        "data": str(folder / "text"),
        "tokens": str(folder / "tokens"),
        **{split: str(folder / "text" / f"{split}.{ending}") for split in SPLITS if split in study.data},
    }


@dataclass(frozen=True)
class Filler:
    """Fills {test}, {data}, {seed}, {root}, {here}, {row:NAME} in arguments and options."""

    study: Study
    seed: int
    tasks: Mapping[str, Task]
    needs: list[str]
    words: Mapping[str, str]

    def __call__(self, text: str) -> str:
        return re.sub(r"\{([^{}]+)\}", self.word, text)

    def word(self, match: re.Match[str]) -> str:
        name = match[1]
        if name.startswith("row:"):
            return model_of(self.study, name.removeprefix("row:"), self.seed, self.tasks, self.needs)
        if name not in self.words:
            raise unknown("word in braces", name, [*self.words, "row:NAME"])
        return self.words[name]


def options(values: Mapping[str, Any]) -> Iterator[str]:
    """Settings as flags: `{top-p = 0.9, json = true}` is `--top-p 0.9 --json`."""
    for name, value in values.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            yield flag
        elif value is False:
            head, _, last = flag.removeprefix("--").rpartition(".")
            yield f"--{head}.no-{last}" if head else f"--no-{last}"
        elif isinstance(value, list):
            yield flag
            yield from map(str, value)
        else:
            yield flag
            yield str(value)


def mark(place: StudyPlace, *parts: Any) -> str:
    """The fingerprint of everything that determines a result; where the study and its data lie does not."""
    text = json.dumps(parts, sort_keys=True, default=list)
    for folder, word in ((place.out, "OUT"), (place.root.absolute(), "ROOT"), (place.root, "ROOT")):
        text = text.replace(str(folder), word)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def slug(name: str) -> str:
    """A name as a folder: letters and digits, and a mark where that would not tell two names apart."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return plain if plain == name else f"{plain or 'row'}-{hashlib.sha256(name.encode()).hexdigest()[:4]}"


def train_of(row: StudyRow) -> Train:
    return settle_training(merge_settings(Train(), {**(row.train or {}), "init": row.after}))


def vocabulary(train: Train, study: Study) -> int:
    """The number of token ids, as far as the settings tell."""
    kind = study.data.get("prepare", {}).get("tokenizer", "bpe")
    return int(study.data.get("prepare", {}).get("vocab", 4096)) if kind == "bpe" else GUESSED_VOCABULARY


def costs(
    study: Study, row: StudyRow, *, steps: int = 0, rate: float = 1.0, vocab: int | None = None
) -> list[RunCost]:
    """What each phase of a row costs; `vocab`: the ids of its text, if they are known by now."""
    train = train_of(row)
    train = replace(train, steps=steps) if steps else train
    size = vocab or vocabulary(train, study)
    return [estimate(train, spec_of(train, phase, vocab=size), phase, rows=1, rate=rate) for phase in phases(train)]


def total_flops(study: Study, row: StudyRow, *, steps: int = 0, vocab: int | None = None) -> float:
    train = train_of(row)
    train = replace(train, steps=steps) if steps else train
    return sum(
        one.flops * phase.steps
        for one, phase in zip(costs(study, row, steps=train.steps, vocab=vocab), phases(train), strict=True)
    )


def steps_of(study: Study, row: StudyRow) -> int:
    """The steps of a row under its own budget or the study's; 0: as its settings say."""
    if row.flops:
        return max(2, round(train_of(row).steps * row.flops / total_flops(study, row)))
    if study.budget != "flops" or row.name == study.like:
        return 0
    like = study.row(study.like)
    if like.train is None:
        raise UserError(f"the row {like.name!r} is not trained, so it sets no budget; choose another with `like`.")
    own = train_of(row).steps
    return max(2, round(own * total_flops(study, like) / total_flops(study, row)))


def chain(study: Study, row: StudyRow) -> list[StudyRow]:
    """A row and those before it, the first one first."""
    rows = [row]
    while rows[0].after:
        rows.insert(0, study.row(rows[0].after))
    return rows


def tokens_seen(study: Study, row: StudyRow) -> int:
    """Tokens of training, those of the rows before it counted."""
    total = 0
    for one in chain(study, row):
        if one.train is not None:
            train = train_of(one)
            total += (steps_of(study, one) or train.steps) * train.optim.batch * train.text.length
    return total
