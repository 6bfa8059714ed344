"""Quality against cost: samplers, steps and temperatures, each judged, drawn as a picture and a page.

    unmask frontier runs/mine --judge gpt2-large --steps 8 32 128 --out runs/mine/frontier

Writes frontier.json (every point with its error bars, and the record), frontier.png and frontier.html. Points that
are done when it is stopped are kept, and the file says that it is partial.
"""

import html
import io
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from unmask.cli.plot import COLOURS
from unmask.cli.quality import draw
from unmask.cli.table import write_text
from unmask.errors import UserError, unknown
from unmask.evaluation.likelihood.measure import finite
from unmask.evaluation.quality.assessment import assess
from unmask.evaluation.quality.judges import Judge, judge
from unmask.evaluation.record import record
from unmask.model.checkpoint import load
from unmask.model.model import Model
from unmask.sampling.recipe import OWN, Recipe, method_for
from unmask.sampling.samplers import SAMPLERS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEAD = ("sampler", "steps", "temperature", "calls", "s a sample", "gen. perplexity", "entropy", "repetition")


@dataclass(frozen=True)
class Settings:
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A checkpoint's folder, a run's folder, or a name on the hub."""
    judge: str
    """Who reads the samples: an autoregressive model of ours, a .gguf or .bin file, or what transformers loads."""
    samplers: tuple[str, ...] = ()
    """Samplers to compare; none: the model's own and, for mdlm, ancestral, groups and confidence."""
    steps: tuple[int, ...] = (8, 32, 128)
    """Steps, for the samplers that have a number of them."""
    temperatures: tuple[float, ...] = (1.0,)
    """Temperatures, each with every sampler."""
    definition: str = "pooled"
    """Which generative perplexity is drawn: pooled, mean, sliding."""
    n: int = 32
    """Samples for each point."""
    length: int | None = None
    """Tokens of a sample; None: what the model was trained on."""
    seed: int = 0
    batch: int = 32
    """Samples drawn at once; it decides the time a sample takes."""
    out: str = "frontier"
    """Where to, without an ending."""


def run(settings: Settings) -> None:
    model = load(settings.model)
    recipes = list(grid(model, settings))
    reader = judge(settings.judge)
    kept = recorded(model, reader, settings)
    figure_class()  # before the work: a missing library should not cost it
    points: list[dict[str, Any]] = []
    try:
        for recipe in recipes:
            points.append(point(model, reader, recipe, settings))
            print("  ".join(cells(points[-1])), file=sys.stderr)
            save(points, kept, settings, partial=len(points) < len(recipes))
    except KeyboardInterrupt:
        if not points:
            raise
        print("unmask: stopped; the points so far are kept", file=sys.stderr)
    out = Path(settings.out)
    figure = drawn(points, settings.definition)
    figure.savefig(ending(out, "png"), dpi=150)
    write_text(ending(out, "html"), page(points, figure, kept))
    print("\n".join(str(ending(out, kind)) for kind in ("json", "png", "html")))


def grid(model: Model, settings: Settings) -> Iterator[Recipe]:
    """Every recipe to try; one that the model cannot follow is refused before anything is drawn."""
    own = OWN[model.objective]
    chosen = settings.samplers or (
        (own, "ancestral", "groups", "confidence") if model.objective == "mdlm" else (own,)
    )
    for name in chosen:
        if name not in SAMPLERS and name != own:
            raise unknown("sampler", name, [*SAMPLERS, own])
        stepped = name in SAMPLERS and SAMPLERS[name].build is not None
        for steps in settings.steps if stepped else (None,):
            for temperature in settings.temperatures:
                recipe = Recipe(
                    sampler=name, steps=steps, temperature=temperature, seed=settings.seed, batch=settings.batch
                )
                method_for(model, recipe)
                yield recipe


def point(model: Model, reader: Judge, recipe: Recipe, settings: Settings) -> dict[str, Any]:
    texts, took = draw(model, recipe, n=settings.n, length=settings.length)
    found = assess(texts, reader, definition=settings.definition)
    return finite({**asdict(recipe), **took, **found})


def recorded(model: Model, reader: Judge, settings: Settings) -> dict[str, Any]:
    wanted = asdict(replace(settings, model="", judge="", out=""))
    wanted = {name: value for name, value in wanted.items() if name not in ("model", "judge", "out", "seed")}
    return record(model, seed=settings.seed, settings=wanted, data={"samples": settings.n}, judge=reader.about)


def save(points: Sequence[dict[str, Any]], kept: dict[str, Any], settings: Settings, *, partial: bool) -> None:
    content = {"frontier": list(points), "definition": settings.definition, "partial": partial, "record": kept}
    out = Path(settings.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(ending(out, "json"), json.dumps(content) + "\n")


def ending(out: Path, kind: str) -> Path:
    return out.with_name(f"{out.name}.{kind}")


def figure_class() -> "type[Figure]":
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("drawing needs matplotlib: pip install 'unmask[eval]'.") from None
    return Figure


def drawn(points: Sequence[dict[str, Any]], definition: str) -> "Figure":
    """Perplexity by calls, by time, and by entropy: low and to the left, and the entropy of text, is good."""
    figure = figure_class()(figsize=(14, 4.5), layout="constrained")
    from matplotlib import ticker  # there, for the figure is

    panels = figure.subplots(1, 3, sharey=True)
    curves: dict[str, list[dict[str, Any]]] = {}
    for one in points:
        curves.setdefault(f"{one['sampler']}, T = {one['temperature']:g}", []).append(one)
    for number, (name, some) in enumerate(curves.items()):
        colour, mark = COLOURS[number % len(COLOURS)], "osD^v"[number // len(COLOURS) % 5]
        values = [one["generative_perplexity"] for one in some]
        errors = [one["standard_error"] or 0 for one in some]
        places = ("calls", "seconds_per_sample", "entropy")
        for axes, place in zip(panels, places, strict=True):
            at = [one[place]["value"] if place == "entropy" else one[place] for one in some]
            axes.errorbar(at, values, yerr=errors, color=colour, fmt=f"{mark}-", ms=4, lw=1.2, capsize=2, label=name)
    panels[0].set(xlabel="network calls", xscale="log", yscale="log", ylabel=f"generative perplexity ({definition})")
    panels[1].set(xlabel="seconds a sample", xscale="log")
    for axis in (panels[0].xaxis, panels[0].yaxis, panels[1].xaxis):
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(ticker.NullFormatter())
    panels[2].set(xlabel="entropy of a sample, nats")
    panels[2].legend(frameon=False, fontsize=8)
    for axes in panels:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def cells(one: dict[str, Any]) -> tuple[str, ...]:
    """A point in words."""
    return (
        one["sampler"],
        "" if one["steps"] is None else str(one["steps"]),
        f"{one['temperature']:g}",
        f"{one['calls']:,.0f}",
        f"{one['seconds_per_sample']:.3g}",
        f"{one['generative_perplexity']:.2f} ± {one['standard_error'] or 0:.2f}",
        f"{one['entropy']['value']:.3f} ± {one['entropy']['standard_error'] or 0:.3f}",
        f"{one['repetition']['value']:.3f}",
    )


def body(points: Sequence[dict[str, Any]], figure: "Figure") -> str:
    """The picture and its table, as a part of a page."""
    rows = "\n".join(f"<tr>{''.join(f'<td>{html.escape(c)}</td>' for c in cells(one))}</tr>" for one in points)
    heads = "".join(f"<th>{name}</th>" for name in HEAD)
    told = sorted({one["means"] for one in points})
    dull = "; ".join(f"{one['sampler']}: {one['warning']}" for one in points if one["warning"])
    warning = f"<p><strong>{html.escape(dull)}</strong></p>" if dull else ""
    return f"""{svg(figure)}
<p>Perplexity: {html.escape("; ".join(told))}. Error bars over {points[0]["samples"]} samples.</p>
{warning}
<table><tr>{heads}</tr>
{rows}
</table>"""


def svg(figure: "Figure") -> str:
    picture = io.StringIO()
    figure.savefig(picture, format="svg")
    text = picture.getvalue()
    return text[text.index("<svg") :]


def page(points: Sequence[dict[str, Any]], figure: "Figure", kept: dict[str, Any]) -> str:
    """One page that needs nothing else."""
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Quality against cost</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 84rem; margin: 2rem auto; padding: 0 1rem }}
svg {{ width: 100%; height: auto }}
table {{ border-collapse: collapse }}
th, td {{ padding: .25rem .75rem; text-align: right; border-bottom: 1px solid #ddd }}
th:first-child, td:first-child {{ text-align: left }}
pre {{ overflow-x: auto }}
</style>
<h1>Quality against cost</h1>
{body(points, figure)}
<details><summary>Record</summary><pre>{html.escape(json.dumps(kept, indent=2))}</pre></details>
</html>
"""
