"""Fine-tune a model to classify texts, or to predict a number of each; all of its weights are trained.

DATA is .csv, .tsv, .jsonl or FASTA (a word label=VALUE after each name), a folder with train, valid and test files,
or a benchmark by name. MODEL is a checkpoint of any kind; --predict takes what an earlier run wrote.

unmask classify stories reviews.csv --out runs/mood --seeds 3
unmask classify runs/mood new.csv --predict --out answers.csv
unmask classify runs/sst2 SST-2 --predict --out dev.csv                     dev score; SST-2.tsv is for the test set
unmask classify stories pairs.tsv --field one --pair other --label score --number --out runs/near
unmask classify runs/dna human_ocr_ensembl --data-root data --out runs/ocr     Genomic Benchmarks by name
unmask classify stories reviews.csv --guide --out runs/guide                  for `unmask sample --classifier`
unmask classify bert-base-uncased SST-2 --out runs/sst2                       GLUE by name, with its protocol
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from dataclasses import field as made
from pathlib import Path
from typing import Annotated, Any

import tyro

from unmask.cli.flags import Place, Placing
from unmask.cli.numbers import numbers
from unmask.errors import UserError, how_many
from unmask.files import write_whole
from unmask.model.checkpoint import in_run
from unmask.model.head_files import NOTE, is_predictor, trained_in
from unmask.model.predictor import Predictor
from unmask.model.reading import Reading
from unmask.processes.signals import stopping
from unmask.processes.threads import use_threads
from unmask.text.corpus.benchmarks import Benchmark, benchmark_of, submission, unknown_data
from unmask.text.corpus.examples import Columns, read_examples
from unmask.training.answers import Answers, answer
from unmask.training.classify import run_trials
from unmask.training.protocols import usual_settings, with_flat
from unmask.training.results import RESULT
from unmask.training.scores import chosen_scores
from unmask.training.split import Split
from unmask.training.trials import TrialLog
from unmask.training.tuning import Tune, Tuning
from unmask.untrusted import printable, read_object

Flat = tyro.conf.arg(name="")


@dataclass(frozen=True)
class Settings:
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")] = (
        ""  # a checkpoint's folder, or hub name
    )
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = ""  # labelled texts, or a benchmark
    out: str = ""  # folder to write; with --predict a .csv file; of a benchmark it may be left out
    resume: bool = False  # go on with a run that was stopped
    predict: bool = False  # no training: MODEL is a folder that an earlier run wrote
    protocol: str = "auto"  # published settings as defaults: caduceus, hyenadna, mdlm, glue, plain; auto: the data's
    guide: bool = False  # train a small classifier on the frozen model, to guide `unmask sample --classifier`
    number: bool = False  # predict a number, not a class
    metrics: tuple[str, ...] = ()  # scores to report, the one that chooses the best weights first
    seeds: int = 1  # trials, each with a seed of its own; mean, deviation and range are printed
    seed: int = 1  # the first seed
    columns: Annotated[Columns, Flat] = made(default_factory=Columns)
    split: Annotated[Split, Flat] = made(default_factory=Split)
    reading: Annotated[Reading, Flat] = made(default_factory=Reading)
    tune: Annotated[Tune, Flat] = made(default_factory=Tune)
    place: Placing = made(default_factory=Place)

    def tuning(self) -> Tuning:
        given = {one.name: getattr(self, one.name) for one in fields(Tuning) if hasattr(self, one.name)}
        return Tuning(**given, device=self.place.device, dtype=self.place.dtype)


def default(arguments: list[str]) -> Settings:
    """The settings of the protocol that the command line names, or of the benchmark; of a prediction, the columns
    that the classifier was trained with."""
    asked = first_reading(arguments)
    settings = with_flat(Settings(), usual_settings(asked.protocol, asked.data, guide=asked.guide))
    return replace(settings, columns=stored_columns(asked.model)) if asked.predict else settings


def first_reading(arguments: list[str]) -> Settings:
    """The command line without the defaults that follow from it; those of no command line, if it is wrong."""
    try:
        return tyro.cli(Settings, args=arguments, registry=numbers(), console_outputs=False)
    except SystemExit:  # what is wrong is told when it is read for good
        return Settings()


def stored_columns(model: str) -> Columns:
    """The columns that a classifier was trained with; those that are usual if it is none."""
    try:
        folder = in_run(Path(model))
        return trained_in(read_object(folder / NOTE)).columns if is_predictor(folder) else Columns()
    except (UserError, OSError):  # it is told where the classifier is loaded
        return Columns()


def run(settings: Settings) -> None:
    use_threads(settings.place.threads)
    if settings.predict:
        if settings.guide:
            raise UserError("--guide takes no --predict: the classifier is for `unmask sample --classifier`.")
        predict(settings)
        return
    with stopping() as stop:
        result = run_trials(settings.tuning(), TrialLog(), resume=settings.resume, stop=stop)
    if result is None:
        print(f"stopped: continue with the same command and --resume; the folder is {settings.out}", file=sys.stderr)
        sys.exit(128 + stop[0])
    for line in score_lines(result):
        print(line)
    print(f"the model is in {Path(settings.out) / 'best'}, all numbers in {Path(settings.out) / RESULT}")


def score_lines(result: dict[str, Any]) -> Iterator[str]:
    """The scores of a run in words, those on test texts last."""
    count = len(result["trials"])
    for split, title in (("valid", "validation"), ("test", "test")):
        texts = result["trials"][0].get(split, {}).get("texts", 0)
        for name, one in result.get(split, {}).items():
            spread = ""
            if count > 1:
                spread = f" ± {one['deviation']:.4f} ({one['lowest']:.4f} to {one['highest']:.4f}, {count} seeds)"
            yield f"{title:<10} {name:<9} {one['mean']:.4f}{spread} on {how_many(texts, 'text')}"


def predict(settings: Settings) -> None:
    """Write the answers to new texts; if they have labels, print the scores."""
    there = bool(settings.data) and Path(settings.data).exists()
    named = None if there else benchmark_of(settings.data)
    if not settings.model or not settings.data or not (settings.out or named):
        raise UserError("say which model answers which texts: unmask classify RUN DATA --predict --out FILE.csv.")
    if not there and named is None:
        raise unknown_data(settings.data)
    predictor = Predictor.load(settings.model, device=settings.place.device, dtype=settings.place.dtype)
    if named is not None:
        predict_benchmark(settings, predictor, named)
        return
    named_records = False
    for one in read_examples(settings.data, settings.columns, labels=False):  # refused before the first answer
        named_records = named_records or bool(one.name)
        if one.label is not None:
            predictor.answer.target(one.label, one.where)
    some = read_examples(settings.data, settings.columns, labels=False)
    answers = answer(predictor, some, Path(settings.out), named=named_records, batch=settings.tune.batch)
    print(f"{settings.out}: {answers.texts:,} answers")
    print_scores(answers, settings.metrics)


def predict_benchmark(settings: Settings, predictor: Predictor, named: Benchmark) -> None:
    """Print the scores on the labelled part of a benchmark; with --out, write the answers and GLUE's submission."""
    root = settings.split.root
    splits = named.splits(root)
    parts = {split: splits[split] for split in ("valid", "test") if splits.get(split)}
    if not parts:
        raise UserError(f"{named.name} has no texts to answer at hand: {named.missing('test', root)}.")
    for split, some in parts.items():
        labelled = all(one.label is not None for one in some)
        if not labelled and not settings.out:
            print(
                f"{split}: {len(some):,} texts without labels; --out FILE.csv also writes the file for GLUE's server"
            )
            continue
        for one in some:
            if one.label is not None:
                predictor.answer.target(one.label, one.where)
        out = Path(settings.out) if settings.out and labelled else None
        answers = answer(predictor, some, out, named=False, batch=settings.tune.batch)
        if not labelled:
            own, content = submission(named, answers.lines())
            out = Path(settings.out).parent / own
            write_whole(out, content)
        if out is not None:
            print(f"{out}: {answers.texts:,} answers ({split})")
        print_scores(answers, settings.metrics or named.metrics)


def print_scores(answers: Answers, metrics: tuple[str, ...]) -> None:
    for line in answers.warnings():
        print(printable(line), file=sys.stderr)
    for name, value in answers.scores(chosen_scores(metrics, answers.predictor.answer.kind)).items():
        print(f"{name:<9} {value:.4f}")
