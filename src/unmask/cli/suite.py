"""The zero-shot suite of the paper's Table 3, for `unmask evaluate --suite zero-shot`: seven texts, one table."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unmask.cli.table import shown_number
from unmask.evaluation.likelihood import measure, zero_shot
from unmask.evaluation.likelihood.measure import How, Measurement
from unmask.evaluation.likelihood.passes import Tally
from unmask.model.model import Model
from unmask.text.corpus.tokenized import tokenize

EVERY = "zero-shot"  # all texts of the suite
WHY = "not the paper's set because"
HEAD = ("text", "nats per token", "perplexity per token", "per word", "bits/byte", "tokens", "passes", WHY)


def sets_of(names: Sequence[str]) -> list[zero_shot.TextSet]:
    return zero_shot.chosen_sets(() if EVERY in names else tuple(names))


def set_work(model: Model, one: zero_shot.TextSet, how: How, *, data_root: Path | None, limit: int) -> Measurement:
    """The measurement of one text, packed as in the paper unless asked otherwise."""
    texts, source, differs = zero_shot.set_texts(one, data_root)
    data = tokenize(source, texts, model.text_tokenizer(), limit=limit or None)
    work = measure.measurement_of(model, data, replace(how, pack="wrap") if how.pack == "auto" else how)
    about = {"detokenizer": one.detokenizer, "differs": differs, "limit": limit}
    return replace(work, data={**work.data, **about})


def set_result(one: zero_shot.TextSet, work: Measurement, tally: Tally, seconds: float) -> dict[str, Any]:
    differs = work.data["differs"]
    return measure.result(work, tally, seconds=seconds, set=one.name, title=one.title, differs=differs)


def suite_table(results: Sequence[Mapping[str, Any]], missing: Mapping[str, str]) -> Iterator[str]:
    rows = [HEAD, *map(suite_cells, results), *((name, *"------", why) for name, why in missing.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
    yield ""
    yield from sorted({one["means"] for one in results})


def suite_cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    low, high = one["perplexity_interval"]
    error = one["standard_error"]
    return (
        one["set"] + (" (partial)" if one["partial"] else ""),
        f"{one['nats_per_token']:.4f}" + (f" ± {shown_number(error)}" if error != 0 else ""),
        shown_number(one["perplexity"], 2)
        + (f" ({low:.2f} to {high:.2f})" if error != 0 and low is not None else ""),
        shown_number(one["perplexity_per_word"], 2),
        shown_number(one["bits_per_byte"]),
        f"{one['tokens']:,}",
        str(one["passes"]),
        one["differs"],
    )
