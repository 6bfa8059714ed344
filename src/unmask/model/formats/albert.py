"""The layout of ALBERT in transformers: a BERT with a narrow embedding, whose layers share their weights."""

from collections.abc import Mapping
from typing import Any, ClassVar

from unmask.model.backbone import Spec
from unmask.model.backbones.bert import BertSpec
from unmask.model.format import FORMATS
from unmask.model.formats.bert import FIXED, bert_keys
from unmask.model.formats.encoder import EncoderFormat, activation, sizes
from unmask.model.formats.keys import check_fixed, number, whole

GROUPS = {"num_hidden_groups": 1, "inner_group_num": 1}


@FORMATS.register("albert", "the ALBERT checkpoints of transformers")
class AlbertLayout(EncoderFormat):
    """`model_type` albert."""

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
        "predictions.dense.": "cls.predictions.transform.dense.",
        "predictions.LayerNorm.": "cls.predictions.transform.LayerNorm.",
        "predictions.decoder.": "cls.predictions.decoder.",
        "predictions.bias": "cls.predictions.bias",
        "pooler.": "pooler.dense.",
    }
    outside = ("predictions.",)
    dropped = ("classifier.", "embeddings.position_ids")

    def spec(self, config: Mapping[str, Any], *, pooled: bool) -> Spec:
        check_fixed(config, {**FIXED, **GROUPS})
        positions = whole(config, "max_position_embeddings")
        return BertSpec(
            **sizes(config),
            positions=positions,
            length=positions,
            segments=whole(config, "type_vocab_size", 2),
            embedding=whole(config, "embedding_size"),
            shared=True,
            tanh=activation(config, usual="gelu_new"),
            pooled=pooled,
            eps=number(config, "layer_norm_eps", 1e-12),
            dropout=number(config, "hidden_dropout_prob", 0.0),
        )

    def keys(self, spec: Any) -> dict[str, Any]:
        self.check_fields(spec, offset=0, alibi=False, gated=False, joined=False, shared=True)
        self.check_fields(spec, embedding=spec.embedding or spec.width)
        return {
            **bert_keys(spec),
            **GROUPS,
            "max_position_embeddings": spec.reach,
            "embedding_size": spec.embedding,
        }
