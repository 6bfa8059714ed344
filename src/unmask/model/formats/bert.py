"""The layouts of BERT and MosaicBERT in transformers. MosaicBERT's own code is not needed, and never run."""

from collections.abc import Mapping
from typing import Any, ClassVar

from unmask.errors import UserError
from unmask.model.backbone import Spec
from unmask.model.backbones.bert import BertSpec
from unmask.model.format import FORMATS, Files
from unmask.model.formats.encoder import SIZES, EncoderFormat, activation, sizes
from unmask.model.formats.keys import check_fixed, number, whole

FIXED = {"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"}
ALIBI = "alibi_starting_size"  # a key that only MosaicBERT has


@FORMATS.register("bert", "the BERT checkpoints of transformers")
class BertLayout(EncoderFormat):
    """`model_type` bert. Heads for other tasks are left out."""

    kinds = ("bert",)
    architecture = "BertForMaskedLM"
    prefix = "bert."
    outside = ("cls.",)
    dropped = ("classifier.", "embeddings.position_ids")

    def matches(self, files: Files) -> bool:
        return super().matches(files) and ALIBI not in files.config

    def spec(self, config: Mapping[str, Any], *, pooled: bool) -> Spec:
        check_fixed(config, FIXED)
        positions = whole(config, "max_position_embeddings")
        return BertSpec(
            **sizes(config),
            positions=positions,
            length=positions,
            segments=whole(config, "type_vocab_size", 2),
            tanh=activation(config),
            pooled=pooled,
            eps=number(config, "layer_norm_eps", 1e-12),
            dropout=number(config, "hidden_dropout_prob", 0.1),
        )

    def keys(self, spec: Any) -> dict[str, Any]:
        self.check_fields(spec, offset=0, alibi=False, gated=False, joined=False, embedding=0, shared=False)
        return {**bert_keys(spec), "max_position_embeddings": spec.reach}


@FORMATS.register("mosaicbert", "the MosaicBERT checkpoints: BERT with linear biases and a gated MLP")
class MosaicBertLayout(EncoderFormat):
    """`model_type` bert with `alibi_starting_size`; the vocabulary is padded to a multiple of 8."""

    kinds = ("bert",)
    architecture = "BertForMaskedLM"
    prefix = "bert."
    outside = ("cls.",)
    names: ClassVar[Mapping[str, str]] = {
        "#.mlp.gated_layers.": "#.intermediate.dense.",
        "#.mlp.wo.": "#.output.dense.",
        "#.mlp.layernorm.": "#.output.LayerNorm.",
    }
    dropped = ("classifier.", "embeddings.position_ids", "encoder.alibi")

    def matches(self, files: Files) -> bool:
        return super().matches(files) and ALIBI in files.config

    def spec(self, config: Mapping[str, Any], *, pooled: bool) -> Spec:
        check_fixed(config, {key: value for key, value in FIXED.items() if key != "position_embedding_type"})
        if activation(config):
            raise UserError("config.json says that GELU is approximated by tanh: MosaicBERT has the exact one.")
        known = sizes(config)
        return BertSpec(
            **known | {"vocab": -(-known["vocab"] // 8) * 8},
            length=whole(config, ALIBI),
            segments=whole(config, "type_vocab_size", 2),
            alibi=True,
            gated=True,
            joined=True,
            pooled=pooled,
            eps=number(config, "layer_norm_eps", 1e-12),
            dropout=number(config, "hidden_dropout_prob", 0.1),
        )

    def keys(self, spec: Any) -> dict[str, Any]:
        self.check_fields(spec, alibi=True, gated=True, joined=True, tanh=False, embedding=0, shared=False)
        if spec.vocab % 8:
            raise UserError(f"the layout {self.name!r} has vocabularies that are a multiple of 8, not {spec.vocab}.")
        return {**bert_keys(spec), ALIBI: spec.length, "attention_probs_dropout_prob": 0.0}


def bert_keys(spec: BertSpec) -> dict[str, Any]:
    if not spec.segments:
        raise UserError("a BERT has segments: this network has none.")
    return {
        **{key: getattr(spec, field) for field, key in SIZES.items()},
        "intermediate_size": spec.hidden,
        "type_vocab_size": spec.segments,
        "hidden_act": "gelu_new" if spec.tanh else "gelu",
        "layer_norm_eps": spec.eps,
        "hidden_dropout_prob": spec.dropout,
        "attention_probs_dropout_prob": spec.dropout,
    }
