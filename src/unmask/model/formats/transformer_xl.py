"""Two layouts of one network: the Transformer-XL of its authors and that of transformers, read without their code.

The authors' config.json has the names of their arguments and no model_type. In transformers all tensors but the head
are under `transformer.`. Neither has a mask: it is the tokenizer's, or the last id.
"""

from collections.abc import Mapping
from typing import Any

from unmask.diffusion.autoregressive import Autoregressive
from unmask.diffusion.objective import Objective
from unmask.errors import UserError
from unmask.model.backbone import Spec
from unmask.model.backbones.transformer_xl import TransformerXLSpec
from unmask.model.format import FORMATS, Files, Format, Found
from unmask.model.formats.keys import check_fixed, flag, whole
from unmask.model.formats.mamba import mask_if_told

KIND = "transfo-xl"
FIXED = {"pre_lnorm": False, "ext_len": 0, "attn_type": 0}
AUTHORS = {"n_token": "vocab", "tgt_len": "length", "tie_weight": "tied", "separate_biases": "separate"}
TRANSFORMERS = {"vocab_size": "vocab", "tgt_len": "length", "tie_word_embeddings": "tied", "untie_r": "separate"}
SIZES = {
    "n_layer": "blocks",
    "n_head": "heads",
    "d_model": "width",
    "d_head": "head",
    "d_inner": "inner",
    "mem_len": "memory",
    "d_embed": "embed",
    "div_val": "divide",
}


@FORMATS.register("transformer-xl", "Transformer-XL with its authors' names")
class Authors(Format):
    """config.json without a model_type, with `n_token`, `mem_len` and `clamp_len`."""

    repeats = True

    def matches(self, files: Files) -> bool:
        return not files.note and files.kind is None and {"n_token", "mem_len", "clamp_len"} <= files.config.keys()

    def read(self, files: Files) -> Found:
        return read_config(files.config, AUTHORS, separate=False)

    def renamed(self, name: str) -> str | None:
        return f"backbone.{name}"

    def written(self, name: str, spec: Spec) -> str:
        return name.removeprefix("backbone.")

    def config(self, spec: Spec, objective: Objective, *, mask: int, dtype: str) -> dict[str, Any]:
        a = holdable(self, spec, objective)
        return {**config_of(a, AUTHORS), "ext_len": 0, "mask_index": mask, "torch_dtype": dtype}


@FORMATS.register("transformers-transfo-xl", "Transformer-XL checkpoints of transformers")
class Transformers(Format):
    """`model_type` transfo-xl."""

    repeats = True

    def matches(self, files: Files) -> bool:
        return not files.note and files.kind == KIND

    def read(self, files: Files) -> Found:
        return read_config(files.config, TRANSFORMERS, separate=True)

    def renamed(self, name: str) -> str | None:
        return f"backbone.{name.removeprefix('transformer.')}"

    def written(self, name: str, spec: Spec) -> str:
        name = name.removeprefix("backbone.")
        return name if name.startswith("crit.") else f"transformer.{name}"

    def config(self, spec: Spec, objective: Objective, *, mask: int, dtype: str) -> dict[str, Any]:
        a = holdable(self, spec, objective)
        told = {"model_type": KIND, "architectures": ["TransfoXLLMHeadModel"], "adaptive": True, **FIXED}
        return {**told, **config_of(a, TRANSFORMERS), "mask_index": mask, "torch_dtype": dtype}


def read_config(config: Mapping[str, Any], names: Mapping[str, str], *, separate: bool) -> Found:
    """The network of a config.json; `separate`: whether its layers have their own biases unless it says so."""
    check_fixed(config, FIXED)
    keys = {field: key for key, field in names.items()}
    sizes: dict[str, Any] = {field: whole(config, key) for key, field in SIZES.items() if field != "memory"}
    memory, clamp, cutoffs = config.get("mem_len"), config.get("clamp_len", -1), config.get("cutoffs", [])
    if type(memory) is not int or memory < 0:
        raise UserError(f"config.json says mem_len = {memory!r:.60}: it must be a whole number from 0.")
    if type(clamp) is not int:
        raise UserError(f"config.json says clamp_len = {clamp!r:.60}: it must be a whole number.")
    if not isinstance(cutoffs, list) or not all(type(one) is int for one in cutoffs):
        raise UserError(f"config.json says cutoffs = {cutoffs!r:.60}: it must be a list of ids.")
    spec = TransformerXLSpec(
        vocab=whole(config, keys["vocab"]),
        length=whole(config, keys["length"], 128),
        memory=memory,
        same_length=flag(config, "same_length", False),
        clamp=max(0, clamp),
        cutoffs=tuple(cutoffs),
        tied=flag(config, keys["tied"], True),
        tied_projections=tied_projections(config, len(cutoffs)),
        separate=flag(config, keys["separate"], separate),
        **sizes,
    )
    return Found(spec, mask_if_told(dict(config), spec), Autoregressive())


def tied_projections(config: Mapping[str, Any], cutoffs: int) -> bool:
    """Whether all projections but the first are shared by embedding and head; other choices are refused."""
    told = config.get("tie_projs", [False] * (cutoffs + 1))
    for tied in (False, True):
        if told == [False, *[tied] * cutoffs]:
            return tied
    raise UserError(
        f"config.json says tie_projs = {told!r:.60}: unmask supports only false for the first of {cutoffs + 1} "
        "groups and one value for the others."
    )


def config_of(a: TransformerXLSpec, names: Mapping[str, str]) -> dict[str, Any]:
    values = {"head": a.features, "inner": a.hidden, "embed": a.embedded}
    return {
        **{key: getattr(a, field) for key, field in names.items()},
        **{key: values.get(field, getattr(a, field)) for key, field in SIZES.items()},
        "same_length": a.same_length,
        "clamp_len": a.clamp or -1,
        "cutoffs": list(a.cutoffs),
        "tie_projs": [False, *[a.tied_projections] * len(a.cutoffs)],
    }


def holdable(layout: Format, spec: Spec, objective: Objective) -> TransformerXLSpec:
    if not isinstance(spec, TransformerXLSpec):
        raise UserError(f"the layout {layout.name!r} holds the backbone 'transformer-xl' only, not {spec.name!r}.")
    if not objective.facts.causal:
        raise UserError(f"the layout {layout.name!r} cannot record that the objective is {objective.name!r}.")
    return spec
