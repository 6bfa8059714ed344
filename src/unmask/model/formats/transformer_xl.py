"""Two layouts of one network: the Transformer-XL of its authors and that of transformers, read without their code.

The authors' config.json has the names of their arguments and no model_type. In transformers all tensors but the head
are under `transformer.`. Neither has a mask: it is the tokenizer's, or the last id.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from unmask.errors import UserError
from unmask.model.backbones.transformer_xl import TransformerXLSpec
from unmask.model.format import FORMATS
from unmask.model.formats.keys import Keys
from unmask.model.formats.table import TableFormat

SIZES: Keys = {
    "blocks": "n_layer",
    "heads": "n_head",
    "width": "d_model",
    "head": "d_head",
    "inner": "d_inner",
    "embed": "d_embed",
    "divide": "div_val",
    "length": ("tgt_len", 128),
    "same_length": ("same_length", False),
}


class TransformerXLFormat(TableFormat):
    """What both layouts share."""

    repeats = True
    backbone = TransformerXLSpec
    fixed: ClassVar[Mapping[str, Any]] = {"pre_lnorm": False, "ext_len": 0, "attn_type": 0}

    def others(self, config: Mapping[str, Any]) -> dict[str, Any]:
        memory, clamp, cutoffs = config.get("mem_len"), config.get("clamp_len", -1), config.get("cutoffs", [])
        if type(memory) is not int or memory < 0:
            raise UserError(f"config.json says mem_len = {memory!r:.60}: it must be a whole number from 0.")
        if type(clamp) is not int:
            raise UserError(f"config.json says clamp_len = {clamp!r:.60}: it must be a whole number.")
        if not isinstance(cutoffs, list) or not all(type(one) is int for one in cutoffs):
            raise UserError(f"config.json says cutoffs = {cutoffs!r:.60}: it must be a list of ids.")
        shared = tied_projections(config, len(cutoffs))
        return {"memory": memory, "clamp": max(0, clamp), "cutoffs": tuple(cutoffs), "tied_projections": shared}

    def other_keys(self, spec: Any) -> dict[str, Any]:
        return {
            "mem_len": spec.memory,
            "clamp_len": spec.clamp or -1,
            "cutoffs": list(spec.cutoffs),
            "tie_projs": [False, *[spec.tied_projections] * len(spec.cutoffs)],
        }


@FORMATS.register("transformer-xl", "Transformer-XL with its authors' names")
class Authors(TransformerXLFormat):
    """config.json without a model_type, with `n_token`, `mem_len` and `clamp_len`."""

    kinds = (None,)
    marked = frozenset({"n_token", "mem_len", "clamp_len"})
    fields: ClassVar[Keys] = {
        **SIZES,
        "vocab": "n_token",
        "tied": ("tie_weight", True),
        "separate": ("separate_biases", False),
    }


@FORMATS.register("transformers-transfo-xl", "Transformer-XL checkpoints of transformers")
class Transformers(TransformerXLFormat):
    """`model_type` transfo-xl."""

    kinds = ("transfo-xl",)
    architecture = "TransfoXLLMHeadModel"
    fields: ClassVar[Keys] = {
        **SIZES,
        "vocab": "vocab_size",
        "tied": ("tie_word_embeddings", True),
        "separate": ("untie_r", True),
    }
    prefix = "transformer."
    outside = ("crit.",)

    def other_keys(self, spec: Any) -> dict[str, Any]:
        return {**super().other_keys(spec), "adaptive": True}


def tied_projections(config: Mapping[str, Any], cutoffs: int) -> bool:
    """Whether all projections but the first are shared by embedding and head; other choices are refused."""
    stated = config.get("tie_projs", [False] * (cutoffs + 1))
    for tied in (False, True):
        if stated == [False, *[tied] * cutoffs]:
            return tied
    raise UserError(
        f"config.json says tie_projs = {stated!r:.60}: unmask supports only false for the first of {cutoffs + 1} "
        "groups and one value for the others."
    )
