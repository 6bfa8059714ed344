"""What tuning does to an encoder: its bound, its skill as a masked language model, and what its vectors hold.

    python experiments/encoders.py my_bert runs/mdlm runs/mlm --text held_out.txt --documents line --out result.json
    python experiments/encoders.py my_bert runs/mdlm --text held_out.txt --probe SST-2 MRPC --data-root DATA

For each model, on the same rows: the any-order bound in nats per token; the share of hidden tokens whose most likely
prediction is right, with 15 % of each row hidden, all of them masks; and with --probe the dev score of a logistic
regression on the mean of the last hidden states, of networks that are not tuned for the task.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from torch import Tensor

from unmask.diffusion.clean import CleanRows
from unmask.diffusion.rows import forbid, rows_where, spread
from unmask.errors import UserError
from unmask.evaluation.likelihood import measure
from unmask.evaluation.likelihood.estimators import Estimator
from unmask.evaluation.likelihood.measure import How, Measurement
from unmask.evaluation.likelihood.passes import summary
from unmask.model.answer import Answer
from unmask.model.checkpoint import load
from unmask.model.model import Model
from unmask.model.predictor import Predictor
from unmask.model.reading import Reading
from unmask.text.corpus.benchmarks import Benchmark, benchmark_of, unknown_data
from unmask.text.corpus.documents import FileLayout
from unmask.text.corpus.examples import Example
from unmask.text.corpus.tokenized import read_documents
from unmask.training.scores import scores_of

PENALTY = 1.0  # of the squared weights of the probe, over standardised features


@dataclass(frozen=True)
class Settings:
    models: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Checkpoints to compare."""
    text: str
    """Held-out text."""
    documents: str = "auto"
    """Unit in .txt: file, line, paragraph."""
    length: int = 0
    """Tokens per row, the same for every model; 0: that of each."""
    passes: int = 4
    """Passes over each row."""
    share: float = 0.15
    """Share of a row's tokens that is hidden for the accuracy."""
    seed: int = 0
    """Random seed of both."""
    probe: tuple[str, ...] = ()
    """Tasks of GLUE for a linear probe."""
    data_root: Path = Path("data")
    """Folder of GLUE's files."""
    rows: int = 1200
    """Training texts of a probe."""
    out: Path | None = None
    """Write everything as JSON."""


@dataclass(frozen=True)
class Hits(Estimator):
    """Whether hidden tokens are predicted right; weighted: the mean over all tokens is that over hidden ones."""

    share: float  # of the tokens that are hidden
    name = "hits"
    likelihood = False

    @property
    def means(self) -> str:
        return f"share of right predictions, {self.share:.0%} hidden"

    def nats(self, network: Any, clean: CleanRows) -> Tensor:
        x0, u, mask, free = clean.x0, clean.noise.u, clean.mask, clean.free.sum(1)
        count = (self.share * free).round().long().clamp(min=1)
        rank = u.masked_fill(~clean.free, torch.inf).argsort(1).argsort(1)
        hidden = (rank < count[:, None]) & clean.free
        rows = rows_where(hidden)
        logits = forbid(network(torch.where(hidden, mask, x0), u.new_zeros(len(x0)).float(), rows), mask)
        right = (logits.argmax(1) == x0.flatten()[rows]).double()
        return spread(right, rows, x0) * (free / count)[:, None]


def measured(work: Measurement) -> dict[str, Any]:
    *_, tally = measure.run_measurement(work)
    found = summary(tally, by_document=work.how.pack == "rows")
    return {
        "mean": found.nats_per_token,
        "monte_carlo_error": found.standard_error,
        "data_error": found.data_standard_error,
        "tokens": found.tokens,
        "rows": found.rows,
        "passes": found.passes,
        "means": found.means,
    }


def vectors(predictor: Predictor, examples: Sequence[Example]) -> Tensor:
    """The mean hidden state of each text; of a pair |u − v| and uv."""

    def of(texts: Sequence[str]) -> Tensor:
        rows, _ = predictor.encode(texts)
        found = torch.zeros(len(rows), predictor.model.spec.width)
        order = sorted(range(len(rows)), key=lambda i: rows[i].size)
        for low in range(0, len(order), 64):
            some = order[low : low + 64]
            with torch.no_grad():
                found[some] = predictor.vectors(predictor.batch([rows[i] for i in some]))
        return found

    if examples[0].pair is None:
        return of([one.text for one in examples])
    first, second = of([one.text for one in examples]), of([str(one.pair) for one in examples])
    return torch.cat([(first - second).abs(), first * second], 1)


def fitted(x: Tensor, y: Tensor, classes: int) -> Tensor:
    """The weights of a logistic regression with a penalty, by L-BFGS."""
    weights = torch.zeros(x.shape[1] + 1, classes, dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([weights], max_iter=300, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        search.zero_grad()
        loss = F.cross_entropy(with_one(x) @ weights, y, reduction="sum") + PENALTY * weights[:-1].square().sum()
        loss.backward()
        return loss

    search.step(closure)
    return weights.detach()


def with_one(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)


def task_of(name: str) -> Benchmark:
    """A task for the probe."""
    found = benchmark_of(name)
    if found is None:
        raise unknown_data(name)
    if found.number:
        raise UserError(f"the probe is a classifier, and {found.name} has scores, not classes: use unmask classify.")
    return found


def probed(model: Model, task: str, settings: Settings) -> dict[str, float]:
    """Dev scores of a linear probe on the first training texts of a task."""
    named = task_of(task)
    splits = named.splits(settings.data_root)
    train, dev = splits["train"][: settings.rows], splits["valid"]
    labels = tuple(sorted({one.label for one in train}))
    predictor = Predictor(model, Answer(labels), Reading(length=128, pool="mean")).eval()
    x, z = (vectors(predictor, some).double() for some in (train, dev))
    y, true = (torch.tensor([labels.index(one.label) for one in some]) for some in (train, dev))
    mean, deviation = x.mean(0), x.std(0).clamp(min=1e-6)
    weights = fitted((x - mean) / deviation, y, len(labels))
    guess = (with_one((z - mean) / deviation) @ weights).argmax(1)
    return scores_of(named.metrics, true.numpy(), guess.numpy())


def of_model(folder: str, settings: Settings) -> dict[str, Any]:
    model, began = load(folder), time.process_time()
    data = read_documents(settings.text, model.text_tokenizer(), layout=FileLayout(settings.documents))
    how = How(pack="rows", length=settings.length, passes=settings.passes, seed=settings.seed)
    work = measure.measurement_of(model, data, how)
    found = {
        "model": folder,
        "objective": model.objective.name,
        "text": dict(work.data),
        "bound": measured(work),
        "top1": measured(replace(work, estimator=Hits(settings.share))),
        "probe": {task: probed(model, task, settings) for task in settings.probe},
    }
    return {**found, "cpu_seconds": round(time.process_time() - began, 1)}


def line(found: dict[str, Any]) -> str:
    bound, top1 = found["bound"], found["top1"]
    said = [
        f"{found['model']} ({found['objective']})",
        f"bound {bound['mean']:.3f} ± {bound['data_error']:.3f} nats per token",
        f"perplexity {np.exp(bound['mean']):.2f}",
        f"top-1 {100 * top1['mean']:.1f} ± {100 * top1['data_error']:.1f} %",
    ]
    for task, scores in found["probe"].items():
        said += [f"{task} {name} {value:.4f}" for name, value in scores.items()]
    return ", ".join(said)


def main(settings: Settings) -> None:
    found = []
    for task in settings.probe:
        task_of(task)  # refused before anything is measured
    for folder in settings.models:
        found.append(of_model(folder, settings))
        print(line(found[-1]), flush=True)
    if settings.out:
        settings.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Settings))
