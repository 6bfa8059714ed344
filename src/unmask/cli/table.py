"""Shared by the verbs that measure: a progress bar, and results printed as a table or written as JSON."""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from unmask.errors import UserError
from unmask.evaluation.likelihood import measure
from unmask.evaluation.likelihood.measure import Measurement
from unmask.evaluation.likelihood.passes import Tally, summary
from unmask.files import write_whole
from unmask.processes.cluster import Cluster
from unmask.processes.team import Team
from unmask.text.corpus.manifest import loss_lines
from unmask.untrusted import MEGABYTE, parse_json, read_text

LEFT = {"tokens_dropped": "tokens", "rows_left_out": "rows"}


def measure_watched(
    work: Measurement, *, title: str = "", team: Team | None = None, cluster: Cluster | None = None
) -> tuple[Tally, float]:
    """Run a measurement with a progress bar on standard error (rank 0's); Ctrl-C keeps the results so far."""
    began, tally, now = time.perf_counter(), None, ""
    console = Console(file=sys.stderr)
    quiet = not console.is_terminal or (team is not None and team.rank > 0)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[now]}"))
    with Progress(*columns, console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task(title or "pass 1", total=None, now=now)
        try:
            for tally in measure.run_measurement(work, team, cluster):
                if tally.complete:
                    likelihood = summary(tally)
                    now = f"{likelihood.nats_per_token:.4f} ± {likelihood.standard_error:.4f}"
                name = f"{title} pass {len(tally.nats)}".strip()
                bar.update(task, description=name, completed=tally.batches, total=tally.of, now=now)
        except KeyboardInterrupt:
            if tally is None:
                raise
            console.print("unmask: stopped; these are the results so far", markup=False)
    if tally is None:
        raise UserError("nothing was measured.")
    return tally, time.perf_counter() - began


def likelihood_lines(answer: dict[str, Any]) -> Iterator[tuple[str, str]]:
    error = answer["standard_error"]
    around = "" if error == 0 else f" ± {shown_number(error)}"
    yield "nats per token", f"{answer['nats_per_token']:.4f}{around}{between(answer['interval'], 4, error)}"
    if answer["perplexity"] is not None:
        yield "perplexity", f"{answer['perplexity']:.2f} per token{between(answer['perplexity_interval'], 2, error)}"
    if answer["perplexity_per_word"] is not None:
        yield "perplexity", f"{answer['perplexity_per_word']:.2f} per word (between white space)"
    if answer["bits_per_byte"] is not None:
        yield "bits per byte", f"{answer['bits_per_byte']:.4f}"
    if answer["at_least"] is not None:
        error_below = shown_number(answer["at_least_error"])
        yield (
            "at least",
            f"{answer['at_least']:.4f} ± {error_below} nats per token (TUBE, in expectation; heavy tails)",
        )
    if answer["jensen_gap"] is not None:
        yield "Jensen gap", f"{answer['jensen_gap']:.4f} nats per token between the mean of orders and their mixture"
    yield "this is", answer["means"]
    if error != 0:
        alone = (
            "" if answer["passes"] > 1 else ", at most: one pass cannot separate it from the variance between rows"
        )
        yield "error", f"± {shown_number(error)}: Monte Carlo standard error{alone}"
    with_text = shown_number(answer["data_standard_error"])
    yield "error of text", f"± {with_text}: standard error, Monte Carlo and choice of text"
    data = answer["record"]["data"]
    left = [f"{data[key]:,} {what}" for key, what in LEFT.items() if data.get(key)]
    yield (
        "scored",
        f"{answer['tokens']:,} tokens, {answer['words']:,.0f} words, {answer['bytes']:,.0f} bytes, "
        f"{answer['rows']:,} rows ({answer['record']['settings']['pack']})"
        + (f"; not scored: {', '.join(left)}" if left else ""),
    )
    for line in loss_lines({"replaced": data.get("replaced", {})}):
        yield "letters", line
    yield "passes", f"{answer['passes']} in {answer['seconds']:.1f} s, estimator {answer['estimator']}"
    if answer["partial"]:
        yield "PARTIAL", "stopped before every row was scored once; the numbers are of the scored rows"


def between(interval: list[float | None], digits: int, error: float | None) -> str:
    low, high = interval
    if error == 0 or low is None or high is None:
        return ""
    return f"  (95 %: {low:.{digits}f} to {high:.{digits}f})"


def shown_number(value: float | None, digits: int = 4) -> str:
    return "?" if value is None else f"{value:.{digits}f}"


def accuracy_lines(answer: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield (
        "accuracy",
        f"{answer['accuracy']:.4f} ± {shown_number(answer['standard_error'])} over {answer['pairs']:,} pairs",
    )
    yield "this is", answer["means"]
    for group in answer["groups"]:
        yield group["name"], f"{group['accuracy']:.4f} ± {shown_number(group['standard_error'])} ({group['pairs']:,})"


def quality_lines(answer: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The lines of the quality of samples."""
    for name, one in answer.get("definitions", {}).items():
        error = one["standard_error"]
        chosen = " <-" if name == answer["definition"] else ""
        value = f"{one['perplexity']:.2f} ± {shown_number(error)}{between(one['interval'], 2, error)}{chosen}"
        yield f"gen. perplexity, {name}", value
    if "means" in answer:
        yield f"'{answer['definition']}' is", answer["means"]
    real = answer["entropy_of_training_text"]
    yield "entropy", plus(answer["entropy"]) + " nats per sample" + (f"; training text: {real:.3f}" if real else "")
    yield "repetition", f"{plus(answer['repetition'])} of 4-grams occur earlier in the sample"
    yield "self-overlap", f"{plus(answer['self_overlap'])} of 4-grams are in another sample too"
    yield "distinct 1, 2, 3, 4", ", ".join(plus(one) for one in answer["distinct"].values())
    if answer["mauve"] is not None:
        yield "MAUVE", f"{answer['mauve']:.4f}: {answer['mauve_is']}; no error bar"
    if answer["copies"]:
        copied = answer["copies"]
        yield "copied", f"{plus(copied['share'])} of words are in runs of 8 or more copied from the training text"
        yield (
            "longest copy",
            f"{plus(copied['longest'], 1)} words per sample; longest of all {copied['most']}: {copied['text']!r:.80}",
        )
    empty = answer["empty_samples"]
    yield (
        "read",
        f"{answer['samples']} samples, {answer['tokens']:,} units ({answer['units']}), {answer['cut']:,} cut off"
        + (f"; {empty} samples have fewer than two and no perplexity" if empty else ""),
    )
    if answer["drawn"]:
        drawn = answer["drawn"]
        seconds = f"{drawn['seconds_per_sample']:.3f} s per sample"
        yield "drawn by", f"{drawn['sampler']}: {drawn['calls']:,.0f} forward passes, {seconds}"
    yield "error bars", "standard errors over samples"


def answer_lines(answer: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The lines of checked answers."""
    for name, one in answer["shares"].items():
        yield name, f"{plus(one)} of {answer['answers']} answers; references: {plus(answer['of_references'][name])}"
    if answer["empty"]:
        yield "empty", f"{answer['empty']} answers"
    for one in answer["examples"]:
        yield f"{one['given']:.40}", f"{one['answer']:.100}"
    drawn = answer["drawn"]
    yield "drawn by", f"{drawn['sampler']}: {drawn['calls']:,.0f} forward passes"
    yield "error bars", "standard errors over prompts"


def sequence_lines(answer: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if "spectra" in answer:
        shares = answer["composition"].items()
        yield "letters", "  ".join(f"{one} {s['samples']:.3f} ({s['held_out']:.3f})" for one, s in shares)
        for one in answer["spectra"]:
            line = f"{shown_number(one['divergence'])} bits; held-out pieces as long: {shown_number(one['floor'])}"
            yield f"{one['k']}-mers", f"Jensen-Shannon divergence {line}"
        yield "duplicates", f"{answer['duplicates']:.3f} of the samples"
        which = f"{answer['train']}" + (f", split {answer['split']}" if answer["split"] else "")
        yield "read", f"{answer['samples']} sequences, {answer['letters']:,} letters; in brackets: those of {which}"
    if "molecules" in answer:
        line = answer["molecules"]
        new = "" if line["new"] is None else f", {line['new']:.3f} of these are not in the training text"
        yield "molecules", f"{line['valid']:.3f} are valid, {line['distinct']:.3f} of these are distinct{new}"


def plus(one: dict[str, Any], digits: int = 3) -> str:
    error = one["standard_error"]
    return f"{one['value']:.{digits}f} ± {'?' if error is None else f'{error:.{digits}f}'}"


def deliver(answer: dict[str, Any], lines: Iterable[tuple[str, str]], *, as_json: bool, out: Path | None) -> None:
    """Print an answer as a table or as one object, and write the object to a file if asked for."""
    text = json.dumps(answer, ensure_ascii=False)
    if out:
        write_text(out, text + "\n")
    if as_json:
        print(text)
        return
    rows = list(lines)
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


def write_text(path: Path, text: str) -> None:
    write_file(path, text.encode())


def write_file(path: Path, content: bytes) -> None:
    """Write a file of results whole or not at all; a device or a FIFO is written to directly."""
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
        elif not path.parent.is_dir():
            raise UserError(f"cannot write {path}: there is no folder {path.parent}.")
        else:
            write_whole(path.resolve(), content)  # a link stays, its target is replaced
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}.") from None


def read_result(path: Path) -> Any:
    """The content of a JSON file of results, in which a number may be NaN."""
    return parse_json(read_text(path, limit=256 * MEGABYTE), str(path), strict=False)
