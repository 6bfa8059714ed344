"""Answers to prompts, checked one by one: shares with error bars, beside those of the reference answers.

exact    the answer is the reference
values   of the values in a prompt such as `name : Blue Spice | food : French`, how many the answer contains
steps    a countdown, `58,11,80,83,81` answered by `80-58=22,22/11=2,83-2=81`: each number is used at most once,
         every equation holds, and the last one gives the target
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unmask.errors import UserError, unknown

STEP = re.compile(r"(\d{1,9})([-+*/])(\d{1,9})=(\d{1,9})")
SHOWN = 3  # answers in a result


@dataclass(frozen=True)
class Answered:
    """A prompt, the answer of the data, and the answer of a model."""

    given: str
    reference: str
    answer: str


def exact(given: str, reference: str, answer: str) -> dict[str, float]:
    return {"exact": float(answer.strip() == reference.strip())}


def values(given: str, reference: str, answer: str) -> dict[str, float]:
    """Case and spaces do not count; `yes` and `no` are answers to their keys and not looked for."""
    looked_for = [plain(pair.partition(":")[2]) for pair in given.split("|")]
    looked_for = [value for value in looked_for if value not in ("", "yes", "no")]
    right = [value in plain(answer) for value in looked_for]
    return {"values": float(np.mean(right))} if right else {}


def plain(text: str) -> str:
    return "".join(text.casefold().split())


def steps(given: str, reference: str, answer: str) -> dict[str, float]:
    *numbers, target = [int(one) for one in re.findall(r"\d{1,9}", given)] or [0]
    left, form, true, last = list(numbers), True, 0, None
    parts = answer.strip().split(",")
    for part in parts:
        match = STEP.fullmatch(part)
        if match is None:
            form = False
            continue
        a, b, last = int(match[1]), int(match[3]), int(match[4])
        true += holds(a, match[2], b, last)
        for operand in (a, b):
            form = form and operand in left
            if operand in left:
                left.remove(operand)
        left.append(last)
    right = form and true == len(parts) and last == target
    return {"form": float(form), "equations": true / len(parts), "right": float(right)}


def holds(a: int, sign: str, b: int, c: int) -> bool:
    """Whether a sign b = c, exactly."""
    return {"+": a + b == c, "-": a - b == c, "*": a * b == c, "/": b != 0 and b * c == a}[sign]


CHECKS: Mapping[str, Callable[[str, str, str], dict[str, float]]] = {"exact": exact, "values": values, "steps": steps}


def assess_answers(answered: Sequence[Answered], check: str) -> dict[str, Any]:
    """The means of a check over answers, and over the references in their place."""
    if check not in CHECKS:
        raise unknown("check", check, CHECKS)
    if len(answered) < 2:
        raise UserError(f"shares of answers need at least 2 prompts, for their error bars; saw {len(answered)}.")
    run = CHECKS[check]
    return {
        "check": check,
        "answers": len(answered),
        "empty": sum(not one.answer.strip() for one in answered),
        "shares": means([run(one.given, one.reference, one.answer) for one in answered]),
        "of_references": means([run(one.given, one.reference, one.reference) for one in answered]),
        "examples": [{"given": one.given, "answer": one.answer} for one in answered[:SHOWN]],
    }


def means(rows: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """The mean of each number with its standard error over rows."""
    columns: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return {name: mean_of(column) for name, column in columns.items()}


def mean_of(column: Sequence[float]) -> dict[str, float]:
    spread = float(np.std(column, ddof=1)) if len(column) > 1 else float("nan")
    return {"value": float(np.mean(column)), "standard_error": spread / len(column) ** 0.5}
