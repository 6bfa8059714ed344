"""Report on a run as a page, compare the learning curves of several runs, or compare two results.

One run: report.html in its folder, with curves, samples as they emerge and the results found there. Several runs:
their curves as a picture and a page. Two results of --out: whether they differ beyond their error bars, and why.

    unmask evaluate runs/mine my_texts/ --out runs/mine/valid.json
    unmask report runs/mine
    unmask report runs/a runs/b --out curves             curves.png and curves.html
    unmask report a.json b.json
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from unmask.cli.flags import AsJson, Drawing, Place, Placing
from unmask.cli.table import accuracy_lines, likelihood_lines, quality_lines, read_result, write_text
from unmask.errors import UserError
from unmask.evaluation.comparison import record_differences, results, verdict
from unmask.evaluation.record import record
from unmask.model.model import Model
from unmask.sampling.recipe import Recipe
from unmask.sampling.tasks.continuation import Sample, generate
from unmask.views import curves, report
from unmask.views.page import Part, page

OWN_FILES = {"config.json", "unmask.json", "tokenizer.json", "tokenizer_config.json"}


@dataclass(frozen=True)
class Settings:
    what: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN..|RESULT RESULT")
    ]  # a run's or checkpoint's folder, several runs, or two results (.json)
    results: tuple[Path, ...] = ()  # more results to show (files of --out) beside those in the run's folder
    samples: int = 3  # samples to draw and show as they emerge
    length: int | None = None  # tokens per sample; none: the training length
    recipe: Drawing = field(default_factory=Recipe)
    out: Path | None = None  # page to write, or names of curves without an ending; none: RUN/report.html
    smooth: float = 0.9  # smoothing of training curves, from 0 (none) to 1
    log: bool = False  # logarithmic axis of steps
    json: AsJson = False
    place: Placing = field(default_factory=Place)


def run(settings: Settings) -> None:
    files = [path for path in settings.what if path.suffix == ".json" and not path.is_dir()]
    if files and (len(files), len(settings.what)) != (2, 2):
        raise UserError("two results are compared with each other: unmask report A.json B.json")
    if files:
        print_comparison((files[0], files[1]), as_json=settings.json)
    elif len(settings.what) == 1:
        write_report(settings.what[0], settings)
    elif settings.what:
        draw_curves(settings)
    else:
        raise UserError("report on what? Give the folder of a run: unmask report runs/mine.")


def draw_curves(settings: Settings) -> None:
    """The learning curves of several runs, as a picture and a page."""
    if not 0 <= settings.smooth < 1:
        raise UserError(f"smooth must lie in [0, 1); saw {settings.smooth}.")
    read = [curves.read_curve(folder) for folder in settings.what]
    figure = curves.curves_figure(read, smooth=settings.smooth, log=settings.log)
    out = settings.out or Path("curves")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out.with_name(f"{out.name}.png"), dpi=150)
    write_text(out.with_name(f"{out.name}.html"), page("Learning curves", [curves.compare_runs(read, figure)]))
    print(f"{out}.png\n{out}.html")


def write_report(folder: Path, settings: Settings) -> None:
    """One page about a run."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}: give a run's folder.")
    model = settings.place.load(folder)
    model_record = record(model, seed=settings.recipe.seed, settings=dict(model.settings), data={})
    parts = [
        *report.learning(folder),
        *result_parts(folder, settings.results),
        *emerging(model, settings),
        report.of_record(model_record),
    ]
    out = settings.out or folder / "report.html"
    write_text(out, page(folder.resolve().name, parts, about=about(model)))
    print(f"{out}: {', '.join(part.title for part in parts)}; {out.stat().st_size / 1000:,.0f} kB")


def result_parts(folder: Path, more: Sequence[Path]) -> Iterator[Part]:
    """Every result that can be shown, by its kind."""
    paths = [path for path in sorted(folder.glob("*.json")) if path.name not in OWN_FILES]
    for path in (*paths, *more):
        content = as_table(read_result(path))
        if "frontier" in content:
            yield report.of_frontier(content)
        elif path in more or "record" in content or "results" in content:
            for name, result in results(content, str(path)).items():
                title = path.stem if name == "result" else f"{path.stem}: {name}"
                yield report.of_result(title, result_lines(result, path), result["record"])


def result_lines(result: Any, path: Path) -> Iterable[tuple[str, str]]:
    """A result as its command prints it."""
    for key, lines in (
        ("nats_per_token", likelihood_lines),
        ("accuracy", accuracy_lines),
        ("entropy", quality_lines),
    ):
        if key in result:
            return lines(dict(result))
    raise UserError(f"{path} holds no result of evaluate, quality or frontier.")


def emerging(model: Model, settings: Settings) -> Iterator[Part]:
    """Samples of the model, if it has a tokenizer and some are asked for."""
    if model.tokenizer is not None and settings.samples > 0:
        events = generate(model, settings.recipe, n=settings.samples, length=settings.length)
        yield report.of_samples((event for event in events if isinstance(event, Sample)), model.tokenizer)


def as_table(content: Any) -> dict[str, Any]:
    """A result's object; anything else is no result."""
    return content if isinstance(content, dict) else {}


def about(model: Model) -> str:
    spec = model.spec
    return (
        f"{model.objective.name}, {model.num_parameters:,} parameters, {spec.name} of width {spec.width}, "
        f"{spec.vocab:,} ids, length {spec.length}" + ("" if model.step is None else f", step {model.step:,}")
    )


def print_comparison(paths: tuple[Path, Path], *, as_json: bool) -> None:
    first, second = (results(read_result(path), str(path)) for path in paths)
    shared = [name for name in first if name in second]
    if not shared:
        raise UserError(f"the files have no result in common: {', '.join(first)} and {', '.join(second)}.")
    if as_json:
        print(json.dumps({name: as_object(first[name], second[name]) for name in shared}, ensure_ascii=False))
        return
    for name in shared:
        for line in comparison_lines(name if len(shared) > 1 else "", first[name], second[name]):
            print(line)


def as_object(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    outcome = verdict(first, second)
    numbers = (
        None if outcome is None else {**asdict(outcome), "difference": outcome.difference, "beyond": outcome.beyond}
    )
    changed = record_differences(first["record"], second["record"])
    return {"verdict": numbers, "differences": [asdict(difference) for difference in changed]}


def comparison_lines(name: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[str]:
    outcome = verdict(first, second)
    title = f"{name}: " if name else ""
    if outcome is None:
        yield f"{title}the results measure different quantities"
    else:
        yield f"{title}{outcome.name} {outcome.first:.4f} and {outcome.second:.4f}: {outcome.sentence()}"
    changed = record_differences(first["record"], second["record"])
    if not changed:
        yield "the set-ups are the same"
        return
    yield "differences in the set-up, most important first:"
    for change in changed:
        yield f"  {change.name}: {short_value(change.first)} -> {short_value(change.second)}   [{change.effect}]"


def short_value(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 48 else f"{text[:20]}…{text[-20:]}"
