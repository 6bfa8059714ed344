"""The layout of the published HyenaDNA checkpoints, in the port to transformers, read without their code.

The vocabulary is padded. The published tokenizer, which comes as code, is the one of Caduceus.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from unmask.model.backbones.hyena import HyenaSpec
from unmask.model.format import FORMATS, Contents, Files
from unmask.model.formats.keys import Keys, padded_vocab
from unmask.model.formats.table import TableFormat
from unmask.text.tokens.vocabulary import caduceus

PUBLISHED = 12  # ids of the tokenizer of HyenaDNA, which is also that of Caduceus


@FORMATS.register("hyenadna", "the HyenaDNA checkpoints for transformers")
class HyenaDNA(TableFormat):
    """`model_type` hyenadna; every tensor but the head under `hyena.backbone.`."""

    kinds = ("hyenadna",)
    architecture = "HyenaDNAForCausalLM"
    backbone = HyenaSpec
    fields: ClassVar[Keys] = {  # the defaults of sizes in the published code are those of another network
        "width": "d_model",
        "inner": "d_inner",
        "blocks": "n_layer",
        "length": "max_seq_len",
        "positions": "max_seq_len",
        "features": "emb_dim",
        "filter": "filter_order",
        "mlps": "num_inner_mlps",
        "kernel": "short_filter_order",
        "frequency": ("activation_freq", 10.0),
        "tied": ("tie_word_embeddings", False),
        "eps": ("layer_norm_epsilon", 1e-5),
    }
    fixed: ClassVar[Mapping[str, Any]] = {"hyena_order": 2, "use_bias": True}
    prefix = "hyena.backbone."
    outside = ("lm_head.",)

    def read(self, files: Files) -> Contents:
        contents = super().read(files)
        published = files.config["vocab_size"] == PUBLISHED and contents.mask in (None, caduceus().mask)
        return replace(contents, tokenizer=caduceus() if published else None)

    def others(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return {"vocab": padded_vocab(config)}

    def other_keys(self, spec: Any) -> dict[str, Any]:
        padded = {"vocab_size": spec.vocab, "pad_vocab_size_multiple": 1}
        return {**padded, "train_freq": True, "embed_dropout": spec.dropout}
