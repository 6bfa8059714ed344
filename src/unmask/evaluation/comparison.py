"""Compare two results: do they differ beyond their error bars, and which parts of the set-up could explain it."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from unmask.errors import UserError

# The effect that a difference in each part of a record has on a number; the longest matching name decides.
EFFECTS = {
    "model.folder": "none: location of the files",
    "model.weights": "any: another model",
    "model.tokenizer": "any: other tokens; nats and perplexity per token are not comparable, bits per byte are",
    "model.objective": "any: another kind of bound",
    "model.dtype": "small: rounding",
    "model": "any: another model",
    "data.name": "none: location of the text",
    "data.sha256": "any: other tokens were scored",
    "data": "any: other text, or text cut differently",
    "settings.estimator": "any: another quantity, or another error bar",
    "settings.passes": "error bar only",
    "settings.precision": "error bar only",
    "settings.seconds": "error bar only",
    "settings.batch_tokens": "small: rounding",
    "settings": "any: measured differently",
    "judge.name": "none: location of the judge",
    "judge.folder": "none: location of the judge",
    "judge": "any: another judge; generative perplexities are comparable only under one judge",
    "seed": "within the error bars",
    "draws": "small, or a bias if draws are coarse",
    "unmask": "any: another version",
    "commit": "any: other code",
    "machine": "small: rounding",
    "processes": "none: how the work was shared",
}


@dataclass(frozen=True)
class Difference:
    name: str
    first: Any
    second: Any
    effect: str


@dataclass(frozen=True)
class Verdict:
    """The comparison of a number in two results."""

    name: str
    first: float
    second: float
    error: float  # standard error of the difference
    paired: bool  # whether both scored the same tokens, so that only Monte Carlo error separates them

    @property
    def difference(self) -> float:
        return self.second - self.first

    @property
    def beyond(self) -> bool:
        """Whether the difference is more than 1.96 standard errors."""
        return abs(self.difference) > 1.96 * self.error

    def sentence(self) -> str:
        source = "Monte Carlo" if self.paired else "Monte Carlo and choice of text"
        if self.difference == 0:
            return "equal to the last digit"
        if self.error == 0:
            return f"they differ by {self.difference:+.6g}, and neither has an error"
        size = abs(self.difference) / self.error
        word = "beyond" if self.beyond else "within"
        return f"they differ by {self.difference:+.4f}, {size:.1f} standard errors ({source}): {word} the error bars"


def results(content: Any, where: str) -> dict[str, Mapping[str, Any]]:
    """The results in a file by name: a single result, or those of a suite."""
    results_in_file = content.get("results", [content]) if isinstance(content, Mapping) else []
    if not results_in_file or any(
        not isinstance(result, Mapping) or "record" not in result for result in results_in_file
    ):
        raise UserError(f"{where} holds no result with a record. Write one with --json or --out.")
    return {str(result.get("set", "result")): result for result in results_in_file}


def record_differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    """The differences between two records, the most important first."""
    a, b = dict(flat_items(first)), dict(flat_items(second))
    names = [name for name in a | b if a.get(name) != b.get(name)]
    changes = [Difference(name, a.get(name), b.get(name), effect(name)) for name in names]
    weights = ("any", "small", "within", "error bar", "none")
    return sorted(changes, key=lambda d: next(i for i, word in enumerate(weights) if d.effect.startswith(word)))


def effect(name: str) -> str:
    """The effect that a difference in this part of the record can have."""
    parts = name.split(".")
    for size in range(len(parts), 0, -1):
        if ".".join(parts[:size]) in EFFECTS:
            return EFFECTS[".".join(parts[:size])]
    return "any: unknown"


def flat_items(content: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from flat_items(value, f"{before}{name}.")
        else:
            yield before + name, value


def verdict(first: Mapping[str, Any], second: Mapping[str, Any]) -> Verdict | None:
    """Whether the numbers differ; None if the results measure different quantities."""
    for name in ("nats_per_token", "accuracy", "generative_perplexity"):
        if name in first and name in second:
            same = _data(first) == _data(second)
            key = "data_standard_error" if name == "nats_per_token" and not same else "standard_error"
            errors = [math.inf if result.get(key) is None else float(result[key]) for result in (first, second)]
            return Verdict(name, first[name], second[name], math.hypot(*errors), same)
    return None


def _data(result: Mapping[str, Any]) -> Any:
    data = result["record"].get("data", {})
    return {key: value for key, value in data.items() if key != "name"}
