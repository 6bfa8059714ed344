"""Measure the zero-shot suite of the paper's Table 3: one model, seven texts, one table.

unmask suite kuleshov-group/mdlm-owt                      from the hub
unmask suite runs/mine --data-root benchmarks/ --rows 64  from files; docs/how/evaluate.md says which
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from unmask.cli.flags import Place, Placing
from unmask.cli.table import number, watched, write_text
from unmask.errors import UserError
from unmask.evaluation.likelihood import measure, zero_shot
from unmask.evaluation.likelihood.measure import How
from unmask.model.model import Model
from unmask.text.corpus.tokenized import tokenized

WHY = "not the paper's set because"
HEAD = ("text", "nats per token", "perplexity per token", "per word", "bits/byte", "tokens", "passes", WHY)


@dataclass(frozen=True)
class Settings:
    model: Annotated[str, tyro.conf.Positional]
    """The folder of a checkpoint or of a run, or a name on the hub."""
    sets: tuple[str, ...] = ()
    """Texts: ptb, wikitext, lm1b, lambada, ag_news, pubmed, arxiv; none: all."""
    data_root: Path | None = None
    """Folder with the texts; none: the variable UNMASK_DATA, else data/, else the hub."""
    how: Annotated[How, tyro.conf.arg(name="")] = field(default_factory=lambda: How(pack="wrap"))
    documents: int = 0
    """Documents to read per set; 0: all."""
    format: Literal["text", "markdown", "json"] = "text"
    """Format of the printed table."""
    out: Path | None = None
    """Write the JSON object to a file, for `unmask compare`."""
    place: Placing = field(default_factory=Place)


def run(settings: Settings) -> None:
    sets = zero_shot.chosen_sets(settings.sets)
    model = settings.place.load(settings.model)
    results, missing = [], {}
    for one in sets:
        try:
            results.append(measured_set(model, one, settings))
        except UserError as error:
            missing[one.name] = str(error)
        finally:
            if settings.out and results:
                write_text(settings.out, json.dumps(suite_object(results, missing)) + "\n")
    if not results:
        raise UserError("no text of the suite could be measured: " + "; ".join(missing.values()))
    print(suite_table(results, missing, settings.format))


def measured_set(model: Model, one: zero_shot.TextSet, settings: Settings) -> dict[str, Any]:
    texts, source, differs = zero_shot.set_texts(one, settings.data_root)
    data = tokenized(source, texts, model.text_tokenizer(), limit=settings.documents or None)
    work = measure.measurement_of(model, data, settings.how)
    about = {"detokenizer": one.detokenizer, "differs": differs, "limit": settings.documents}
    work = replace(work, data={**work.data, **about})
    tally, seconds = watched(work, title=one.name)
    return measure.result(work, tally, seconds=seconds, set=one.name, title=one.title, differs=differs)


def suite_object(results: Sequence[dict[str, Any]], missing: dict[str, str]) -> dict[str, Any]:
    return {"results": list(results), "missing": missing}


def suite_table(results: Sequence[dict[str, Any]], missing: dict[str, str], form: str) -> str:
    """The table as text, markdown or json."""
    if form == "json":
        return json.dumps(suite_object(results, missing), ensure_ascii=False)
    rows = [suite_cells(one) for one in results] + [
        (name, "-", "-", "-", "-", "-", "-", why) for name, why in missing.items()
    ]
    if form == "markdown":
        return "\n".join(map(line, [HEAD, ["---"] * len(HEAD), *rows]))
    widths = [max(len(row[i]) for row in [HEAD, *rows]) for i in range(len(HEAD))]
    table = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in [HEAD, *rows]]
    return "\n".join([*(row.rstrip() for row in table), "", *sorted({one["means"] for one in results})])


def line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def suite_cells(one: dict[str, Any]) -> tuple[str, ...]:
    low, high = one["perplexity_interval"]
    error = one["standard_error"]
    return (
        one["set"] + (" (partial)" if one["partial"] else ""),
        f"{one['nats_per_token']:.4f}" + (f" ± {number(error)}" if error != 0 else ""),
        number(one["perplexity"], 2) + (f" ({low:.2f} to {high:.2f})" if error != 0 and low is not None else ""),
        number(one["perplexity_per_word"], 2),
        number(one["bits_per_byte"]),
        f"{one['tokens']:,}",
        str(one["passes"]),
        one["differs"],
    )
