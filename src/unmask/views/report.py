"""The report of a run: its learning curves, results, samples as they emerge and its record, as parts of a page."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from unmask.sampling.tasks.continuation import Sample
from unmask.text.tokens.tokenizer import Tokenizer
from unmask.training import metrics
from unmask.views import curves, frontier
from unmask.views.film import film
from unmask.views.film import html as film_page
from unmask.views.page import Frame, Part


def learning(folder: Path) -> list[Part]:
    """The learning curves, if the folder is a run's."""
    return [curves.of_run(folder)] if (folder / metrics.FILE).is_file() else []


def of_frontier(content: Mapping[str, Any]) -> Part:
    """What `unmask frontier` saved."""
    points = content["frontier"]
    drawn = frontier.frontier_figure(points, content["definition"])
    return frontier.frontier_part(
        points, drawn, content["record"], partial=content["partial"], title="Quality against cost"
    )


def of_result(title: str, lines: Iterable[tuple[str, str]], record: Mapping[str, Any]) -> Part:
    return Part(title, facts=list(lines), record=record)


def of_samples(samples: Iterable[Sample], tokenizer: Tokenizer) -> Part:
    """Samples, each a small page with a play button."""
    return Part("Samples, as they emerge", frames=[frame(sample, tokenizer) for sample in samples])


def frame(sample: Sample, tokenizer: Tokenizer) -> Frame:
    caption = f"{sample.sampler}: {sample.law}. {sample.calls} forward passes, seed {sample.seed}, row {sample.row}."
    shown = film_page(film(tokenizer, sample.tokens, sample.trace, caption=caption))
    height = 16 + 2 * (len(sample.text) // 70 + sample.text.count("\n"))
    return Frame(f"sample {sample.row}", shown, height)


def of_record(record: Mapping[str, Any]) -> Part:
    return Part("Record", record=record, opened=True)
