"""The layout of ESM-2 in transformers. DPLM's checkpoints have it too: diffusion models of proteins."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from unmask.diffusion.mdlm import MDLM
from unmask.errors import UserError
from unmask.model.backbones.esm import EsmSpec
from unmask.model.backbones.rotary import THETA
from unmask.model.format import FORMATS, Contents, Files
from unmask.model.formats.encoder import SIZES, EncoderFormat
from unmask.model.formats.keys import Keys, flag

PAD = 1  # in the vocabulary of ESM
DPLM = {"dialect": "dplm", "sampling": {"sampler": "rdm", "steps": 500}}  # its authors' sampler


@FORMATS.register("esm", "the ESM-2 checkpoints of transformers")
class EsmLayout(EncoderFormat):
    """`model_type` esm with rotary positions, so ESM-2; ESM-1 is another network."""

    kinds = ("esm",)
    architecture = "EsmForMaskedLM"
    backbone = EsmSpec
    fields: ClassVar[Keys] = {
        **SIZES,
        "length": ("max_position_embeddings", 1026),
        "eps": ("layer_norm_eps", 1e-5),
        "dropout": ("hidden_dropout_prob", 0.0),
    }
    fixed: ClassVar[Mapping[str, Any]] = {
        "position_embedding_type": "rotary",
        "emb_layer_norm_before": False,
        "is_decoder": False,
        "add_cross_attention": False,
        "rope_theta": THETA,
    }
    prefix = "esm."
    head = "lm_head."
    outside = ("lm_head.",)
    dropped = (
        "classifier.",
        "contact_head.",
        "rotary_embeddings.",
        "position_ids",
        "position_embeddings.",
        "pooler.",
    )

    def read(self, files: Files) -> Contents:
        contents = super().read(files)
        return replace(contents, objective=MDLM(), settings=dict(DPLM)) if "dplm_type" in files.config else contents

    def others(self, config: Mapping[str, Any]) -> dict[str, Any]:
        if config.get("position_embedding_type") != "rotary":
            raise UserError("config.json describes an ESM without rotary positions: unmask supports ESM-2 only.")
        if config.get("is_folding_model"):
            raise UserError("config.json describes a model that folds proteins: unmask supports its encoder only.")
        zeroed = flag(config, "token_dropout", False)
        mask = config.get("mask_token_id", config.get("mask_index"))
        if zeroed and type(mask) is not int:
            raise UserError("config.json has no mask_token_id, and with token_dropout the network needs it.")
        return {"mask": int(mask) if zeroed and mask is not None else -1}

    def other_keys(self, spec: Any) -> dict[str, Any]:
        return {
            "pad_token_id": PAD,
            "token_dropout": spec.mask >= 0,
            **({"mask_token_id": spec.mask} if spec.mask >= 0 else {}),
            "attention_probs_dropout_prob": spec.dropout,
        }
