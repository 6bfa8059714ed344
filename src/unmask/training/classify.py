"""Fine-tuning for classification as a whole: `unmask.classify`, which `unmask classify` runs too."""

import json
from pathlib import Path
from typing import Any

from unmask.evaluation.record import record
from unmask.files import write_whole
from unmask.processes.signals import stopping
from unmask.settings import describe_settings
from unmask.text.corpus.manifest import loss_lines
from unmask.training.protocols import usual_settings, with_flat
from unmask.training.results import RESULT, names_of, results_of, summary_of
from unmask.training.split import repeat_lines
from unmask.training.trials import Trial, TrialLog, open_trials, parts_line, trials
from unmask.training.tuning import Tuning


def classify(
    model: str | Path,
    data: str | Path,
    out: str | Path,
    *,
    protocol: str = "auto",
    guide: bool = False,
    resume: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """Fine-tune a model to classify texts as `unmask classify` does; returns what it writes to result.json.

        found = unmask.classify("stories", "reviews.csv", "runs/mood", epochs=3, seeds=3)
        found["valid"]["accuracy"]["mean"]
        unmask.Predictor.load("runs/mood").predict(["What a day!"])[0].label

    The settings are the flags of `unmask classify --help`, with _ for -.
    """
    usual = usual_settings(protocol, str(data), guide=guide)
    given = {"model": str(model), "data": str(data), "out": str(out), "guide": guide, **usual, **settings}
    asked = with_flat(Tuning(), given)
    with stopping() as stop:
        result = run_trials(asked, TrialLog(quiet=quiet), resume=resume, stop=stop)
    if result is None:
        raise KeyboardInterrupt
    return result


def run_trials(asked: Tuning, log: TrialLog, *, resume: bool, stop: list[int]) -> dict[str, Any] | None:
    """A whole run; returns its result, or None if it was stopped."""
    with open_trials(asked, log.say, resume=resume) as (asked, model, data):
        introduce(Trial(asked, model, data, 0, log, stop), log)
        for _ in trials(asked, model, data, log, stop):
            pass
        results = results_of(asked)
        if len(results) < asked.seeds:
            return None
        scores: dict[str, Any] = {
            "task": data.name,
            "labels": list(data.answer.labels),
            "metric": names_of(asked, data)[0],
        }
        scores |= {**summary_of(results), "trials": results}
        whole = record(
            model, seed=asked.seed, settings=describe_settings(asked), data={"name": data.name, "sha256": data.sha256}
        )
        write_whole(Path(asked.out) / RESULT, json.dumps({**whole, **scores}, indent=2) + "\n")
        return {**whole, **scores}


def introduce(trial: Trial, log: TrialLog) -> None:
    """Say what is learned from which texts, and what is odd about them."""
    asked, model, data = trial.asked, trial.model, trial.data
    kind = (
        f"{len(data.answer.labels)} labels: {', '.join(data.answer.labels[:10])}"
        if data.answer.labels
        else "a number"
    )
    log.say(f"{data.name}: {kind}; {parts_line(trial.parts)}")
    published = {} if data.benchmark is None else data.benchmark.published
    for name, count in published.items():
        if (seen := len(data.splits.get(name, ()))) not in (0, count):
            log.say(f"warning: the published {data.name} has {count:,} {name} texts, this one {seen:,}.")
    texts = [text for some in data.splits.values() for one in some for text in one.parts]
    for line in (*loss_lines({"replaced": model.text_tokenizer().replaced(texts)}), *repeat_lines(data)):
        log.say(f"warning: {line}.")
    trained = "a head on" if asked.guide else "all of"
    size = f"{asked.seeds} x {trial.total:,} steps of {asked.tune.batch} texts"
    log.say(f"{size}, {trained} {model.num_parameters:,} parameters")
