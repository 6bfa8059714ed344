"""Describe a model: its network, cost, tokenizer and self-test; without a model, what is installed here.

A large published model is described without reading its weights.

unmask inspect                                      versions, devices, and what to install for what
unmask inspect stories
unmask inspect kuleshov-group/mdlm-owt#main
unmask inspect models/diffullama --dialect diffullama
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from unmask.cli.installation import print_installation
from unmask.errors import UserError
from unmask.hub import hub_origin
from unmask.model import cost
from unmask.model.adapter_files import base_of, is_adapter
from unmask.model.checkpoint import check_against, find, load, on_meta, read_layout, read_tokenizer, stated_for
from unmask.model.format import Contents
from unmask.model.formats.dialects import family_of
from unmask.model.sizes import bounded_by, check_sizes
from unmask.model.weights import files_of
from unmask.settings import describe_settings
from unmask.text.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Description:
    """A checkpoint whose files belong together, as far as that can be told without reading weights."""

    folder: Path
    layout: str  # the name of its format
    contents: Contents  # network, mask, objective, settings
    tokenizer: Tokenizer | None
    parameters: int  # what the objective learns included
    bytes: int  # of the files of weights
    types: tuple[str, ...]  # of the weights in them
    proven: bool  # has a self-test

    @property
    def mask(self) -> int:
        if self.contents.mask is not None:
            return self.contents.mask
        return self.contents.spec.vocab - 1 if self.tokenizer is None else self.tokenizer.mask


def describe_checkpoint(path: str | Path, *, dialect: str = "") -> Description:
    """The description of a checkpoint in a folder or on the hub; `dialect` as in `load`."""
    folder, downloaded = find(path)
    if is_adapter(folder):
        raise UserError(
            f"{folder} is an adapter over {base_of(folder):.200}: inspect that, or make one model of both with "
            f"`unmask convert {folder} FOLDER`."
        )
    files, layout, contents = read_layout(folder, dialect or stated_for(path))
    check_sizes(contents.spec)
    with bounded_by(files.tensors, contents.spec):
        denoiser = on_meta(contents.spec, contents.objective)
    check_against(files, layout, contents, denoiser)
    return Description(
        folder,
        layout.name,
        contents,
        read_tokenizer(folder, files.note, contents.spec, contents.mask, hub=downloaded, usual=contents.tokenizer),
        sum(parameter.numel() for parameter in denoiser.parameters()),
        sum(file.stat().st_size for file in files_of(folder)),
        tuple(sorted({kind for _, kind in files.tensors.values()})),
        bool(files.note),
    )


READ = 256 << 20  # bytes of weights that are read although no self-test is recorded: to name those that are NaN


@dataclass(frozen=True)
class Settings:
    model: Annotated[str, tyro.conf.Positional] = ""  # a folder, or a name on the hub: owner/name#REVISION
    dialect: str = ""  # the family of a published model whose files do not say it: llama or diffullama


def model_facts(about: Description) -> Iterator[tuple[str, str]]:
    description, a = about.contents, about.contents.spec
    yield "checkpoint", str(about.folder)
    if (origin := hub_origin(about.folder)) is not None:
        yield "from the hub", origin
    yield "layout", about.layout
    yield from published_facts(about)
    yield (
        "objective",
        ", ".join(f"{name} {value}" for name, value in describe_settings(description.objective).items()),
    )
    yield "network", ", ".join(f"{name} {value}" for name, value in {"name": a.name, **asdict(a)}.items())
    yield "mask", str(about.mask)
    yield "parameters", f"{about.parameters:,}"
    yield "weights", f"{about.bytes / 1e6:,.1f} MB in {', '.join(about.types)}"
    yield "forward pass", f"{a.flops() / 1e6:,.1f} MFLOP per token, logits at all positions"
    yield "training step", f"{cost.training_flops(a) / 1e6:,.1f} MFLOP per token, half of the tokens hidden"
    yield "memory, inference", f"about {cost.inference_bytes(a) / 1e6:,.0f} MB for one row of {a.length} tokens"
    yield (
        "memory, training",
        f"about {cost.training_bytes(a, batch=1) / 1e6:,.0f} MB for one row of {a.length} tokens",
    )
    tokenizer = about.tokenizer
    if tokenizer is None:
        yield "tokenizer", "none: works on token ids only"
    else:
        yield "tokenizer", f"{tokenizer.size} ids, fingerprint {tokenizer.fingerprint[:12]}"


def published_facts(about: Description) -> Iterator[tuple[str, str]]:
    """What is known of the family of a published model."""
    settings, family = about.contents.settings, family_of(about.contents.settings)
    if "dialect" not in settings:
        return
    yield "dialect", settings["dialect"] if family is None else family.about
    yield "its number", about.contents.objective.means if family is None else family.bound
    if sampling := settings.get("sampling"):
        yield "its sampler", ", ".join(f"{name} {value}" for name, value in sampling.items())
    if new := settings.get("new"):
        yield "it draws", f"{new} tokens after a prompt, unless told otherwise"
    if ends := settings.get("ends"):
        yield "texts end at", ", ".join(map(str, ends))
    if family is not None and family.template:
        yield "chat template", family.template


def tested_facts(name: str, dialect: str) -> Iterator[tuple[str, str]]:
    """What is known of a checkpoint once its weights are read."""
    model = load(name, dialect=dialect)
    if broken := [name for name, weights in model.network.named_parameters() if not weights.isfinite().all()]:
        more = f" and {len(broken) - 3:,} more" if len(broken) > 3 else ""
        yield "warning", f"NaN or infinite weights in {', '.join(broken[:3])}{more}: this model cannot be used"
    if model.step is not None:
        yield "step", f"{model.step:,}" + (" (EMA weights)" if model.ema else "")
    if model.self_test is None:
        yield "self-test", "none recorded (`unmask convert` adds one)"
    else:
        yield "self-test", f"passed: largest difference {model.self_test:.1e}"


def run(settings: Settings) -> None:
    if not settings.model:
        return print_installation()
    about = describe_checkpoint(settings.model, dialect=settings.dialect)
    rows = list(model_facts(about))
    if about.proven or about.bytes <= READ:
        rows += tested_facts(settings.model, settings.dialect)
    else:
        rows.append(("self-test", "none recorded (`unmask convert` adds one); weights are not read"))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
