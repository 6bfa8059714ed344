"""Two layouts of one network: the Mamba checkpoints of state-spaces and of transformers, read without their code.

Tensors differ in one name. The vocabulary has the embedding's rows, which state-spaces pads to a multiple of 8.
Neither config has a mask: it is the tokenizer's, or the last row, which no tokenizer uses if the rows were padded.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from unmask.errors import UserError
from unmask.model.backbones.mamba import MambaSpec
from unmask.model.format import FORMATS
from unmask.model.formats.keys import Keys, check_fixed, padded_vocab, read_fields, whole
from unmask.model.formats.table import TableFormat

SSM_FIXED = {"layer": "Mamba1", "conv_bias": True, "bias": False}
SSM_KEYS: Keys = {"state": ("d_state", 16), "kernel": ("d_conv", 4), "expand": ("expand", 2)}
SSM_KNOWN = {"d_state", "d_conv", "expand", "dt_rank", *SSM_FIXED}
SSM_FRESH = {
    "dt_min",
    "dt_max",
    "dt_init",
    "dt_scale",
    "dt_init_floor",
    "use_fast_path",
}  # of fresh weights, or speed


@FORMATS.register("state-spaces", "the Mamba checkpoints of state-spaces")
class StateSpaces(TableFormat):
    """config.json without a model_type, with `d_model` and `ssm_cfg`."""

    repeats = True
    kinds = (None,)
    marked = frozenset({"ssm_cfg"})
    backbone = MambaSpec
    fields: ClassVar[Keys] = {"width": "d_model", "blocks": "n_layer", "tied": ("tie_embeddings", True)}
    fixed: ClassVar[Mapping[str, Any]] = {"rms_norm": True, "d_intermediate": 0, "attn_layer_idx": [], "attn_cfg": {}}
    prefix = "backbone."
    outside = ("lm_head.",)

    def others(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return {"vocab": padded_vocab(config), **layer_sizes(config)}

    def other_keys(self, spec: Any) -> dict[str, Any]:
        if spec.eps != 1e-5:
            raise UserError(f"the layout {self.name!r} has norms with eps 1e-5 only, not {spec.eps}.")
        speed = {"residual_in_fp32": True, "fused_add_norm": True}
        return {"vocab_size": spec.vocab, "pad_vocab_size_multiple": 1, "ssm_cfg": ssm_of(spec), **speed}


@FORMATS.register("transformers-mamba", "the Mamba checkpoints of transformers")
class TransformersMamba(TableFormat):
    """`model_type` mamba."""

    kinds = ("mamba",)
    architecture = "MambaForCausalLM"
    backbone = MambaSpec
    fields: ClassVar[Keys] = {
        "vocab": "vocab_size",
        "width": "hidden_size",
        "blocks": "num_hidden_layers",
        "state": ("state_size", 16),
        "kernel": ("conv_kernel", 4),
        "expand": ("expand", 2),
        "tied": ("tie_word_embeddings", True),
        "eps": ("layer_norm_epsilon", 1e-5),
    }
    fixed: ClassVar[Mapping[str, Any]] = {"use_bias": False, "use_conv_bias": True, "hidden_act": "silu"}
    prefix = "backbone."
    outside = ("lm_head.",)
    names: ClassVar[Mapping[str, str]] = {"embeddings.": "embedding."}

    def others(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return {"rank": rank_of(config, "time_step_rank")}

    def other_keys(self, spec: Any) -> dict[str, Any]:
        sizes = {"intermediate_size": spec.size.channels, "time_step_rank": spec.size.rank}
        return {**sizes, "residual_in_fp32": True}


def layer_sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    """state, kernel, expand and rank in a table `ssm_cfg`; refuses a layer that is not Mamba's first version."""
    ssm = config.get("ssm_cfg")
    if not isinstance(ssm, dict):
        raise UserError(f"config.json says ssm_cfg = {ssm!r:.60}: it must be a table.")
    for key in ssm.keys() - SSM_KNOWN - SSM_FRESH:
        raise UserError(f"config.json has an ssm_cfg with {key!r:.60}, which unmask does not know.")
    check_fixed(ssm, SSM_FIXED)
    return {**read_fields(ssm, SSM_KEYS), "rank": rank_of(ssm, "dt_rank")}


def ssm_of(spec: Any) -> dict[str, int]:
    """The opposite of `layer_sizes`."""
    return {"d_state": spec.state, "d_conv": spec.kernel, "expand": spec.expand, "dt_rank": spec.size.rank}


def rank_of(table: Mapping[str, Any], key: str) -> int:
    return 0 if table.get(key, "auto") == "auto" else whole(table, key)
