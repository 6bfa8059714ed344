"""The results of trials: the scores of every seed, their summary, and the link to the best model."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask import settings as toml
from unmask.errors import UserError
from unmask.files import writing
from unmask.training import state
from unmask.training.folder import SETTINGS
from unmask.training.scores import SCORES, chosen_scores
from unmask.training.split import Labelled
from unmask.training.tuning import Tuning
from unmask.untrusted import read_object

RESULT, MODEL = "result.json", "model"


def names_of(asked: Tuning, data: Labelled) -> tuple[str, ...]:
    """The scores to report."""
    own = data.benchmark.metrics if data.benchmark is not None else ()
    return chosen_scores(asked.metrics or own, data.answer.kind)


def result_of(path: Path) -> dict[str, Any]:
    result = read_object(path)
    valid = result.get("valid")
    scores = (
        [isinstance(valid[name], int | float) for name in valid if name in SCORES] if isinstance(valid, dict) else []
    )
    if type(result.get("seed")) is not int or not scores or not all(scores):
        raise UserError(f"{path} is damaged: it holds no seed or no scores. Remove it, and the trial is done again.")
    return result


def results_of(asked: Tuning) -> list[dict[str, Any]]:
    """The results of the trials that are over, by seed."""
    places = [Path(asked.out) / f"seed-{asked.seed + i}" / RESULT for i in range(asked.seeds)]
    return [result_of(path) for path in places if path.is_file()]


def point_to_best(asked: Tuning) -> None:
    """Link to the model of the seed with the best validation score, the first of equal ones."""
    name = next(iter(toml.read_toml(Path(asked.out) / SETTINGS, Tuning()).metrics), None)
    best: dict[str, Any] | None = None
    for one in results_of(asked):
        main = name or next(key for key in one["valid"] if key in SCORES)
        if best is None or SCORES[main].better(one["valid"][main], best["valid"][main]):
            best = one
    if best is not None:
        with writing(Path(asked.out)):
            state.point_to(Path(asked.out) / "best", Path(asked.out) / f"seed-{best['seed']}" / MODEL)


def summary_of(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean, standard deviation and range over the seeds of every score, by split."""
    summary: dict[str, Any] = {}
    for split in ("valid", "test"):
        names = [name for name in results[0].get(split, {}) if name not in ("texts", "cut")]
        for name in names:
            values = [float(one[split][name]) for one in results]
            summary.setdefault(split, {})[name] = {
                "mean": statistics.fmean(values),
                "deviation": statistics.stdev(values) if len(values) > 1 else None,
                "lowest": min(values),
                "highest": max(values),
                "values": values,
            }
    return summary
