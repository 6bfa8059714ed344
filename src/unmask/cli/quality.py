"""Judge samples: generative perplexity by a named definition, variety, copies, each with its error bar.

    unmask sample runs/mine -n 64 --json > samples.jsonl
    unmask quality samples.jsonl --judge gpt2-large
    unmask quality runs/mine --judge runs/ar --n 64 --train stories.txt

A JUDGE is an autoregressive model of ours, a .gguf or llama2.c .bin file, or a causal model of transformers.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.status import Status

from unmask.cli.table import between, deliver, number
from unmask.evaluation.likelihood.measure import finite
from unmask.evaluation.quality.assessment import Text, assess, fingerprint, of_tokens, read_samples, training_texts
from unmask.evaluation.quality.judges import Judge, judge
from unmask.evaluation.record import record
from unmask.model.checkpoint import load
from unmask.model.model import Model
from unmask.sampling.recipe import Recipe
from unmask.sampling.tasks.continuation import Sample, generate
from unmask.text.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Settings:
    what: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SAMPLES|MODEL")]
    """A .jsonl file of samples, as `unmask sample --json` writes it, or a model to draw them from."""
    judge: str = ""
    """Who reads them. Without one: variety and copies only, counted in words."""
    definition: Literal["pooled", "mean", "sliding"] = "pooled"
    """Which generative perplexity stands first; all are in --json."""
    train: str = ""
    """Training text: what has been copied, and what entropy real text has."""
    context: int = 0
    """Tokens the judge sees at once; 0: 1024, or what it can."""
    tokens: int = 0
    """Judge only so many tokens of each sample; 0: all. The reference takes the model's length."""
    key: str = "text"
    """SAMPLES: the field that holds the text."""
    tokenizer: str = ""
    """SAMPLES: the tokenizer or checkpoint of their `tokens`, so that documents are told apart at eos."""
    n: int = 64
    """MODEL: samples to draw."""
    length: int | None = None
    """MODEL: tokens of a sample; None: what the model was trained on."""
    recipe: Annotated[Recipe, tyro.conf.arg(name="")] = field(default_factory=Recipe)
    json: bool = False
    """Print one JSON object."""
    out: Path | None = None
    """Write that object to a file, for `unmask compare`."""


def run(settings: Settings) -> None:
    began, model = time.perf_counter(), None
    reader = judge(settings.judge) if settings.judge else None  # before drawing: a bad name should not cost time
    drawn: dict[str, Any] = {}
    if Path(settings.what).is_file():
        tokenizer = Tokenizer.load(settings.tokenizer) if settings.tokenizer else None
        texts = read_samples(Path(settings.what), field=settings.key, tokenizer=tokenizer)
    else:
        model = load(settings.what)
        texts, drawn = draw(model, settings.recipe, n=settings.n, length=settings.length)
    training = list(training_texts(settings.train)) if settings.train else []
    answer = judged(texts, reader, settings, training)
    answer |= {"seconds": round(time.perf_counter() - began, 3), "drawn": drawn or None}
    answer["record"] = recorded(model, texts, reader, settings)
    if answer["warning"]:
        print(f"unmask: warning: {answer['warning']}", file=sys.stderr)
    answer = finite(answer)
    deliver(answer, lines(answer), as_json=settings.json, out=settings.out)


def draw(model: Model, recipe: Recipe, *, n: int, length: int | None = None) -> tuple[list[Text], dict[str, Any]]:
    """Samples of a model, and what they took."""
    events = generate(model, recipe, n=n, length=length)
    samples = [event for event in events if isinstance(event, Sample)]
    batches = [samples[i : i + recipe.batch] for i in range(0, len(samples), recipe.batch)]
    told = {
        "sampler": samples[0].sampler,
        "law": samples[0].law,
        "calls": sum(max(one.calls for one in batch) for batch in batches) / len(batches),
        "seconds_per_sample": sum(batch[0].seconds for batch in batches) / len(samples),
    }
    return [of_tokens(one.tokens, model.text_tokenizer()) for one in samples], told


def judged(
    texts: Sequence[Text], reader: Judge | None, settings: Settings, training: Sequence[str]
) -> dict[str, Any]:
    console = Console(file=sys.stderr)
    with Status("the judge reads", console=console) if console.is_terminal else nullcontext() as status:

        def after(done: int) -> None:
            if status is not None:
                status.update(f"the judge has read {done} pieces")

        return assess(
            texts,
            reader,
            definition=settings.definition,
            training=training,
            context=settings.context,
            most=settings.tokens,
            after=after,
        )


def recorded(model: Model | None, texts: Sequence[Text], reader: Judge | None, settings: Settings) -> dict[str, Any]:
    wanted = {name: getattr(settings, name) for name in ("definition", "context", "tokens", "train")}
    if model is not None:
        wanted |= {"n": settings.n, "length": settings.length, **asdict(settings.recipe)}
    data = {"name": settings.what, "sha256": fingerprint(texts), "samples": len(texts)}
    return record(
        model,
        seed=None if model is None else settings.recipe.seed,
        settings=wanted,
        data=data,
        judge=None if reader is None else reader.about,
    )


def lines(answer: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """An assessment in words."""
    for name, one in answer.get("definitions", {}).items():
        error = one["standard_error"]
        chosen = " <-" if name == answer["definition"] else ""
        value = f"{one['perplexity']:.2f} ± {number(error)}{between(one['interval'], 2, error)}{chosen}"
        yield f"gen. perplexity, {name}", value
    if "means" in answer:
        yield f"'{answer['definition']}' is", answer["means"]
    real = answer["entropy_of_training_text"]
    yield "entropy", plus(answer["entropy"]) + " nats a sample" + (f"; training text: {real:.3f}" if real else "")
    yield "repetition", f"{plus(answer['repetition'])} of 4-grams stood in the sample before"
    yield "self-overlap", f"{plus(answer['self_overlap'])} of 4-grams are in another sample too"
    yield "distinct 1, 2, 3, 4", ", ".join(plus(one) for one in answer["distinct"].values())
    if answer["mauve"] is not None:
        yield "MAUVE", f"{answer['mauve']:.4f}: {answer['mauve_is']}; no error bar"
    if answer["copies"]:
        copied = answer["copies"]
        yield "copied", f"{plus(copied['share'])} of words lie in runs of 8 or more of the training text"
        yield (
            "longest copy",
            f"{plus(copied['longest'], 1)} words a sample; of all {copied['most']}: {copied['text']!r:.80}",
        )
    empty = answer["empty_samples"]
    yield (
        "read",
        f"{answer['samples']} samples, {answer['tokens']:,} units ({answer['units']}), {answer['cut']:,} cut off"
        + (f"; {empty} samples have fewer than two and no perplexity" if empty else ""),
    )
    if answer["drawn"]:
        drawn = answer["drawn"]
        yield (
            "drawn by",
            f"{drawn['sampler']}: {drawn['calls']:,.0f} calls, {drawn['seconds_per_sample']:.3f} s a sample",
        )
    yield "error bars", "over samples: what another set of as many would change"


def plus(one: dict[str, Any], digits: int = 3) -> str:
    error = one["standard_error"]
    return f"{one['value']:.{digits}f} ± {'?' if error is None else f'{error:.{digits}f}'}"
