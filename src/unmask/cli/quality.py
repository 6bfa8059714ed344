"""Judge samples: generative perplexity by a named definition, variety and copies, with error bars.

    unmask sample runs/mine -n 64 --json > samples.jsonl
    unmask quality samples.jsonl --judge gpt2-large
    unmask quality runs/mine --judge runs/ar --n 64 --train stories.txt
    unmask quality runs/dna --n 64 --kmers 6 --train held_out.fa
    unmask quality runs/answers --prompts test.csv --given question --check exact

A JUDGE is an autoregressive unmask model, a .gguf file, or a causal model of transformers.
"""

import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.status import Status

from unmask.cli.flags import DOCUMENT, AsJson, Document, Drawing, Place, Placing, ResultFile
from unmask.cli.samples import drawn_answers, drawn_texts
from unmask.cli.table import answer_lines, deliver, quality_lines, sequence_lines
from unmask.errors import UserError
from unmask.evaluation.likelihood.measure import finite, spread_evenly
from unmask.evaluation.quality.answers import Answered, assess_answers
from unmask.evaluation.quality.assessment import (
    SampleText,
    assess,
    held_out_texts,
    read_samples,
    texts_fingerprint,
    training_texts,
)
from unmask.evaluation.quality.judges import Judge, judge
from unmask.evaluation.quality.kmers import assess_sequences
from unmask.evaluation.quality.molecules import assess_molecules
from unmask.evaluation.record import record
from unmask.model.model import Model, shipped_models
from unmask.sampling.recipe import Recipe, recipe_record
from unmask.text.corpus.records import existing
from unmask.text.corpus.turns import exchanges
from unmask.text.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Settings:
    what: Annotated[
        str, tyro.conf.Positional, tyro.conf.arg(metavar="SAMPLES|MODEL")
    ]  # samples of `unmask sample --json`, a FASTA file, or a model to draw them from
    judge: str = ""  # the judge (see above); empty: variety and copies only, counted in words
    definition: Literal["pooled", "mean", "sliding"] = "pooled"  # generative perplexity to report first
    train: str = ""  # training text, to measure copies and the entropy of real text; empty: neither
    split: str = ""  # split of --train (train, valid, test); empty: train; for --kmers held-out text
    kmers: int = 0  # sequences: compare k-mers of 1 to K letters with those of --train; 0: words of text
    molecules: bool = False  # SMILES: the share that is valid, distinct and new (needs rdkit)
    context: int = 0  # the judge's context in tokens; 0: 1024, or its maximum if that is less
    tokens: int = 0  # score only the first N tokens of each sample; 0: all
    key: str = "text"  # SAMPLES: the field that holds the text
    tokenizer: str = ""  # SAMPLES: the tokenizer or checkpoint of their `tokens`, to split documents at eos
    prompts: str = ""  # MODEL of pairs: answer N of the prompts in this file, and check the answers
    given: str = "given"  # field of --prompts that holds the prompt
    answer: str = "text"  # field of --prompts that holds the reference answer
    check: Literal["exact", "values", "steps"] = "exact"  # equal; values of a table; equations to a target
    n: int = 64  # MODEL: samples to draw
    length: int | None = None  # MODEL: tokens per sample; none: the training length
    document: Document = "auto"  # whole documents; auto: if the model was trained on a stream
    recipe: Drawing = field(default_factory=Recipe)
    json: AsJson = False
    out: ResultFile = None
    place: Placing = field(default_factory=Place)


def run(settings: Settings) -> None:
    began, model = time.perf_counter(), None
    reader = judge(settings.judge) if settings.judge else None  # before drawing, which takes time
    drawn: dict[str, Any] = {}
    if settings.prompts:
        return check_answers(settings)
    if Path(settings.what).is_file():
        named = settings.tokenizer
        tokenizer = Tokenizer.load(shipped_models().get(named, named)) if named else None
        texts = read_samples(Path(settings.what), field=settings.key, tokenizer=tokenizer)
    else:
        model = settings.place.load(settings.what)
        document = DOCUMENT[settings.document]
        texts, drawn = drawn_texts(model, settings.recipe, n=settings.n, length=settings.length, document=document)
    if settings.kmers or settings.molecules:
        answer = sequence_quality([text.joined.strip() for text in texts], settings)
        answer["record"] = quality_record(model, texts, None, settings)
        answer = finite(answer)
        deliver(answer, sequence_lines(answer), as_json=settings.json, out=settings.out)
        return
    answer = judged_samples(texts, reader, settings, trained_on(settings))
    answer |= {"seconds": round(time.perf_counter() - began, 3), "drawn": drawn or None}
    answer["record"] = quality_record(model, texts, reader, settings)
    if answer["warning"]:
        print(f"unmask: warning: {answer['warning']}", file=sys.stderr)
    answer = finite(answer)
    deliver(answer, quality_lines(answer), as_json=settings.json, out=settings.out)


def check_answers(settings: Settings) -> None:
    """Answers of a model of pairs to prompts of a file, checked one by one."""
    model = settings.place.load(settings.what)
    entries = list(exchanges(existing(settings.prompts), settings.given, settings.answer))
    entries = list(spread_evenly(entries, settings.n))
    texts, drawn = drawn_answers(model, settings.recipe, entries, length=settings.length)
    given = ["\n".join(turn.text for turn in one.given) for one in entries]
    answered = [Answered(*one) for one in zip(given, [one.answer for one in entries], texts, strict=True)]
    answer = assess_answers(answered, settings.check) | {"prompts": settings.prompts, "drawn": drawn}
    answer["record"] = quality_record(model, [SampleText((text,)) for text in texts], None, settings)
    answer = finite(answer)
    deliver(answer, answer_lines(answer), as_json=settings.json, out=settings.out)


def trained_on(settings: Settings) -> list[str]:
    """The training text; none, if it was not given."""
    return list(training_texts(settings.train, split=settings.split or "train")) if settings.train else []


def sequence_quality(texts: Sequence[str], settings: Settings) -> dict[str, Any]:
    if settings.judge:
        raise UserError("--kmers and --molecules compare letters: leave out --judge.")
    answer: dict[str, Any] = {}
    if settings.kmers:
        held_out, split = held_out_texts(settings.train, settings.split or None) if settings.train else ([], None)
        answer |= assess_sequences(texts, held_out, k=settings.kmers)
        answer |= {"train": settings.train, "split": split}
    if settings.molecules:
        training = [line for text in trained_on(settings) for line in text.split()]
        answer["molecules"] = assess_molecules(texts, training)
    return answer


def judged_samples(
    texts: Sequence[SampleText], reader: Judge | None, settings: Settings, training: Sequence[str]
) -> dict[str, Any]:
    console = Console(file=sys.stderr)
    with Status("scoring samples", console=console) if console.is_terminal else nullcontext() as status:

        def after(done: int) -> None:
            if status is not None:
                status.update(f"scored {done} pieces")

        return assess(
            texts,
            reader,
            definition=settings.definition,
            training=training,
            context=settings.context,
            most=settings.tokens,
            after=after,
        )


def quality_record(
    model: Model | None, texts: Sequence[SampleText], reader: Judge | None, settings: Settings
) -> dict[str, Any]:
    wanted = {
        name: getattr(settings, name) for name in ("definition", "context", "tokens", "train", "split", "kmers")
    }
    if settings.prompts:
        wanted = {name: getattr(settings, name) for name in ("prompts", "given", "answer", "check")}
    if model is not None:
        wanted |= {"n": settings.n, "length": settings.length, "document": settings.document}
        wanted |= recipe_record(model, settings.recipe)
    data = {"name": settings.what, "sha256": texts_fingerprint(texts), "samples": len(texts)}
    return record(
        model,
        seed=None if model is None else settings.recipe.seed,
        settings=wanted,
        data=data,
        judge=None if reader is None else reader.about,
    )
