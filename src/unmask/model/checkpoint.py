"""A checkpoint: a folder with config.json, model.safetensors, tokenizer files, and unmask.json with its checks.

The first two have the published layout where it supports the network, so a published checkpoint is one of ours
without unmask.json. unmask.json holds the settings of the run, the sha256 of the weights and a self-test; `load`
refuses a folder that fails any check. `model/formats` has the layouts.
"""

import logging
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unmask import __version__, hub, storage
from unmask.diffusion.objective import Objective, objective_of
from unmask.errors import UserError
from unmask.files import appearing, write_json, write_whole
from unmask.model import probe
from unmask.model.adapter_files import CONFIG as ADAPTER
from unmask.model.adapter_files import base_of, is_adapter, with_adapter, write_adapter
from unmask.model.backbone import Backbone, Spec, skeleton
from unmask.model.denoiser import Denoiser
from unmask.model.format import AGAIN, FORMATS, NOTE, UNTRAINED, Contents, Files, Format, read_note, recognise_format
from unmask.model.formats.dialects import DIALECTS
from unmask.model.gguf_file import SUFFIX
from unmask.model.model import GPT2, Model, shipped_models
from unmask.model.sizes import bounded_by, check_sizes
from unmask.model.weights import (
    FILE,
    Tensors,
    check_tensors,
    read_tensors,
    weights_fingerprint,
    with_weights,
    write_tensors,
)
from unmask.plugins import plugin_names
from unmask.processes.device import compute_type, device_of
from unmask.settings import describe_settings
from unmask.text.corpus.chat_template import TEMPLATE, ChatTemplate, published_template
from unmask.text.layout import Layout, recorded_layout
from unmask.text.tokens.files import TOKENIZER_FILES
from unmask.text.tokens.tokenizer import Tokenizer
from unmask.untrusted import check_links

__all__ = ["NOTE", "Model", "load", "save"]

FROM_HUB = ["*.json", "*.safetensors", "*.txt"]
# owner/name, or a name of the hub's own; then perhaps a revision
TRAINING = ("training.", "memory.", "shard-")  # files that only a resumed run reads
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?([#@].*)?")
log = logging.getLogger("unmask.checkpoint")  # without a handler of yours, it writes to standard error

NEW_HEAD = (
    "unmask: %s is an encoder without a head for masked words. A new head was made, which predicts nothing until it "
    "is trained: unmask train --init %s --data TEXT --out FOLDER"
)
UNTRAINED_HEAD = (
    "unmask: the head for masked words in %s is new and was never trained: texts and numbers from it mean nothing. "
    "Train it: unmask train --init %s --data TEXT --out FOLDER"
)


def load(
    path: str | Path,
    *,
    trainable: bool = False,
    device: str = "cpu",
    dtype: str = "auto",
    headed: bool = True,
    dialect: str = "",
) -> Model:
    """A checkpoint, ours or a published one, from a folder or the hub (owner/name#REVISION), mapped into memory.

    It is ready for inference (`freeze`); `trainable=True` keeps gradients on. `device` is cpu, cuda, mps or auto (a
    GPU if there is one); `dtype` that of matrix products: float32, bfloat16, float16 or auto (bfloat16 on CUDA).
    A warning says if the head for masked words was never trained, unless it is not used: `headed=False`.
    `dialect` names the family of a published model whose files do not say it (docs/how/models.md).
    """
    place = device_of(device)
    compute = None if dtype == "auto" else compute_type(dtype, place)
    folder, downloaded = find(path)
    if is_adapter(folder):
        options: dict[str, Any] = {"trainable": trainable, "device": device, "dtype": dtype, "headed": headed}
        return with_adapter(load(base_beneath(folder), **options, dialect=dialect or base_dialect(folder)), folder)
    files, layout, about = read_layout(folder, dialect or stated_for(path))
    note = files.note
    check_sizes(about.spec)
    with bounded_by(files.tensors, about.spec):
        denoiser = on_meta(about.spec, about.objective)
    check_against(files, layout, about, denoiser)
    if note and note["weights"] != weights_fingerprint(folder):
        raise UserError(
            f"{folder / FILE} is not the file that was saved (its sha256 differs from unmask.json's). {AGAIN}"
        )
    tokenizer = read_tokenizer(folder, note, about.spec, about.mask, hub=downloaded, usual=about.tokenizer)
    mask = about.mask
    if mask is None:
        mask = about.spec.vocab - 1 if tokenizer is None else tokenizer.mask
    stored = denoiser.backbone.stores and not trainable
    tensors = read_tensors(folder, lambda name, tensor: layout.unpack(name, tensor, about), stored=stored)
    network, parts, state = (
        with_weights(about.spec, tensors, fresh=about.fresh),
        denoiser.parts,
        {},
    )
    new_head = bool(about.fresh) or files.config.get(UNTRAINED) is True
    if new_head and headed:
        log.warning(NEW_HEAD if about.fresh else UNTRAINED_HEAD, folder, path)
    if len(parts):
        own = {name.removeprefix("parts."): w for name, w in tensors.items() if name.startswith("parts.")}
        parts.load_state_dict(own, assign=True)
    state = {name.removeprefix("state."): w for name, w in tensors.items() if name.startswith("state.")}
    if not trainable:
        network, parts = network.freeze(), parts.eval().requires_grad_(False)
    proof = probe.check(network, note["probe"], mask=mask, objective=about.objective) if note else None
    network.compute = compute
    return Model(
        network.to(place),
        mask,
        about.objective,
        tokenizer,
        about.settings,
        step=note.get("step"),
        ema=note.get("ema"),
        folder=folder,
        self_test=proof,
        parts=dict(parts.to(place).items()),
        state={name: value.to(place) for name, value in state.items()},
        new_head=new_head,
        trained_layout=about.layout,
    )


def assumed_dialect(path: str | Path) -> str:
    """The dialect of a base to train, where its files look like those of several families: the autoregressive one."""
    if stated := stated_for(path):
        return stated
    folder = find(path)[0]
    if is_adapter(folder):
        return base_dialect(folder)
    files, layout = recognise_format(folder)
    return layout.base(files)


def base_beneath(folder: Path) -> str:
    """The base of an adapter as it was stored, refused if it is an adapter itself: one may lead back to the first."""
    base = base_of(folder)
    if is_adapter(find(base)[0]):
        raise UserError(f"{folder} is an adapter over {base:.200}, which is an adapter too, not a whole model.")
    return base


def base_dialect(folder: Path) -> str:
    """The dialect of the base of an adapter, as its training was told or assumed; empty: the base says it."""
    return str(read_note(folder).get("settings", {}).get("dialect", ""))


def stated_for(path: str | Path) -> str:
    """The dialect of a published repository whose files do not say it; empty: they do, or it is none."""
    name = hub.named_revision(str(path))[0] if isinstance(path, str) and HUB_NAME.fullmatch(path) else ""
    return next((d.name for d in DIALECTS.values() if d.stated and name in d.hub), "")


def read_layout(folder: Path, dialect: str = "") -> tuple[Files, Format, Contents]:
    """The files of a folder, their layout, and what they say; an error names the plugins that were in use."""
    files, layout = recognise_format(folder, dialect or None)
    try:
        return files, layout, layout.read(files)
    except UserError as error:
        names = files.note.get("plugins")
        if not isinstance(names, list) or not names:
            raise
        raise UserError(
            f"{error} It was written with {', '.join(f'--plugin {name!r:.60}' for name in names)}."
        ) from None


def spec_in(path: str | Path, dialect: str = "") -> Spec:
    """The spec of a checkpoint, of an adapter that of its base; its weights are not read."""
    folder = find(path)[0]
    if is_adapter(folder):
        return spec_in(base_beneath(folder), dialect or base_dialect(folder))
    return read_layout(folder, dialect or stated_for(path))[2].spec


def tokenizer_in(path: str | Path, dialect: str = "") -> Tokenizer | None:
    """The tokenizer of a checkpoint; its weights are not read."""
    folder, downloaded = find(path)
    if is_adapter(folder):
        return tokenizer_in(base_beneath(folder), dialect or base_dialect(folder))
    files, _, contents = read_layout(folder, dialect or stated_for(path))
    return read_tokenizer(folder, files.note, contents.spec, contents.mask, hub=downloaded, usual=contents.tokenizer)


def template_in(path: str | Path, dialect: str = "") -> ChatTemplate | None:
    """The chat template of a checkpoint, if it has one."""
    folder = find(path)[0]
    if is_adapter(folder):
        return template_in(base_beneath(folder), dialect or base_dialect(folder))
    own = getattr(read_layout(folder, dialect or stated_for(path))[2].layout, "template", "")
    return ChatTemplate(own) if own else published_template(folder)


def on_meta(spec: Spec, objective: Objective) -> Denoiser:
    """The denoiser on the meta device: no memory for its weights."""
    with torch.device("meta"):
        return Denoiser(skeleton(spec), objective)


def check_against(files: Files, layout: Format, contents: Contents, denoiser: Denoiser) -> None:
    """Refuse tensors that do not belong to the network; those whose names begin with `contents.fresh` are missing."""
    network, fresh = denoiser.backbone, contents.fresh
    expected = {name: tuple(tensor.shape) for name, tensor in denoiser.tensors().items()}
    there: Tensors = {}
    for name, (shape, kind) in files.tensors.items():
        try:
            parts = layout.unpack(name, torch.empty(shape, device="meta"), contents)
        except (RuntimeError, IndexError) as error:
            what = str(error).splitlines()[0]
            raise UserError(f"{files.folder / FILE}: tensor {name} {list(shape)} does not fit: {what}") from None
        there |= {known: (tuple(part.shape), kind) for known, part in parts.items()}
    copies = {f"backbone.{copy}": f"backbone.{name}" for copy, name in network.copies.items()}
    expected |= {copy: expected[name] for copy, name in copies.items()}
    dtype = "" if network.stores else str(files.config.get("torch_dtype", files.config.get("dtype", "float32")))
    present = {name for copy, name in copies.items() if copy in there}
    new = {name for name in expected if fresh and name.startswith(fresh)}
    spare = frozenset({f"backbone.{name}" for name in network.constants} | set(copies) | present | new)
    check_tensors(files.folder / FILE, there, expected, network.spec, dtype, spare=spare)


def save(
    folder: str | Path,
    network: Backbone,
    *,
    mask: int,
    objective: Objective | str = "mdlm",
    tokenizer: Tokenizer | None = None,
    settings: Mapping[str, Any] | None = None,
    step: int | None = None,
    ema: bool = False,
    dtype: str = "float32",
    parts: Mapping[str, nn.Module] | None = None,
    state: Mapping[str, Tensor] | None = None,
    new_head: bool = False,
    layout: Layout | None = None,
) -> Path:
    """Write a checkpoint of the network; the folder appears only when it is complete.

    `dtype` is the type of the weights in the file. The self-test is recorded with the rounded weights. `new_head`
    stores that its head for masked words was never trained. `layout`: None, if it follows from the settings.
    """
    folder, objective = Path(folder), objective_of(objective)
    if tokenizer is not None:
        check_tokenizer(tokenizer, network.spec, mask, folder)
    layout = layout or recorded_layout(settings or {}, tokenizer, framed=network.spec.framed)
    note = stored_components(objective, layout) | {"step": step, "ema": ema, "settings": dict(settings or {})}
    whole = Denoiser(network, objective, parts=parts, state=state)
    with appearing(folder) as draft:
        write(draft, whole, note, mask=mask, tokenizer=tokenizer, dtype=dtype, new_head=new_head)
        if template := getattr(layout, "template", ""):  # where transformers looks for it
            write_whole(draft / TEMPLATE, template)
    return folder


def write(
    folder: Path,
    whole: Denoiser,
    note: Mapping[str, Any],
    *,
    mask: int,
    tokenizer: Tokenizer | None,
    dtype: str = "float32",
    new_head: bool = False,
) -> None:
    """Write the files of a checkpoint into a folder that is not yet visible."""
    network, objective = whole.backbone, whole.objective
    write_tensors(folder / FILE, whole.tensors(), dtype)
    config = FORMATS["unmask"]().config(network.spec, objective, mask=mask, dtype=dtype)
    write_json(folder / "config.json", {**config, **with_new_head(new_head)})
    if tokenizer is not None:
        tokenizer.save(folder, network.spec.inputs)
    stored = network if dtype == "float32" else with_weights(network.spec, read_tensors(folder))
    write_note(folder, note, stored, mask=mask, objective=objective, tokenizer=tokenizer)


def write_adapted(
    folder: Path, whole: Denoiser, about: Mapping[str, Any], *, base: str, mask: int, tokenizer: Tokenizer | None
) -> None:
    """Write the adapter of a denoiser over a base into a folder that is not yet visible."""
    assert whole.adapter is not None
    network, (where, downloaded) = whole.backbone, find(base)
    write_adapter(folder, whole.adapter, base if downloaded or base in shipped_models() else str(where.resolve()))
    note = {**about, "base": weights_fingerprint(where), "length": network.spec.length}
    write_note(folder, note, network, mask=mask, objective=whole.objective, tokenizer=tokenizer)


def stored_components(objective: Objective, layout: Layout | None) -> dict[str, Any]:
    """The components that unmask.json stores."""
    return {"objective": describe_settings(objective)} | (
        {} if layout is None else {"layout": describe_settings(layout)}
    )


def with_new_head(new_head: bool) -> dict[str, Any]:
    """What config.json says of a head for masked words that was never trained; nothing of any other."""
    return {UNTRAINED: True} if new_head else {}


def write_note(
    folder: Path,
    about: Mapping[str, Any],
    network: Backbone,
    *,
    mask: int,
    objective: Objective,
    tokenizer: Tokenizer | None,
) -> None:
    """Write unmask.json for the files that are already in the folder."""
    proof = {
        "version": __version__,
        "tokenizer": None if tokenizer is None else tokenizer.fingerprint,
        "weights": weights_fingerprint(folder),
        "probe": probe.record_probe(network, mask=mask, objective=objective),
        **({"plugins": plugin_names()} if plugin_names() else {}),
    }
    write_json(folder / NOTE, {**about, **proof})


def read_tokenizer(
    folder: Path,
    note: Mapping[str, Any],
    spec: Spec,
    mask: int | None,
    *,
    hub: bool,
    usual: Tokenizer | None = None,
) -> Tokenizer | None:
    """The folder's tokenizer, or the `usual` one of its layout; refuses one that the network was not trained with."""
    fingerprint = note.get("tokenizer")
    if any((folder / name).is_file() for name in TOKENIZER_FILES):
        tokenizer = Tokenizer.load(folder, mask=mask)
    elif fingerprint is not None:
        raise UserError(f"tokenizer.json is missing from {folder}: the network was saved with one. {AGAIN}")
    elif hub and spec.vocab == GPT2:
        tokenizer = Tokenizer.load("hf:gpt2")  # published repositories do not include it
    elif usual is not None:
        tokenizer = usual
    else:
        return None
    if fingerprint is not None and tokenizer.fingerprint != fingerprint:
        raise UserError(
            f"the tokenizer in {folder} is not the one this network was saved with (fingerprint "
            f"{tokenizer.fingerprint[:12]}, not {fingerprint[:12]}): its ids would mean other words. Restore the "
            "original."
        )
    check_tokenizer(tokenizer, spec, tokenizer.mask if mask is None else mask, folder)
    return tokenizer


def check_tokenizer(tokenizer: Tokenizer, spec: Spec, mask: int, folder: Path) -> None:
    if tokenizer.mask != mask or tokenizer.size > spec.vocab:
        raise UserError(
            f"the tokenizer of {folder} has {tokenizer.size} ids and mask {tokenizer.mask}, the network "
            f"{spec.vocab} ids and mask {mask}: they do not belong together. Use the tokenizer the network "
            "was trained with."
        )


def in_run(folder: Path) -> Path:
    """The best, else the last, checkpoint of a training run's folder; any other folder itself."""
    inside = (folder / name for name in ("best", "last"))
    chosen = next((one for one in inside if any((one / name).is_file() for name in ("config.json", ADAPTER))), folder)
    if not chosen.resolve().is_relative_to(folder.resolve()):
        raise UserError(
            f"{chosen} is a link to {chosen.resolve()}, outside the run: give that folder, if you trust it."
        )
    return chosen


def at_address(address: str) -> Path:
    """The downloaded folder or GGUF file of a checkpoint elsewhere; of a run its best, else its last, checkpoint."""
    there = storage.listing(address)
    link = next((name for name in ("best", "last") if name in there), None)
    if link is not None:
        address = f"{address.rstrip('/')}/{storage.read_remote(f'{address}/{link}').decode(errors='replace')}"
    folder = storage.fetch_files(address, lambda name: "/" not in name and not name.startswith(TRAINING))
    return folder if folder.is_file() else check_links(folder, FROM_HUB)


def find(path: str | Path) -> tuple[Path, bool]:
    """The folder of a checkpoint, and whether it was downloaded from the hub."""
    if "\0" in str(path):
        raise UserError(f"{str(path)!r:.200} cannot be the name of a checkpoint: it has a zero byte.")
    if storage.is_remote(path):
        return at_address(str(path)), False
    path = storage.without_scheme(path) if isinstance(path, str) else path
    ours = shipped_models()
    try:
        folder = in_run(Path(path))
        if str(path) in ours and not (folder / "config.json").is_file():
            return ours[str(path)], False
        if folder.is_dir():
            return check_links(folder, FROM_HUB), False
        if folder.is_file() and folder.suffix == SUFFIX:
            return folder, False
        if folder.is_file():
            inside = (folder.parent / "config.json").is_file()
            hint = f" Did you mean {folder.parent}?" if inside else " Give a folder that `unmask train` wrote."
            raise UserError(f"{folder} is a file; a checkpoint is a folder.{hint}")
    except (OSError, RuntimeError) as error:  # no permission, a name that is too long; a loop of links
        raise UserError(f"cannot read {str(path)[:200]}: {getattr(error, 'strerror', None) or error}.") from None
    name = str(path)
    near = get_close_matches(name, ours, n=1)
    hint = f" Did you mean {near[0]!r}, which comes with unmask?" if near else ""
    if isinstance(path, Path) or not HUB_NAME.fullmatch(name):
        raise UserError(
            f"there is no folder {path}.{hint} Give a checkpoint's folder, a hub name such as "
            f"kuleshov-group/mdlm-owt, or a model that comes with unmask: {', '.join(ours)}."
        )
    try:
        return check_links(hub.fetch(name, FROM_HUB), FROM_HUB), True
    except UserError:
        raise
    except Exception as error:  # no such repository, no network, no permission: the hub's message says which
        raise UserError(
            f"there is no folder {name}, and the hub download failed: {str(error).splitlines()[0].rstrip('.')}."
            f"{hint} Without a network, put its config.json and model.safetensors (and, for text, a tokenizer.json) "
            "into a folder and give that folder."
        ) from None
