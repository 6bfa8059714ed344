"""Two layouts of one network: the Mamba checkpoints of state-spaces and of transformers, read without their code.

Tensors differ in one name. The vocabulary has the embedding's rows, which state-spaces pads to a multiple of 8.
Neither config has a mask: it is the tokenizer's, or the last row, which no tokenizer uses if the rows were padded.
"""

from collections.abc import Mapping
from typing import Any

from unmask.diffusion.autoregressive import Autoregressive
from unmask.diffusion.objective import Objective
from unmask.errors import UserError
from unmask.model.backbone import Spec
from unmask.model.backbones.mamba import MambaSpec
from unmask.model.format import FORMATS, Files, Format, Found
from unmask.model.formats.keys import check_fixed, flag, number, whole
from unmask.model.formats.official import mask_of

# Keys of the configs that only have one value here: another one means another network.
STATE_SPACES_FIXED = {"rms_norm": True, "d_intermediate": 0, "attn_layer_idx": [], "attn_cfg": {}}
SSM_FIXED = {"layer": "Mamba1", "conv_bias": True, "bias": False}
SSM_KNOWN = {"d_state", "d_conv", "expand", "dt_rank"}
SSM_FRESH = {
    "dt_min",
    "dt_max",
    "dt_init",
    "dt_scale",
    "dt_init_floor",
    "use_fast_path",
}  # of fresh weights, or speed
TRANSFORMERS_FIXED = {"use_bias": False, "use_conv_bias": True, "hidden_act": "silu"}


@FORMATS.register("state-spaces", "the Mamba checkpoints of state-spaces")
class StateSpaces(Format):
    """config.json without a model_type, with `d_model` and `ssm_cfg`."""

    repeats = True

    def matches(self, files: Files) -> bool:
        return not files.note and files.kind is None and "ssm_cfg" in files.config

    def read(self, files: Files) -> Found:
        config = files.config
        check_fixed(config, STATE_SPACES_FIXED)
        vocab = whole(config, "vocab_size")
        multiple = whole(config, "pad_vocab_size_multiple", 8)
        spec = MambaSpec(
            vocab=-(-vocab // multiple) * multiple,
            width=whole(config, "d_model"),
            blocks=whole(config, "n_layer"),
            tied=flag(config, "tie_embeddings", True),
            **layer_sizes(config),
        )
        return Found(spec, mask_if_told(config, spec), Autoregressive())

    def written(self, name: str, spec: Spec) -> str:
        return name.replace("backbone.lm_head.", "lm_head.")

    def config(self, spec: Spec, objective: Objective, *, mask: int, dtype: str) -> dict[str, Any]:
        a = holdable(self, spec, objective)
        if a.eps != 1e-5:
            raise UserError(f"the layout {self.name!r} has norms with eps 1e-5 only, not {a.eps}.")
        return {
            "d_model": a.width,
            "n_layer": a.blocks,
            "vocab_size": a.vocab,
            "ssm_cfg": {"d_state": a.state, "d_conv": a.kernel, "expand": a.expand, "dt_rank": a.size.rank},
            "rms_norm": True,
            "residual_in_fp32": True,
            "fused_add_norm": True,
            "pad_vocab_size_multiple": 1,
            "tie_embeddings": a.tied,
            "mask_index": mask,
        }


@FORMATS.register("transformers-mamba", "the Mamba checkpoints of transformers")
class TransformersMamba(Format):
    """`model_type` mamba."""

    def matches(self, files: Files) -> bool:
        return not files.note and files.kind == "mamba"

    def read(self, files: Files) -> Found:
        config = files.config
        check_fixed(config, TRANSFORMERS_FIXED)
        spec = MambaSpec(
            vocab=whole(config, "vocab_size"),
            width=whole(config, "hidden_size"),
            blocks=whole(config, "num_hidden_layers"),
            state=whole(config, "state_size", 16),
            kernel=whole(config, "conv_kernel", 4),
            expand=whole(config, "expand", 2),
            rank=rank_of(config, "time_step_rank"),
            tied=flag(config, "tie_word_embeddings", True),
            eps=number(config, "layer_norm_epsilon", 1e-5),
        )
        return Found(spec, mask_if_told(config, spec), Autoregressive())

    def renamed(self, name: str) -> str | None:
        return super().renamed(name.replace("backbone.embeddings.", "backbone.embedding."))

    def written(self, name: str, spec: Spec) -> str:
        name = name.replace("backbone.embedding.", "backbone.embeddings.")
        return name.replace("backbone.lm_head.", "lm_head.")

    def config(self, spec: Spec, objective: Objective, *, mask: int, dtype: str) -> dict[str, Any]:
        a = holdable(self, spec, objective)
        return {
            "model_type": "mamba",
            "architectures": ["MambaForCausalLM"],
            "vocab_size": a.vocab,
            "hidden_size": a.width,
            "intermediate_size": a.size.channels,
            "num_hidden_layers": a.blocks,
            "state_size": a.state,
            "conv_kernel": a.kernel,
            "expand": a.expand,
            "time_step_rank": a.size.rank,
            "layer_norm_epsilon": a.eps,
            "residual_in_fp32": True,
            **TRANSFORMERS_FIXED,
            "tie_word_embeddings": a.tied,
            "mask_index": mask,
            "torch_dtype": dtype,
        }


def mask_if_told(config: dict[str, Any], spec: Spec) -> int | None:
    """The mask in a config.json that unmask wrote; published ones have none."""
    return mask_of(config, spec) if "mask_index" in config else None


def holdable(layout: Format, spec: Spec, objective: Objective) -> MambaSpec:
    if not isinstance(spec, MambaSpec):
        raise UserError(f"the layout {layout.name!r} holds the backbone 'mamba' only, not {spec.name!r}.")
    if not objective.facts.causal:
        raise UserError(f"the layout {layout.name!r} cannot record that the objective is {objective.name!r}.")
    return spec


def layer_sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    """state, kernel, expand and rank in a table `ssm_cfg`; refuses a layer that is not Mamba's first version."""
    ssm = config.get("ssm_cfg")
    if not isinstance(ssm, dict):
        raise UserError(f"config.json says ssm_cfg = {ssm!r:.60}: it must be a table.")
    for key in ssm.keys() - SSM_FIXED.keys() - SSM_KNOWN - SSM_FRESH:
        raise UserError(f"config.json has an ssm_cfg with {key!r:.60}, which unmask does not know.")
    check_fixed(ssm, SSM_FIXED)
    return {
        "state": whole(ssm, "d_state", 16),
        "kernel": whole(ssm, "d_conv", 4),
        "expand": whole(ssm, "expand", 2),
        "rank": rank_of(ssm, "dt_rank"),
    }


def rank_of(table: Mapping[str, Any], key: str) -> int:
    return 0 if table.get(key, "auto") == "auto" else whole(table, key)
