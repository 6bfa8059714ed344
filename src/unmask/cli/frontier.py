"""Plot quality against cost: samples of each sampler, number of steps and temperature, under a judge.

    unmask frontier runs/mine --judge gpt2-large --steps 8 32 128 --out runs/mine/frontier
    unmask frontier stories --judge stories-ar --samplers first-hitting --caches interval:every=4 interval:every=16

Writes frontier.json (every point with its error bars, and the record), frontier.png and frontier.html. If it is
stopped, the points so far are kept and marked as partial.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from unmask.cli.flags import DOCUMENT, Document, ModelName, Place, Placing
from unmask.cli.samples import drawn_texts
from unmask.cli.table import write_text
from unmask.evaluation.likelihood.measure import finite
from unmask.evaluation.quality.assessment import assess
from unmask.evaluation.quality.judges import Judge, judge
from unmask.evaluation.record import record
from unmask.model.model import Model
from unmask.sampling.fitting import kind_for, samplers_for
from unmask.sampling.policy import POLICIES
from unmask.sampling.recipe import Recipe, method_for, recipe_record, with_defaults
from unmask.views import frontier
from unmask.views.figure import require_matplotlib
from unmask.views.page import page

OTHERS = ("ancestral", "groups", "confidence")  # compared with a model's default sampler, if the model can use them


@dataclass(frozen=True)
class Settings:
    model: ModelName
    judge: str  # the judge: an autoregressive unmask model, a .gguf or .bin file, or a hub name
    samplers: tuple[str, ...] = ()  # samplers to compare; none: the model's default, ancestral, groups and confidence
    steps: tuple[int, ...] = (8, 32, 128)  # numbers of steps, for samplers that take one
    temperatures: tuple[float, ...] = ()  # temperatures, each tried with every sampler; none: the model's default
    caches: tuple[str, ...] = ()  # caches of stale keys (interval:every=8 ..), each tried beside none; none: no cache
    plain: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False  # ignore the model's default sampling settings
    definition: str = "pooled"  # which generative perplexity to plot: pooled, mean, sliding
    n: int = 32  # samples per point
    length: int | None = None  # tokens per sample; none: the training length
    document: Document = "auto"  # samples begin and end as documents do; auto: if the model was trained on a stream
    seed: int = 0  # random seed
    batch: int = 32  # samples drawn at once; it affects the measured seconds per sample
    out: str = "frontier"  # name of the files to write, without an ending
    place: Placing = field(default_factory=Place)


def run(settings: Settings) -> None:
    model = settings.place.load(settings.model)
    recipes = list(recipes_of(model, settings))
    reader = judge(settings.judge)
    about = frontier_record(model, reader, settings)
    require_matplotlib("eval")  # before the work
    points: list[dict[str, Any]] = []
    try:
        for recipe in recipes:
            points.append(point(model, reader, recipe, settings))
            print("  ".join(frontier.point_cells(points[-1])), file=sys.stderr)
            save_points(points, about, settings, partial=len(points) < len(recipes))
    except KeyboardInterrupt:
        if not points:
            raise
        print("unmask: stopped; the points so far are kept", file=sys.stderr)
    out = Path(settings.out)
    figure = frontier.frontier_figure(points, settings.definition)
    figure.savefig(ending(out, "png"), dpi=150)
    part = frontier.frontier_part(points, figure, about, partial=len(points) < len(recipes))
    write_text(ending(out, "html"), page("Quality against cost", [part]))
    print("\n".join(str(ending(out, kind)) for kind in ("json", "png", "html")))


def recipes_of(model: Model, settings: Settings) -> Iterator[Recipe]:
    """Every recipe to try; a recipe that the model cannot use is an error before anything is drawn."""
    base = Recipe(plain=settings.plain, seed=settings.seed, batch=settings.batch)
    others = [name for name in OTHERS if model.objective.facts.conditionals and name in samplers_for(model.objective)]
    samplers: tuple[str | None, ...] = settings.samplers or (None, *others)  # None: the model's default
    for sampler in samplers:
        kind = kind_for(model.objective, with_defaults(model, replace(base, sampler=sampler)).sampler or "")
        # The model's default is taken as it is, unless it is a grid of its objective.
        stepped = kind.budget is not None and (sampler is not None or kind is POLICIES[model.objective.facts.sampler])
        for steps in settings.steps if stepped else (None,):
            for temperature in settings.temperatures or (None,):
                for cache in (None, *settings.caches):
                    recipe = replace(base, sampler=sampler, steps=steps, temperature=temperature, cache=cache)
                    method_for(model, recipe)
                    yield recipe


def point(model: Model, reader: Judge, recipe: Recipe, settings: Settings) -> dict[str, Any]:
    document = DOCUMENT[settings.document]
    texts, cost = drawn_texts(model, recipe, n=settings.n, length=settings.length, document=document)
    quality = assess(texts, reader, definition=settings.definition)
    return finite({**recipe_record(model, recipe), **cost, **quality})


def frontier_record(model: Model, reader: Judge, settings: Settings) -> dict[str, Any]:
    wanted = asdict(replace(settings, model="", judge="", out=""))
    wanted = {name: value for name, value in wanted.items() if name not in ("model", "judge", "out", "seed")}
    return record(model, seed=settings.seed, settings=wanted, data={"samples": settings.n}, judge=reader.about)


def save_points(
    points: Sequence[dict[str, Any]], about: dict[str, Any], settings: Settings, *, partial: bool
) -> None:
    content = {"frontier": list(points), "definition": settings.definition, "partial": partial, "record": about}
    out = Path(settings.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(ending(out, "json"), json.dumps(content) + "\n")


def ending(out: Path, kind: str) -> Path:
    return out.with_name(f"{out.name}.{kind}")
