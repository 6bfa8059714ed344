"""The layout of DistilBERT in transformers: a BERT without segments and without a pooler."""

from collections.abc import Mapping
from typing import Any, ClassVar

from unmask.model.backbone import Spec
from unmask.model.backbones.bert import BertSpec
from unmask.model.format import FORMATS
from unmask.model.formats.encoder import EncoderFormat, activation, sizes
from unmask.model.formats.keys import check_fixed, number, whole

FIXED = {"sinusoidal_pos_embds": False}  # or their table, which is in the files, would be learned here
KEYS = {"vocab": "vocab_size", "width": "dim", "blocks": "n_layers", "heads": "n_heads", "inner": "hidden_dim"}


@FORMATS.register("distilbert", "the DistilBERT checkpoints of transformers")
class DistilBertLayout(EncoderFormat):
    """`model_type` distilbert."""

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
        "vocab_transform.": "cls.predictions.transform.dense.",
        "vocab_layer_norm.": "cls.predictions.transform.LayerNorm.",
        "vocab_projector.weight": "cls.predictions.decoder.weight",
        "vocab_projector.bias": "cls.predictions.bias",
    }
    outside = ("vocab_",)
    dropped = ("classifier.", "embeddings.position_ids")

    def spec(self, config: Mapping[str, Any], *, pooled: bool) -> Spec:
        check_fixed(config, FIXED)
        positions = whole(config, "max_position_embeddings", 512)
        return BertSpec(
            **sizes(config, KEYS),
            positions=positions,
            length=positions,
            segments=0,
            tanh=activation(config, "activation"),
            dropout=number(config, "dropout", 0.1),
        )

    def keys(self, spec: Any) -> dict[str, Any]:
        plain = {"offset": 0, "segments": 0, "embedding": 0, "eps": 1e-12}
        self.check_fields(spec, **plain, alibi=False, gated=False, joined=False, shared=False, pooled=False)
        return {
            **{key: getattr(spec, field) for field, key in KEYS.items()},
            "hidden_dim": spec.hidden,
            "max_position_embeddings": spec.reach,
            "activation": "gelu_new" if spec.tanh else "gelu",
            "dropout": spec.dropout,
            "attention_dropout": spec.dropout,
            **FIXED,
        }
