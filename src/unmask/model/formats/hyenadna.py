"""The layout of the published HyenaDNA checkpoints, in the port to transformers, read without their code.

The vocabulary is padded. The published tokenizer, which comes as code, is the one of Caduceus.
"""

from typing import Any

from unmask.diffusion.autoregressive import Autoregressive
from unmask.diffusion.objective import Objective
from unmask.errors import UserError
from unmask.model.backbone import Spec
from unmask.model.backbones.hyena import HyenaSpec
from unmask.model.format import FORMATS, Files, Format, Found
from unmask.model.formats.keys import check_fixed, flag, number, whole
from unmask.model.formats.mamba import mask_if_told
from unmask.text.tokens.vocabulary import caduceus

KIND = "hyenadna"
PUBLISHED = 12  # ids of the tokenizer of HyenaDNA, which is also that of Caduceus
FIXED = {"hyena_order": 2, "use_bias": True}
SIZES = {  # the spec's fields by their key; the defaults of the published code are those of another network
    "width": "d_model",
    "inner": "d_inner",
    "blocks": "n_layer",
    "positions": "max_seq_len",
    "length": "max_seq_len",
    "features": "emb_dim",
    "filter": "filter_order",
    "mlps": "num_inner_mlps",
    "kernel": "short_filter_order",
}


@FORMATS.register("hyenadna", "the HyenaDNA checkpoints for transformers")
class HyenaDNA(Format):
    """`model_type` hyenadna; every tensor but the head under `hyena.backbone.`."""

    def matches(self, files: Files) -> bool:
        return not files.note and files.kind == KIND

    def read(self, files: Files) -> Found:
        config = files.config
        check_fixed(config, FIXED)
        real, multiple = whole(config, "vocab_size"), whole(config, "pad_vocab_size_multiple", 8)
        sizes: dict[str, Any] = {field: whole(config, key) for field, key in SIZES.items()}
        spec = HyenaSpec(
            vocab=-(-real // multiple) * multiple,
            frequency=number(config, "activation_freq", 10.0),
            tied=flag(config, "tie_word_embeddings", False),
            eps=number(config, "layer_norm_epsilon", 1e-5),
            **sizes,
        )
        mask = mask_if_told(config, spec)
        published = real == PUBLISHED and mask in (None, caduceus().mask)
        return Found(spec, mask, Autoregressive(), tokenizer=caduceus() if published else None)

    def renamed(self, name: str) -> str | None:
        return super().renamed(name.removeprefix("hyena."))

    def written(self, name: str, spec: Spec) -> str:
        return name.removeprefix("backbone.") if name.startswith("backbone.lm_head.") else f"hyena.{name}"

    def config(self, spec: Spec, objective: Objective, *, mask: int, dtype: str) -> dict[str, Any]:
        if not isinstance(spec, HyenaSpec):
            raise UserError(f"the layout {self.name!r} holds the backbone 'hyena' only, not {spec.name!r}.")
        if not objective.facts.causal:
            raise UserError(f"the layout {self.name!r} cannot record that the objective is {objective.name!r}.")
        sizes = {"width": spec.width, "inner": spec.hidden, "positions": spec.reach, "length": spec.reach}
        return {
            "model_type": KIND,
            "architectures": ["HyenaDNAForCausalLM"],
            "vocab_size": spec.vocab,
            "pad_vocab_size_multiple": 1,
            **{key: sizes.get(field, getattr(spec, field)) for field, key in SIZES.items()},
            **FIXED,
            "activation_freq": spec.frequency,
            "train_freq": True,
            "layer_norm_epsilon": spec.eps,
            "embed_dropout": spec.dropout,
            "tie_word_embeddings": spec.tied,
            "mask_index": mask,
            "torch_dtype": dtype,
        }
