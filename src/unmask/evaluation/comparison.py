"""Comparing two results: do the numbers differ beyond their error bars, and what in the set-up could be why."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from unmask.errors import UserError

# Each part of a record by what a difference in it does to a number; the first that fits a name decides.
EFFECTS = {
    "model.folder": "none: where the files lie",
    "model.weights": "any: another model",
    "model.tokenizer": "any: other tokens; nats and perplexity per token do not compare, bits per byte do",
    "model.objective": "any: another kind of bound",
    "model.dtype": "small: rounding",
    "model": "any: another model",
    "data.name": "none: where the text lies",
    "data.sha256": "any: other tokens were scored",
    "data": "any: other text, or text cut otherwise",
    "settings.estimator": "any: another quantity, or another error bar",
    "settings.passes": "error bar only",
    "settings.precision": "error bar only",
    "settings.seconds": "error bar only",
    "settings.batch_tokens": "small: rounding",
    "settings": "any: measured otherwise",
    "judge.name": "none: where the judge lies",
    "judge.folder": "none: where the judge lies",
    "judge": "any: another judge; generative perplexities compare under one judge only",
    "seed": "within the error bars",
    "draws": "small, or a bias where draws are coarse",
    "unmask": "any: another version",
    "commit": "any: other code",
    "machine": "small: rounding",
    "processes": "none: who did the work",
}


@dataclass(frozen=True)
class Difference:
    name: str
    first: Any
    second: Any
    effect: str


@dataclass(frozen=True)
class Verdict:
    """A number in two results."""

    name: str
    first: float
    second: float
    error: float  # standard error of the difference
    paired: bool  # whether both scored the same tokens, so that only chance separates them

    @property
    def difference(self) -> float:
        return self.second - self.first

    @property
    def beyond(self) -> bool:
        """Whether the difference is more than 1.96 standard errors."""
        return abs(self.difference) > 1.96 * self.error

    def sentence(self) -> str:
        reach = "chance" if self.paired else "chance and choice of text"
        if self.difference == 0:
            return "equal to the last digit"
        if self.error == 0:
            return f"they differ by {self.difference:+.6g}, and neither has an error"
        size = abs(self.difference) / self.error
        word = "beyond" if self.beyond else "within"
        return f"they differ by {self.difference:+.4f}, {size:.1f} standard errors of {reach}: {word} the error bars"


def results(content: Any, where: str) -> dict[str, Mapping[str, Any]]:
    """The results in a file, by name: one, or those of a suite."""
    found = content.get("results", [content]) if isinstance(content, Mapping) else []
    if not found or any(not isinstance(one, Mapping) or "record" not in one for one in found):
        raise UserError(f"{where} holds no result with a record. Write one with --json or --out.")
    return {str(one.get("set", "result")): one for one in found}


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    """Where two records differ, what matters most first."""
    a, b = dict(flat(first)), dict(flat(second))
    names = [name for name in a | b if a.get(name) != b.get(name)]
    found = [Difference(name, a.get(name), b.get(name), effect(name)) for name in names]
    weights = ("any", "small", "within", "error bar", "none")
    return sorted(found, key=lambda d: next(i for i, word in enumerate(weights) if d.effect.startswith(word)))


def effect(name: str) -> str:
    """What a difference in this part of the record can do."""
    parts = name.split(".")
    for size in range(len(parts), 0, -1):
        if ".".join(parts[:size]) in EFFECTS:
            return EFFECTS[".".join(parts[:size])]
    return "any: unknown"


def flat(content: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{name}.")
        else:
            yield before + name, value


def verdict(first: Mapping[str, Any], second: Mapping[str, Any]) -> Verdict | None:
    """Whether the numbers differ; None where the two do not measure the same thing."""
    for name in ("nats_per_token", "accuracy", "generative_perplexity"):
        if name in first and name in second:
            same = _data(first) == _data(second)
            key = "data_standard_error" if name == "nats_per_token" and not same else "standard_error"
            errors = [float(one[key]) if one.get(key) is not None else math.inf for one in (first, second)]
            return Verdict(name, first[name], second[name], math.hypot(*errors), same)
    return None


def _data(result: Mapping[str, Any]) -> Any:
    data = result["record"].get("data", {})
    return {key: value for key, value in data.items() if key != "name"}
