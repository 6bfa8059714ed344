"""The layout of RoBERTa in transformers, and of the models that share it: XLM-RoBERTa and CamemBERT.

The first positions of its table belong to padding: a text begins at the one after the id of the padding.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from unmask.model.backbone import Spec
from unmask.model.backbones.bert import BertSpec
from unmask.model.format import FORMATS
from unmask.model.formats.bert import FIXED, bert_keys
from unmask.model.formats.encoder import EncoderFormat, activation, sizes
from unmask.model.formats.keys import check_fixed, number, whole


@FORMATS.register("roberta", "the RoBERTa checkpoints of transformers")
class RobertaLayout(EncoderFormat):
    """`model_type` roberta."""

    kinds = ("roberta", "xlm-roberta", "camembert")
    architecture = "RobertaForMaskedLM"
    prefix = "roberta."
    names: ClassVar[Mapping[str, str]] = {
        "lm_head.dense.": "cls.predictions.transform.dense.",
        "lm_head.layer_norm.": "cls.predictions.transform.LayerNorm.",
        "lm_head.decoder.": "cls.predictions.decoder.",
        "lm_head.bias": "cls.predictions.bias",
    }
    outside = ("lm_head.",)
    dropped = ("classifier.", "embeddings.position_ids")

    def spec(self, config: Mapping[str, Any], *, pooled: bool) -> Spec:
        check_fixed(config, FIXED)
        offset = whole(config, "pad_token_id", 1) + 1
        positions = max(1, whole(config, "max_position_embeddings") - offset)
        return BertSpec(
            **sizes(config),
            positions=positions,
            length=positions,
            offset=offset,
            segments=whole(config, "type_vocab_size", 1),
            tanh=activation(config),
            pooled=pooled,
            eps=number(config, "layer_norm_eps", 1e-12),
            dropout=number(config, "hidden_dropout_prob", 0.1),
        )

    def keys(self, spec: Any) -> dict[str, Any]:
        self.check_fields(spec, offset=2, alibi=False, gated=False, joined=False, embedding=0, shared=False)
        return {
            **bert_keys(spec),
            "pad_token_id": spec.offset - 1,
            "max_position_embeddings": spec.offset + (spec.reach or 0),
        }
