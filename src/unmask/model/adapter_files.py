"""Adapters on disk, in peft's layout: adapter_config.json and adapter_model.safetensors; ours also have unmask.json.

peft reads them over `unmask.hf`'s model of the base, and what peft has written for it is read here. unmask.json names
the base by the sha256 of its weights.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from unmask.errors import UserError
from unmask.files import fingerprint, write_json
from unmask.model import probe
from unmask.model.adapter import MOST_RANK, PART, Adapter, LowRankUpdates, adapt, add_updates, key
from unmask.model.backbone import Backbone, skeleton
from unmask.model.format import AGAIN, NOTE, read_note
from unmask.model.formats.own import layout_from, objective_from
from unmask.model.model import Model
from unmask.model.sizes import LARGEST
from unmask.model.weights import UPDATES, weights_fingerprint
from unmask.untrusted import open_regular, read_object

CONFIG, WEIGHTS = "adapter_config.json", UPDATES
PREFIX = "base_model.model.backbone."  # of peft's names of tensors, over a model of `unmask.hf`
ENDS = {"A": ".lora_A.weight", "B": ".lora_B.weight"}
# Settings of peft that change what an adapter computes, with the only value that is read.
PLAIN: dict[str, Any] = {
    "peft_type": "LORA",
    "bias": "none",
    "use_dora": False,
    "fan_in_fan_out": False,
    "lora_bias": False,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
    "layer_replication": None,
    "trainable_token_indices": None,
    "target_parameters": None,
}


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter and not a whole checkpoint."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").exists()


def stored_name(matrix: str, name: str) -> str:
    """The name in the file of A or B of a layer."""
    return f"{PREFIX}{name}{ENDS[matrix]}"


def stored_as(parameter: str) -> str:
    """The name in the file of a learner's parameter."""
    matrix, _, path = parameter.removeprefix(f"parts.{PART}.").partition("/")
    return stored_name(matrix, path.replace("/", "."))


def write_adapter(folder: Path, updates: LowRankUpdates, base: str) -> None:
    """Write the updates as peft does; `base`: the name or folder of the base."""
    adapter = updates.adapter
    tensors = {
        stored_name(matrix, name): updates.get_parameter(key(matrix, name)).detach().cpu().contiguous()
        for name in updates.names
        for matrix in ENDS
    }
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise UserError(f"tensor {name} has values that are NaN or infinite.")
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    config = {
        "peft_type": PLAIN["peft_type"],
        "task_type": None,
        "base_model_name_or_path": base,
        "r": adapter.rank,
        "lora_alpha": int(adapter.alpha) if adapter.alpha == int(adapter.alpha) else adapter.alpha,
        "lora_dropout": adapter.dropout,
        "target_modules": [f"backbone.{name}" for name in updates.names],
        "bias": PLAIN["bias"],
        "inference_mode": True,
    }
    write_json(folder / CONFIG, config)


def read_adapter(folder: Path, network: Backbone) -> LowRankUpdates:
    """The updates in a folder for the layers of a network; names and shapes are checked before anything is read."""
    adapter = adapter_in(folder)
    path = folder / WEIGHTS
    try:
        with safe_open(path, "pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read: it is missing, truncated or damaged ({error}). {AGAIN}") from None
    names = layers_in(path, shapes)
    linear = {name: one for name, one in network.named_modules() if isinstance(one, nn.Linear)}
    for name in names:
        if name not in linear:
            raise UserError(
                f"{path} has an update of the layer {name}, and this {network.spec.name} has no such linear layer: "
                "it belongs to another base."
            )
        layer = linear[name]
        wanted = {"A": (adapter.rank, layer.in_features), "B": (layer.out_features, adapter.rank)}
        for matrix, shape in wanted.items():
            seen = shapes[stored_name(matrix, name)]
            if seen != shape:
                raise UserError(
                    f"{path}: tensor {stored_name(matrix, name)} has shape {list(seen)}, not {list(shape)}: the "
                    "adapter belongs to another base, or its config to another adapter."
                )
    with torch.device("meta"):
        updates = LowRankUpdates(network, replace(adapter, targets=tuple(names)))
    stored = load_file(path)
    tensors = {key(m, name): stored[stored_name(m, name)].to(torch.float32) for name in names for m in ENDS}
    updates.load_state_dict(tensors, assign=True)
    return updates.to(network.device).eval().requires_grad_(False)


def layers_in(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """The layers with an update in a file, each with both matrices."""
    names: dict[str, set[str]] = {}
    for tensor in shapes:
        matrix = next((one for one, end in ENDS.items() if tensor.endswith(end)), None)
        if matrix is None or not tensor.startswith(PREFIX):
            raise UserError(
                f"{path}: tensor {tensor:.100} is not one of an adapter for a model of ours; its name would begin "
                f"with {PREFIX!r} and end with {' or '.join(ENDS.values())}."
            )
        names.setdefault(tensor.removeprefix(PREFIX).removesuffix(ENDS[matrix]), set()).add(matrix)
    for name, matrices in names.items():
        if len(matrices) < len(ENDS):
            raise UserError(f"{path}: the layer {name} has only {' '.join(matrices)} of A and B. {AGAIN}")
    if not names:
        raise UserError(f"{path} holds no tensors. {AGAIN}")
    return list(names)


def adapter_in(folder: Path) -> Adapter:
    """The settings in adapter_config.json; refuses kinds of adapters that are not plain LoRA."""
    path = folder / CONFIG
    config = read_object(path)
    for name, usual in PLAIN.items():
        if (config.get(name, usual) or usual) != usual:
            raise UserError(f"{path}: {name} is {config[name]!r:.80}; unmask reads adapters with {usual!r} only.")
    rank, alpha, dropout = config.get("r"), config.get("lora_alpha"), config.get("lora_dropout", 0.0)
    if type(rank) is not int or not 1 <= rank <= MOST_RANK:
        raise UserError(f"{path}: r must be a rank from 1 to {MOST_RANK}, not {rank!r:.40}.")
    if any(isinstance(one, bool) or not isinstance(one, int | float) for one in (alpha, dropout)):
        raise UserError(f"{path}: lora_alpha and lora_dropout must be numbers, not {alpha!r:.40}, {dropout!r:.40}.")
    # rsLoRA divides by the root of the rank: the same as another alpha.
    assert isinstance(alpha, int | float)
    return Adapter(rank, alpha * (rank**0.5 if config.get("use_rslora") is True else 1.0), float(dropout))


def base_of(folder: Path) -> str:
    """The name or folder of an adapter's base, as it was stored."""
    name = read_object(folder / CONFIG).get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise UserError(
            f"{folder / CONFIG} does not name the base of the adapter: set base_model_name_or_path to its folder, or "
            "serve it with `unmask serve BASE --adapter NAME=FOLDER`."
        )
    return name


def check_base(folder: Path, note: Mapping[str, Any], weights: str, base: object) -> None:
    """Refuse a base whose weights are not those that the adapter was trained over, and a changed adapter."""
    open_regular(folder / WEIGHTS).close()  # a FIFO would be waited for
    if not note:
        return
    known = note.get("base")
    if known != weights:
        raise UserError(
            f"{base} is not the base of the adapter {folder}: the sha256 of its weights is {weights[:12]}, and the "
            f"adapter was trained over {str(known)[:12]}. Give the base that it was trained over."
        )
    if note["weights"] != fingerprint(folder / WEIGHTS):
        raise UserError(
            f"{folder / WEIGHTS} is not the file that was saved (its sha256 differs from {NOTE}'s). {AGAIN}"
        )


def with_adapter(base: Model, folder: Path, *, apart: bool = False) -> Model:
    """A base with an adapter: its weights with the updates added, or `apart`, over the base's own tensors."""
    note, spec = read_note(folder), base.spec
    assert base.folder is not None
    check_base(folder, note, weights_fingerprint(base.folder) if note else "", base.folder)
    updates = read_adapter(folder, base.network)
    about: dict[str, Any] = {"self_test": None}
    if note:
        about["objective"] = objective_from(note["objective"], note.get("settings", {}))
        about["trained_layout"] = layout_from(note.get("layout"))
        about |= {"settings": note.get("settings", {}), "step": note.get("step"), "ema": note.get("ema")}
        length = note.get("length")
        if type(length) is not int or not 1 <= length <= LARGEST:
            raise UserError(f"{folder / NOTE} is damaged: length is {length!r:.60}, not a number of tokens. {AGAIN}")
        spec = spec.sized(vocab=spec.vocab, length=length, causal=about["objective"].facts.causal)
    network, weights = skeleton(spec), base.network.state_dict()
    network.load_state_dict(weights if apart else add_updates(weights, updates), assign=True)
    if apart:
        adapt(network, updates)
    trained = any(p.requires_grad for p in base.network.parameters())
    network = network.eval().requires_grad_(True) if trained else network.freeze()
    if note:
        about["self_test"] = probe.check(network, note["probe"], mask=base.mask, objective=about["objective"])
    network.compute = base.network.compute
    return replace(base, network=network, folder=folder, new_head=False, **about)
