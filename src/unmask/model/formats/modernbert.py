"""The layout of ModernBERT in transformers."""

from collections.abc import Mapping
from typing import Any, ClassVar

from unmask.errors import UserError
from unmask.model.backbones.modernbert import ModernBertSpec
from unmask.model.format import FORMATS
from unmask.model.formats.encoder import SIZES, EncoderFormat
from unmask.model.formats.keys import Keys, check_fixed, number, whole

FULL, LOCAL = "full_attention", "sliding_attention"
EVERY = "global_attn_every_n_layers"


@FORMATS.register("modernbert", "the ModernBERT checkpoints of transformers")
class ModernBertLayout(EncoderFormat):
    """`model_type` modernbert; the layers that see everything are listed, or one in so many."""

    kinds = ("modernbert",)
    architecture = "ModernBertForMaskedLM"
    backbone = ModernBertSpec
    fields: ClassVar[Keys] = {
        **SIZES,
        "length": ("max_position_embeddings", 8192),
        "window": ("local_attention", 128),
        "eps": ("norm_eps", 1e-5),
        "dropout": ("mlp_dropout", 0.0),
    }
    fixed: ClassVar[Mapping[str, Any]] = {
        **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), False),
        "decoder_bias": True,
        **dict.fromkeys(("hidden_activation", "classifier_activation"), "gelu"),
    }
    prefix = "model."
    head = "prediction."
    names: ClassVar[Mapping[str, str]] = {
        "embeddings.tok_embeddings.": "tok_embeddings.",
        "embeddings.norm.": "embedding_norm.",
        "head.dense.": "prediction.dense.",
        "head.norm.": "prediction.norm.",
        "decoder.weight": "prediction.decoder",
        "decoder.bias": "prediction.bias",
    }
    outside = ("head.", "decoder.")

    def others(self, config: Mapping[str, Any]) -> dict[str, Any]:
        theta, local_theta = (theta_of(config, kind) for kind in (FULL, LOCAL))
        return {"every": every_of(config), "theta": theta, "local_theta": local_theta}

    def other_keys(self, spec: Any) -> dict[str, Any]:
        return {
            "layer_types": [LOCAL if number % spec.every else FULL for number in range(spec.blocks)],
            "rope_parameters": {
                FULL: {"rope_type": "default", "rope_theta": spec.theta},
                LOCAL: {"rope_type": "default", "rope_theta": spec.local_theta},
            },
            **dict.fromkeys(("attention_dropout", "embedding_dropout"), spec.dropout),
            **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")),
        }


def every_of(config: Mapping[str, Any]) -> int:
    """How often a layer sees everything."""
    kinds = config.get("layer_types")
    if kinds is None:
        return whole(config, EVERY, 3)
    full = [number for number, kind in enumerate(kinds) if kind == FULL] if isinstance(kinds, list) else []
    every = full[1] if len(full) > 1 else max(1, len(kinds)) if full else 0
    if not every or kinds != [LOCAL if number % every else FULL for number in range(len(kinds))]:
        raise UserError(
            f"config.json says layer_types = {kinds!r:.80}: unmask supports full attention in one layer of every so "
            "many, from the first on."
        )
    return every


def theta_of(config: Mapping[str, Any], kind: str) -> float:
    """The base of the rotary positions of a kind of layers, in a new config or an old one."""
    table = config.get("rope_parameters")
    mine = table.get(kind) if isinstance(table, Mapping) else None
    if not isinstance(mine, Mapping):
        old, usual = ("global_rope_theta", 160_000.0) if kind == FULL else ("local_rope_theta", 10_000.0)
        return number(config, old, usual)
    check_fixed(mine, {"rope_type": "default"})
    return number(mine, "rope_theta", 160_000.0 if kind == FULL else 10_000.0)
