"""Write one page about a run: learning curves, bounds, samples as they emerge, the frontier, the record.

    unmask evaluate runs/mine my_texts/ --out runs/mine/valid.json
    unmask frontier runs/mine --judge gpt2-large --out runs/mine/frontier
    unmask report runs/mine

Writes runs/mine/report.html, a self-contained page. Results in the run's folder are shown.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from unmask.cli.flags import Drawing, Place, Placing
from unmask.cli.table import accuracy_lines, likelihood_lines, quality_lines, read_result, write_text
from unmask.errors import UserError
from unmask.evaluation.comparison import results
from unmask.evaluation.record import record
from unmask.model.model import Model
from unmask.sampling.recipe import Recipe
from unmask.sampling.tasks.continuation import Sample, generate
from unmask.views import report
from unmask.views.page import Part, page

OWN_FILES = {"config.json", "unmask.json", "tokenizer.json", "tokenizer_config.json"}


@dataclass(frozen=True)
class Settings:
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a run or of a checkpoint."""
    results: tuple[Path, ...] = ()
    """More results to show (files of --out); those in the run's folder are always shown."""
    samples: int = 3
    """Samples to draw and show as they emerge."""
    length: int | None = None
    """Tokens per sample; none: the training length."""
    recipe: Drawing = field(default_factory=Recipe)
    out: Path | None = None
    """The page to write; none: report.html in the run's folder."""
    place: Placing = field(default_factory=Place)


def run(settings: Settings) -> None:
    if not settings.run.is_dir():
        raise UserError(f"there is no folder {settings.run}: give a run's folder.")
    model = settings.place.load(settings.run)
    kept = record(model, seed=settings.recipe.seed, settings=dict(model.settings), data={})
    parts = [
        *report.learning(settings.run),
        *result_parts(settings),
        *emerging(model, settings),
        report.of_record(kept),
    ]
    out = settings.out or settings.run / "report.html"
    write_text(out, page(settings.run.resolve().name, parts, about=about(model)))
    print(f"{out}: {', '.join(part.title for part in parts)}; {out.stat().st_size / 1000:,.0f} kB")


def result_parts(settings: Settings) -> Iterator[Part]:
    """Every result that can be shown, by its kind."""
    found = [path for path in sorted(settings.run.glob("*.json")) if path.name not in OWN_FILES]
    for path in (*found, *settings.results):
        content = as_table(read_result(path))
        if "frontier" in content:
            yield report.of_frontier(content)
        elif path in settings.results or "record" in content or "results" in content:
            for name, result in results(content, str(path)).items():
                title = path.stem if name == "result" else f"{path.stem}: {name}"
                yield report.of_result(title, lines_of(result, path), result["record"])


def lines_of(result: Any, path: Path) -> Iterable[tuple[str, str]]:
    """A result as its command prints it."""
    for key, lines in (
        ("nats_per_token", likelihood_lines),
        ("accuracy", accuracy_lines),
        ("entropy", quality_lines),
    ):
        if key in result:
            return lines(dict(result))
    raise UserError(f"{path} holds no result of evaluate, suite, quality or frontier.")


def emerging(model: Model, settings: Settings) -> Iterator[Part]:
    """Samples of the model, if it has a tokenizer and some are asked for."""
    if model.tokenizer is not None and settings.samples > 0:
        events = generate(model, settings.recipe, n=settings.samples, length=settings.length)
        yield report.of_samples((event for event in events if isinstance(event, Sample)), model.tokenizer)


def as_table(content: Any) -> dict[str, Any]:
    """A result's object; anything else is no result."""
    return content if isinstance(content, dict) else {}


def about(model: Model) -> str:
    """The model in one line."""
    spec = model.spec
    return (
        f"{model.objective.name}, {model.num_parameters:,} parameters, {spec.name} of width {spec.width}, "
        f"{spec.vocab:,} ids, length {spec.length}" + ("" if model.step is None else f", step {model.step:,}")
    )
