"""One page about a run: learning curves, bounds, samples as they emerge, the frontier, the record.

    unmask evaluate runs/mine my_texts/ --out runs/mine/valid.json      results in the run's folder are shown
    unmask frontier runs/mine --judge gpt2-large --out runs/mine/frontier
    unmask report runs/mine                                             writes runs/mine/report.html

The page needs nothing else: no network, no other file.
"""

import html
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from unmask.cli import frontier, plot
from unmask.cli.quality import lines as quality_lines
from unmask.cli.table import accuracy_lines, likelihood_lines, write_text
from unmask.errors import UserError
from unmask.evaluation.comparison import results
from unmask.evaluation.record import record
from unmask.model.checkpoint import load
from unmask.model.model import Model
from unmask.sampling.recipe import Recipe
from unmask.sampling.tasks.continuation import Sample, generate
from unmask.training import metrics
from unmask.views.film import film
from unmask.views.film import html as film_page

OWN_FILES = {"config.json", "unmask.json", "tokenizer.json", "tokenizer_config.json"}


@dataclass(frozen=True)
class Settings:
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run's folder, or a checkpoint's."""
    results: tuple[Path, ...] = ()
    """More results (--out of evaluate, suite, quality, frontier); those in the run's folder are found."""
    samples: int = 3
    """Samples to draw and show as they emerge."""
    length: int | None = None
    """Tokens of a sample; None: what the model was trained on."""
    recipe: Annotated[Recipe, tyro.conf.arg(name="")] = field(default_factory=Recipe)
    out: Path | None = None
    """The page; None: report.html in the run's folder."""


def run(settings: Settings) -> None:
    if not settings.run.is_dir():
        raise UserError(f"there is no folder {settings.run}: give a run's folder.")
    model = load(settings.run)
    parts = [*curves(settings.run), *measured(settings), *emergence(model, settings), *made_by(model, settings)]
    out = settings.out or settings.run / "report.html"
    write_text(out, page(settings.run.resolve().name, model, parts))
    print(f"{out}: {', '.join(title for title, _ in parts)}; {out.stat().st_size / 1000:,.0f} kB")


def curves(folder: Path) -> Iterator[tuple[str, str]]:
    """The learning curves, where the folder is a run's."""
    if not (folder / metrics.FILE).is_file():
        return
    curve = plot.curve(folder)
    figure = plot.drawn([curve], plot.Settings(runs=(str(folder),)))
    step, bound, valid, best, hours = plot.row(curve)[1:]
    said = [("step", step), ("bound in training", f"{bound} nats a token"), ("hours in steps", hours)]
    if valid:
        said += [("validation", f"{valid} nats a token"), ("best", best)]
    yield "Learning curves", frontier.svg(figure) + pairs(said)


def measured(settings: Settings) -> Iterator[tuple[str, str]]:
    """Every result that can be shown, by its kind."""
    found = [path for path in sorted(settings.run.glob("*.json")) if path.name not in OWN_FILES]
    for path in (*found, *settings.results):
        content = read(path)
        if "frontier" in content:
            yield "Quality against cost", of_frontier(content)
            continue
        if path in settings.results or "record" in content or "results" in content:
            for name, result in results(content, str(path)).items():
                title = path.stem if name == "result" else f"{path.stem}: {name}"
                yield title, pairs(words(result, path)) + details(result["record"])


def words(result: Any, path: Path) -> list[tuple[str, str]]:
    """A result as its own command prints it."""
    for key, lines in (
        ("nats_per_token", likelihood_lines),
        ("accuracy", accuracy_lines),
        ("entropy", quality_lines),
    ):
        if key in result:
            return list(lines(dict(result)))
    raise UserError(f"{path} holds no result of evaluate, suite, quality or frontier.")


def of_frontier(content: dict[str, Any]) -> str:
    points = content["frontier"]
    partial = "<p><strong>Partial: it was stopped before all points were done.</strong></p>"
    picture = frontier.body(points, frontier.drawn(points, content["definition"]))
    return (partial if content["partial"] else "") + picture + details(content["record"])


def emergence(model: Model, settings: Settings) -> Iterator[tuple[str, str]]:
    """Samples, each a small page of its own with a play button."""
    if model.tokenizer is None or settings.samples < 1:
        return
    events = generate(model, settings.recipe, n=settings.samples, length=settings.length)
    shown = []
    for one in events:
        if isinstance(one, Sample):
            caption = f"{one.sampler}: {one.law}. {one.calls} network calls, seed {one.seed}, row {one.row}."
            content = film_page(film(model.tokenizer, one.tokens, one.trace, caption=caption))
            size = 16 + 2 * (len(one.text) // 70 + one.text.count("\n"))
            shown.append(
                f'<iframe title="sample {one.row}" style="height: {size}rem" srcdoc="{html.escape(content)}">'
            )
    yield "Samples, as they emerge", "\n".join(f"{one}</iframe>" for one in shown)


def made_by(model: Model, settings: Settings) -> Iterator[tuple[str, str]]:
    kept = record(model, seed=settings.recipe.seed, settings=dict(model.settings), data={})
    yield "Record", details(kept, opened=True)


def read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}.") from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}.") from None
    return content if isinstance(content, dict) else {}


def pairs(said: list[tuple[str, str]]) -> str:
    rows = "\n".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in said)
    return f'<table class="pairs">{rows}</table>'


def details(content: dict[str, Any], *, opened: bool = False) -> str:
    text = html.escape(json.dumps(content, indent=2, ensure_ascii=False, default=str))
    return f"<details{' open' if opened else ''}><summary>Record</summary><pre>{text}</pre></details>"


def page(name: str, model: Model, parts: list[tuple[str, str]]) -> str:
    a = model.spec
    about = (
        f"{model.objective}, {model.num_parameters:,} parameters, {a.blocks} blocks of width {a.width}, "
        f"{a.vocab:,} ids, length {a.length}" + ("" if model.step is None else f", step {model.step:,}")
    )
    sections = "\n".join(f"<section><h2>{html.escape(title)}</h2>\n{content}\n</section>" for title, content in parts)
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(name)}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1d1d1f }}
svg {{ width: 100%; height: auto }}
iframe {{ width: 100%; border: 1px solid #ddd; border-radius: 8px; margin: .5rem 0 }}
table {{ border-collapse: collapse; margin: .5rem 0; font-variant-numeric: tabular-nums }}
th, td {{ padding: .25rem .75rem; text-align: right; border-bottom: 1px solid #ddd }}
th:first-child, td:first-child, .pairs td {{ text-align: left }}
.pairs th {{ font-weight: 400; color: #6b6b70; vertical-align: top; white-space: nowrap }}
pre {{ overflow-x: auto; font-size: .85rem }}
</style>
<h1>{html.escape(name)}</h1>
<p>{html.escape(about)}</p>
{sections}
</html>
"""
