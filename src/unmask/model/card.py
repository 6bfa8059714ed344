"""Model cards: the README.md of a published checkpoint, written from what the checkpoint says about itself."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import tomli_w

from unmask.errors import UserError
from unmask.hub import hub_origin
from unmask.model.head_files import is_predictor
from unmask.model.model import Model
from unmask.settings import describe_settings

CARD = "README.md"


class Bound(NamedTuple):
    """Nats per token on the held-out rows of a run."""

    value: float
    error: float | None = None  # standard error; None: not recorded

    def __str__(self) -> str:
        return f"{self.value:.3f}" + ("" if self.error is None else f" ± {self.error:.3f}")


def card_of(
    model: Model, name: str, *, license: str = "", bound: Bound | None = None, transformers: bool = False
) -> str:
    """The card of a model that will be called `name`; `transformers`: files for that library come with it."""
    bound = bound if bound is not None and math.isfinite(bound.value) else None
    return "\n".join(
        [
            *front_matter(model, license, name, bound),
            f"# {name}",
            "",
            f"{kind_of_model(model)} for the Python package unmask.",
            "",
            *markdown_table(facts(model, bound)),
            "",
            "## Use",
            "",
            *(use_of_predictor(name) if is_predictor(model.folder) else use_of_model(model, name)),
            *(use_in_transformers(name) if transformers else []),
            "",
            "`unmask inspect` prints the network's sizes and checks the files against the self-test in unmask.json.",
            *toml_section("Default sampling settings", dict(model.sampling)),
            *toml_section("Training settings", without_paths(model.settings)),
            "",
        ]
    )


def use_of_model(model: Model, name: str) -> list[str]:
    return [
        f"    unmask sample {name}",
        *([f'    unmask infill {name} "Once ___ end."'] if model.objective.facts.infills else []),
        "",
        "```python",
        "import unmask",
        "",
        f'model = unmask.load("{name}")',
        "for sample in unmask.sample(model, n=2, seed=1):",
        "    print(sample.text)",
        "```",
    ]


def use_in_transformers(name: str) -> list[str]:
    """The network for those who do not install unmask."""
    return [
        "",
        "The network alone, in transformers and without unmask, by the file modeling_unmask.py of this repository:",
        "",
        "```python",
        "from transformers import AutoModelForMaskedLM",
        "",
        f'model = AutoModelForMaskedLM.from_pretrained("{name}", trust_remote_code=True)',
        "```",
    ]


def use_of_predictor(name: str) -> list[str]:
    """The commands of a model that `unmask classify` has tuned."""
    return [
        f"    unmask classify {name} texts.csv --predict --out answers.csv",
        "",
        "```python",
        "import unmask",
        "",
        f'predictor = unmask.Predictor.load("{name}")',
        'print(predictor.predict(["a text", "another"]))',
        "```",
    ]


def kind_of_model(model: Model) -> str:
    facts = model.objective.facts
    diffusion = "Continuous diffusion" if facts.vectors else "Masked diffusion"
    kind = "Autoregressive" if facts.causal else diffusion if facts.likelihood else "Masked"
    return f"{kind} language model ({model.objective.name})"


def front_matter(model: Model, license: str, name: str, bound: Bound | None) -> Iterator[str]:
    """What the hub reads: library, tags, licence, and the number on held-out rows as its `model-index`."""
    if not re.fullmatch(r"[A-Za-z0-9.+-]*", license):
        raise UserError(f"{license!r} is not the identifier of a licence, such as mit or apache-2.0.")
    yield "---"
    yield "library_name: unmask"
    yield "pipeline_tag: text-generation"
    yield "tags:"
    diffusion = model.objective.facts.likelihood and not model.objective.facts.causal
    masked = ["masked-diffusion"] if not model.objective.facts.vectors else []
    kind = [*masked, "diffusion-language-model"] if diffusion else []
    for tag in ("unmask", model.objective.name, *kind):
        yield f"- {tag}"
    if license:
        yield f"license: {license}"
    if bound is not None:
        yield from model_index(model, name, bound)
    yield "---"
    yield ""


def model_index(model: Model, name: str, bound: Bound) -> Iterator[str]:
    """A result in the form of the hub; texts are quoted as JSON, which YAML reads too."""
    yield "model-index:"
    yield f"- name: {json.dumps(name)}"
    yield "  results:"
    yield "  - task: {type: text-generation}"
    yield "    dataset: {name: held-out rows of its training text, type: text}"
    yield "    metrics:"
    error = "" if bound.error is None else f", args: {{standard_error: {bound.error:.4f}}}"
    means = json.dumps(model.objective.means)
    yield f"    - {{type: nats_per_token, value: {bound.value:.4f}, name: {means}{error}}}"


def facts(model: Model, bound: Bound | None) -> Iterator[tuple[str, str]]:
    spec, tokenizer = model.spec, model.tokenizer
    yield "parameters", f"{model.num_parameters:,}"
    yield "network", ", ".join(f"{key} {value}" for key, value in {"name": spec.name, **asdict(spec)}.items())
    yield "objective", ", ".join(f"{key} {value}" for key, value in describe_settings(model.objective).items())
    if tokenizer is not None:
        yield "tokenizer", f"{tokenizer.size:,} ids, fingerprint {tokenizer.fingerprint[:12]}"
    if model.step is not None:
        yield "training", f"{model.step:,} steps" + (", EMA weights" if model.ema else "")
    if bound is not None:
        relation = "" if model.objective.facts.exact else "at most "
        likelihood = f"{relation}{bound} nats per token, perplexity {math.exp(bound.value):.2f}"
        loss = f"{bound} nats: {model.objective.means}"
        yield "validation", likelihood if model.objective.facts.likelihood else loss
    if (origin := hub_origin(model.folder)) is not None:
        yield "copied from", origin


def markdown_table(rows: Iterator[tuple[str, str]]) -> list[str]:
    return ["| | |", "|---|---|", *(f"| {name} | {value.replace('|', chr(92) + '|')} |" for name, value in rows)]


def toml_section(title: str, settings: Mapping[str, Any]) -> list[str]:
    written = {name: value for name, value in settings.items() if name != "sampling"}
    return ["", f"## {title}", "", "```toml", tomli_w.dumps(written).rstrip(), "```"] if written else []


def without_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings, at any depth; of a path only its last part, because a folder's place is nobody's business."""
    return {name: without_path(value) for name, value in settings.items()}


def without_path(value: Any) -> Any:
    if isinstance(value, Mapping):
        return without_paths(value)
    if isinstance(value, list | tuple):
        return [without_path(inner) for inner in value]
    if isinstance(value, str) and not value.startswith("hf:"):
        return re.split(r"[/\\]", value.rstrip("/\\"))[-1]
    return value
