"""Two results, for `unmask report A.json B.json`: whether they differ, and what could explain it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unmask.cli.table import read_result
from unmask.errors import UserError
from unmask.evaluation.comparison import record_differences, results, verdict


def print_comparison(paths: tuple[Path, Path], *, as_json: bool) -> None:
    first, second = (results(read_result(path), str(path)) for path in paths)
    shared = [name for name in first if name in second]
    if not shared:
        raise UserError(f"the files have no result in common: {', '.join(first)} and {', '.join(second)}.")
    if as_json:
        print(json.dumps({name: as_object(first[name], second[name]) for name in shared}, ensure_ascii=False))
        return
    for name in shared:
        for line in comparison_lines(name if len(shared) > 1 else "", first[name], second[name]):
            print(line)


def as_object(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    outcome = verdict(first, second)
    numbers = (
        None if outcome is None else {**asdict(outcome), "difference": outcome.difference, "beyond": outcome.beyond}
    )
    changed = record_differences(first["record"], second["record"])
    return {"verdict": numbers, "differences": [asdict(difference) for difference in changed]}


def comparison_lines(name: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[str]:
    outcome = verdict(first, second)
    title = f"{name}: " if name else ""
    if outcome is None:
        yield f"{title}the results measure different quantities"
    else:
        yield f"{title}{outcome.name} {outcome.first:.4f} and {outcome.second:.4f}: {outcome.sentence()}"
    changed = record_differences(first["record"], second["record"])
    if not changed:
        yield "the set-ups are the same"
        return
    yield "differences in the set-up, most important first:"
    for change in changed:
        yield f"  {change.name}: {short_value(change.first)} -> {short_value(change.second)}   [{change.effect}]"


def short_value(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 48 else f"{text[:20]}…{text[-20:]}"
