"""Convert published checkpoints to our layout and back. The weights file is copied, so both directions are exact.

With another type of weights the copy is rounded, and its self-test is recorded with the rounded network.
"""

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from unmask.errors import UserError, unknown
from unmask.files import appearing, write_json
from unmask.model.adapter_files import is_adapter
from unmask.model.backbone import skeleton
from unmask.model.checkpoint import find, load, save, stored_components, with_new_head, write_note
from unmask.model.denoiser import Denoiser
from unmask.model.format import FORMATS, Format, recognise_format
from unmask.model.model import Model
from unmask.model.weights import FILE, INDEX, files_of, write_tensors
from unmask.text.tokens.export import is_partial

OURS = "unmask"
SAME = {OURS, "official"}  # layouts with the same config.json and weights: files are copied bit for bit
# Files of other programs that are copied along; code (*.py) is not, because it is never run.
TEXT_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "merges.txt",
    "vocab.json",
    "vocab.txt",
)


def convert(
    source: str | Path,
    target: str | Path,
    *,
    to: str = "unmask",
    dtype: str = "",
    sampling: Mapping[str, Any] | None = None,
    dialect: str = "",
    blocks: int = 0,
) -> Model:
    """Check a checkpoint and write a copy: `to` our layout, with a self-test, or to the official layout, without.

    dtype      float16 or bfloat16 halve the file; empty keeps the type of the weights
    sampling   default sampling settings to store, such as {"sampler": "entropy", "top_p": 0.9}; None: the model's own
    dialect    the family of a published model whose files do not say it
    blocks     keep the first layers only: a smaller network to train on; 0: all
    """
    if to not in FORMATS:
        raise unknown("checkpoint format", to, list(FORMATS))
    target = Path(target)
    if target.exists():
        raise UserError(f"{target} exists already: give a folder that does not.")
    if sampling and to != OURS:
        raise UserError(f"the {to} layout cannot store default sampling settings.")
    if dtype or blocks or is_adapter(find(source)[0]):
        dtype = dtype or "float32"  # the weights of an adapter's base with the updates added
        model = with_sampling(load(source, trainable=True, dialect=dialect), sampling)
        return convert_rounded(with_first(model, blocks) if blocks else model, target, to=to, dtype=dtype)
    model = with_sampling(load(source, dialect=dialect), sampling)
    assert model.folder is not None
    layout = FORMATS[to]()
    config = layout.config(model.spec, model.objective, mask=model.mask, dtype="float32")  # or it says why not
    _, own = recognise_format(model.folder, dialect or None)
    with appearing(target) as draft:
        copy_files(model.folder, draft, TEXT_FILES)
        if model.tokenizer is not None and model.spec.inputs is not None and is_partial(draft):
            model.tokenizer.save(draft, model.spec.inputs)
        if {own.name, to} <= SAME:
            copy_files(model.folder, draft, [*(file.name for file in files_of(model.folder)), INDEX, "config.json"])
        else:
            write_tensors(draft / FILE, tensors_for(layout, model))
            write_json(draft / "config.json", {**config, **with_new_head(model.new_head)})
        if to == OURS:
            if model.tokenizer is not None and not any((draft / name).exists() for name in TEXT_FILES):
                model.tokenizer.save(draft, model.spec.inputs)
            about = {
                **stored_components(model.objective, model.trained_layout),
                "step": model.step,
                "ema": model.ema,
                "settings": dict(model.settings),
            }
            write_note(
                draft, about, model.network, mask=model.mask, objective=model.objective, tokenizer=model.tokenizer
            )
    return model


def copy_files(source: Path, target: Path, names: Iterable[str]) -> None:
    for name in names:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def tensors_for(layout: Format, model: Model) -> dict[str, Tensor]:
    tensors = Denoiser(model.network, model.objective, parts=model.parts, state=model.state).tensors()
    if layout.repeats:
        tensors |= {f"backbone.{c}": tensors[f"backbone.{n}"].clone() for c, n in model.network.copies.items()}
    return {layout.written(name, model.spec): w for name, w in tensors.items()} | layout.constants(model.spec)


def with_first(model: Model, blocks: int) -> Model:
    """The model with its first layers only; embedding, last norm and head are those of the whole."""
    there = getattr(model.spec, "blocks", 0)
    if not 0 < blocks < there:
        raise UserError(f"--blocks {blocks}: the network has {there} layers; keep 1 to {there - 1} of them.")
    network = skeleton(replace(model.spec, blocks=blocks))
    whole = model.network.state_dict()
    network.load_state_dict({name: whole[name] for name in network.state_dict()}, assign=True)
    return replace(model, network=network, self_test=None)


def with_sampling(model: Model, sampling: Mapping[str, Any] | None) -> Model:
    return model if sampling is None else model.with_sampling(**sampling)


def convert_rounded(model: Model, target: Path, *, to: str, dtype: str) -> Model:
    """A copy in our layout whose weights have another type."""
    if to != OURS:
        raise UserError(f"weights in {dtype} are written only in our layout: convert twice.")
    save(
        target,
        model.network,
        mask=model.mask,
        objective=model.objective,
        tokenizer=model.tokenizer,
        settings=model.settings,
        step=model.step,
        ema=bool(model.ema),
        dtype=dtype,
        parts=model.parts,
        state=model.state,
        new_head=model.new_head,
        layout=model.trained_layout,
    )
    return model
