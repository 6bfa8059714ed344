"""The layout of the published MDLM checkpoints (kuleshov-group/mdlm-owt): config.json, with a few keys of ours."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from unmask.diffusion.autoregressive import Autoregressive
from unmask.diffusion.mdlm import MDLM
from unmask.diffusion.objective import Objective
from unmask.errors import UserError
from unmask.model.backbone import Spec
from unmask.model.backbones.transformer import Architecture
from unmask.model.format import FORMATS, HEADER, Contents, Files, Format
from unmask.model.formats.keys import flag, number

# Architecture's fields by their key in config.json; the second name is that of the training configs.
KEYS = {
    "vocab": ("vocab_size",),
    "length": ("model_length", "length"),
    "width": ("hidden_dim", "hidden_size"),
    "blocks": ("n_blocks",),
    "heads": ("n_heads",),
    "cond": ("cond_dim",),
}
FIXED = {  # the same in every published config
    "model_type": "mdlm",
    "architectures": ["MDLM"],
    "torch_dtype": "float32",
    "return_dict": False,
}
OURS = ("causal", "reads_before", "tied", "visible_keys", "mask_index")  # keys that published configs do not have


@FORMATS.register("official", "the published MDLM checkpoints")
class Official(Format):
    """The published transformer: `model_type` mdlm, every tensor under `backbone.`."""

    def matches(self, files: Files) -> bool:
        """A block size means block diffusion, another model with the same tensors; Mamba, Transformer-XL and SEDD
        have no model_type either."""
        other = files.config.get("block_size") or {"ssm_cfg", "mem_len", "graph", HEADER} & files.config.keys()
        return not files.note and files.kind in (None, FIXED["model_type"]) and not other

    def read(self, files: Files) -> Contents:
        spec = architecture_of(files.config, files.tensors)
        objective = Autoregressive() if spec.causal else MDLM()
        return Contents(spec, mask_of(files.config, spec), objective, dict(files.config))

    def config(self, spec: Spec, objective: Objective, *, mask: int, dtype: str) -> dict[str, Any]:
        if not isinstance(spec, Architecture):
            raise UserError(f"the official layout holds transformers only, not the backbone {spec.name!r}.")
        if not isinstance(objective, Autoregressive | MDLM):
            raise UserError(f"the official layout cannot record that the objective is {objective.name!r}.")
        config = config_of(spec, mask=mask, dtype=dtype)
        if not is_published(config):
            ours = ", ".join(key for key in OURS if key in config)
            raise UserError(f"the official layout has no such network: this one needs {ours} in its config.json.")
        return config


def architecture_of(config: dict[str, Any], tensors: Iterable[str]) -> Architecture:
    """The network that a config.json describes; the tensors' names say whether it has modulation."""
    modulated = any(name.removeprefix("backbone.").startswith("sigma_map.") for name in tensors)
    sizes: dict[str, Any] = {"cond": 0}
    for field, names in KEYS.items():
        if field == "cond" and not modulated:
            continue
        seen = [config[name] for name in names if name in config]
        if not seen:
            raise UserError(f"config.json has no {names[0]!r}: it must give the network's {field}.")
        if type(seen[0]) is not int:
            raise UserError(f"config.json says {names[0]} = {seen[0]!r:.60}: it must be a whole number.")
        sizes[field] = seen[0]
    causal = flag(config, "causal", not modulated)
    spec = Architecture(
        **sizes,
        dropout=number(config, "dropout", 0.0),
        time_conditioning=modulated and flag(config, "time_conditioning", False),
        tied=flag(config, "tied", False),
        causal=causal,
        # The published causal network predicts, at each position, the token after it.
        reads_before=flag(config, "reads_before", causal),
    )
    return (
        replace(spec, visible_keys=True, mask=mask_of(config, spec)) if flag(config, "visible_keys", False) else spec
    )


def mask_of(config: dict[str, Any], spec: Spec) -> int:
    """The mask's id: the last one, unless the config names another."""
    mask = config.get("mask_index", spec.vocab - 1)
    if type(mask) is not int or not 0 <= mask < spec.vocab:
        raise UserError(f"config.json says mask_index = {mask!r:.60}: it must be one of 0 to {spec.vocab - 1}.")
    return mask


def config_of(architecture: Architecture, *, mask: int, dtype: str = "float32") -> dict[str, Any]:
    """config.json of a network: the published keys, and ours where they differ from the published default."""
    a = architecture
    config: dict[str, Any] = {names[0]: getattr(a, field) for field, names in KEYS.items()}
    config |= {"dropout": a.dropout, "time_conditioning": a.time_conditioning, **FIXED, "torch_dtype": dtype}
    if not a.cond:
        del config["cond_dim"]
    own = {**{key: getattr(a, key) for key in OURS if key != "mask_index"}, "mask_index": mask}
    usual = {"causal": not a.cond, "reads_before": a.causal, "mask_index": a.vocab - 1}
    return config | {key: own[key] for key in OURS if own[key] != usual.get(key, False)}


def is_published(config: dict[str, Any]) -> bool:
    """Whether the published code supports this network: it needs none of our keys except the mask's id."""
    return not (set(OURS) - {"mask_index"}) & config.keys()
