"""The layouts of BERT and its relatives in transformers, each a table: names of tensors, and keys of config.json.

MosaicBERT's own code is not needed, and never run. The first positions of RoBERTa's table belong to padding: a text
begins at the one after the id of the padding.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from unmask.errors import UserError
from unmask.model.backbone import Spec
from unmask.model.backbones.bert import BertSpec
from unmask.model.format import FORMATS, Contents, Files
from unmask.model.formats.encoder import SIZES, EncoderFormat, activation
from unmask.model.formats.keys import Keys, check_fixed, padded_vocab, whole

POSITIONS, ALIBI = "max_position_embeddings", "alibi_starting_size"  # the second: a key that only MosaicBERT has
ENCODER = {"is_decoder": False, "add_cross_attention": False}
PLAIN = {"offset": 0, "alibi": False, "gated": False, "joined": False, "embedding": 0, "shared": False}
HEAD = "cls.predictions.transform."
SIZED: Keys = {
    **SIZES,
    "segments": ("type_vocab_size", 2),
    "eps": ("layer_norm_eps", 1e-12),
    "dropout": ("hidden_dropout_prob", 0.1),
}


class BertFormat(EncoderFormat):
    """A relative of BERT: what its config.json calls the fields of a `BertSpec`, and which of them are fixed."""

    outside = ("cls.",)
    fields: ClassVar[Keys] = {**SIZED, "length": POSITIONS, "positions": POSITIONS}
    activation: ClassVar[tuple[str, str]] = ("hidden_act", "gelu")  # its key, and the default
    attention_dropout: ClassVar[str] = "attention_probs_dropout_prob"
    values: ClassVar[Mapping[str, Any]] = {}  # fields that have one value in this family
    assumed: ClassVar[Mapping[str, Any]] = {**ENCODER, "position_embedding_type": "absolute"}  # fixed, never written

    def read(self, files: Files) -> Contents:
        contents = super().read(files)
        pooled = any(self.our_name(name) == "backbone.pooler.dense.weight" for name in files.tensors)
        return replace(contents, spec=replace(contents.spec, pooled=pooled))

    def others(self, config: Mapping[str, Any]) -> dict[str, Any]:
        check_fixed(config, self.assumed)
        return {"tanh": activation(config, *self.activation), **self.values}

    def other_keys(self, spec: Any) -> dict[str, Any]:
        self.check_fields(spec, **{**PLAIN, **self.values})
        if "segments" in self.fields and not spec.segments:
            raise UserError("a BERT has segments: this network has none.")
        return {
            self.activation[0]: "gelu_new" if spec.tanh else "gelu",
            self.attention_dropout: spec.dropout,
        }


@FORMATS.register("bert", "the BERT checkpoints of transformers")
class PlainBert(BertFormat):
    kinds = ("bert",)
    architecture = "BertForMaskedLM"
    prefix = "bert."

    def matches(self, files: Files) -> bool:
        return super().matches(files) and ALIBI not in files.config


@FORMATS.register("mosaicbert", "the MosaicBERT checkpoints: BERT with linear biases and a gated MLP")
class MosaicBert(BertFormat):
    """`model_type` bert with `alibi_starting_size`; the vocabulary is padded to a multiple of 8."""

    kinds = ("bert",)
    architecture = "BertForMaskedLM"
    prefix = "bert."
    names: ClassVar[Mapping[str, str]] = {
        "#.mlp.gated_layers.": "#.intermediate.dense.",
        "#.mlp.wo.": "#.output.dense.",
        "#.mlp.layernorm.": "#.output.LayerNorm.",
    }
    dropped = (*EncoderFormat.dropped, "encoder.alibi")
    fields: ClassVar[Keys] = {**SIZED, "length": ALIBI}
    values: ClassVar[Mapping[str, Any]] = {"alibi": True, "gated": True, "joined": True, "tanh": False}
    assumed: ClassVar[Mapping[str, Any]] = ENCODER

    def matches(self, files: Files) -> bool:
        return super().matches(files) and ALIBI in files.config

    def others(self, config: Mapping[str, Any]) -> dict[str, Any]:
        if activation(config):
            raise UserError("config.json says that GELU is approximated by tanh: MosaicBERT has the exact one.")
        return {**super().others(config), "vocab": padded_vocab(config)}

    def other_keys(self, spec: Any) -> dict[str, Any]:
        if spec.vocab % 8:
            raise UserError(f"the layout {self.name!r} has vocabularies that are a multiple of 8, not {spec.vocab}.")
        return {**super().other_keys(spec), self.attention_dropout: 0.0}


@FORMATS.register("albert", "the ALBERT checkpoints of transformers")
class Albert(BertFormat):
    """A narrow embedding, and layers that share their weights."""

    kinds = ("albert",)
    architecture = "AlbertForMaskedLM"
    prefix = "albert."
    names: ClassVar[Mapping[str, str]] = {
        "encoder.albert_layer_groups.0.albert_layers.0.": "encoder.layer.0.",
        ".attention.query.": ".attention.self.query.",
        ".attention.key.": ".attention.self.key.",
        ".attention.value.": ".attention.self.value.",
        ".attention.dense.": ".attention.output.dense.",
        ".attention.LayerNorm.": ".attention.output.LayerNorm.",
        "#.ffn.": "#.intermediate.dense.",
        "#.ffn_output.": "#.output.dense.",
        "#.full_layer_layer_norm.": "#.output.LayerNorm.",
        "predictions.dense.": f"{HEAD}dense.",
        "predictions.LayerNorm.": f"{HEAD}LayerNorm.",
        "predictions.decoder.": "cls.predictions.decoder.",
        "predictions.bias": "cls.predictions.bias",
        "pooler.": "pooler.dense.",
    }
    outside = ("predictions.",)
    fields: ClassVar[Keys] = {
        **BertFormat.fields,
        "embedding": "embedding_size",
        "dropout": ("hidden_dropout_prob", 0.0),
    }
    activation = ("hidden_act", "gelu_new")
    values: ClassVar[Mapping[str, Any]] = {"shared": True}
    fixed: ClassVar[Mapping[str, Any]] = {"num_hidden_groups": 1, "inner_group_num": 1}

    def check_fields(self, spec: Spec, **wanted: Any) -> None:
        assert isinstance(spec, BertSpec)
        super().check_fields(spec, **wanted | {"embedding": spec.embedded})


@FORMATS.register("distilbert", "the DistilBERT checkpoints of transformers")
class DistilBert(BertFormat):
    """No segments and no pooler."""

    kinds = ("distilbert",)
    architecture = "DistilBertForMaskedLM"
    prefix = "distilbert."
    names: ClassVar[Mapping[str, str]] = {
        "transformer.layer.": "encoder.layer.",
        ".attention.q_lin.": ".attention.self.query.",
        ".attention.k_lin.": ".attention.self.key.",
        ".attention.v_lin.": ".attention.self.value.",
        ".attention.out_lin.": ".attention.output.dense.",
        ".sa_layer_norm.": ".attention.output.LayerNorm.",
        ".ffn.lin1.": ".intermediate.dense.",
        ".ffn.lin2.": ".output.dense.",
        ".output_layer_norm.": ".output.LayerNorm.",
        "vocab_transform.": f"{HEAD}dense.",
        "vocab_layer_norm.": f"{HEAD}LayerNorm.",
        "vocab_projector.weight": "cls.predictions.decoder.weight",
        "vocab_projector.bias": "cls.predictions.bias",
    }
    outside = ("vocab_",)
    fields: ClassVar[Keys] = {
        "vocab": "vocab_size",
        "width": "dim",
        "blocks": "n_layers",
        "heads": "n_heads",
        "inner": "hidden_dim",
        "dropout": ("dropout", 0.1),
        "length": (POSITIONS, 512),
        "positions": (POSITIONS, 512),
    }
    activation = ("activation", "gelu")
    attention_dropout = "attention_dropout"
    values: ClassVar[Mapping[str, Any]] = {"segments": 0, "eps": 1e-12, "pooled": False}
    assumed: ClassVar[Mapping[str, Any]] = {}
    # With sinusoids their table, which is in the files, would be learned here.
    fixed: ClassVar[Mapping[str, Any]] = {"sinusoidal_pos_embds": False}


@FORMATS.register("roberta", "the RoBERTa checkpoints of transformers")
class Roberta(BertFormat):
    kinds = ("roberta", "xlm-roberta", "camembert")
    architecture = "RobertaForMaskedLM"
    prefix = "roberta."
    names: ClassVar[Mapping[str, str]] = {
        "lm_head.dense.": f"{HEAD}dense.",
        "lm_head.layer_norm.": f"{HEAD}LayerNorm.",
        "lm_head.decoder.": "cls.predictions.decoder.",
        "lm_head.bias": "cls.predictions.bias",
    }
    outside = ("lm_head.",)
    fields: ClassVar[Keys] = {**SIZED, "segments": ("type_vocab_size", 1)}

    def others(self, config: Mapping[str, Any]) -> dict[str, Any]:
        offset = whole(config, "pad_token_id", 1) + 1
        positions = max(1, whole(config, POSITIONS) - offset)
        return {**super().others(config), "positions": positions, "length": positions, "offset": offset}

    def check_fields(self, spec: Spec, **wanted: Any) -> None:
        super().check_fields(spec, **wanted | {"offset": 2})

    def other_keys(self, spec: Any) -> dict[str, Any]:
        positions = {"pad_token_id": spec.offset - 1, POSITIONS: spec.offset + (spec.reach or 0)}
        return {**super().other_keys(spec), **positions}
