"""The layout of the published Caduceus checkpoints (PS and Ph), read without their code.

The two strands of PS are exchanged before every layer if the config says `fused_add_norm`, as all published ones do,
and not otherwise: one name, two networks. Tensors that are tied may be missing.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from unmask.diffusion.objective import OBJECTIVES, Objective
from unmask.errors import UserError
from unmask.model.backbone import Spec
from unmask.model.backbones.caduceus import CaduceusSpec
from unmask.model.format import FORMATS, Contents, Files
from unmask.model.formats.encoder import TRAINED
from unmask.model.formats.keys import Keys, padded_vocab
from unmask.model.formats.mamba import layer_sizes, ssm_of
from unmask.model.formats.official import mask_of
from unmask.model.formats.table import TableFormat
from unmask.text.tokens.vocabulary import caduceus

COMBINE: dict[str, Literal["add", "multiply"]] = {"add": "add", "ew_multiply": "multiply"}
MASKS = {12: 3, 16: 3}  # the id of [MASK] in the tokenizer of Caduceus, by the size of its vocabulary
PAIRS = "7-10 8-9"  # A-T and C-G in that tokenizer
MAP = "word_embeddings.complement_map"


@FORMATS.register("caduceus", "the Caduceus checkpoints, PS and Ph")
class CaduceusLayout(TableFormat):
    """`model_type` caduceus; every tensor but the head under `caduceus.backbone.`."""

    kinds = ("caduceus",)
    architecture = "CaduceusForMaskedLM"
    backbone = CaduceusSpec
    causal = False
    fields: ClassVar[Keys] = {
        "width": "d_model",
        "blocks": "n_layer",
        "shared": ("bidirectional_weight_tie", True),
        "equivariant": ("rcps", False),
        "exchange": ("fused_add_norm", True),
        "tied": ("tie_word_embeddings", True),
        "eps": ("norm_epsilon", 1e-5),
    }
    fixed: ClassVar[Mapping[str, Any]] = {"rms_norm": True, "bidirectional": True}

    def others(self, config: Mapping[str, Any]) -> dict[str, Any]:
        vocab, strategy = padded_vocab(config), config.get("bidirectional_strategy") or "add"
        if strategy not in COMBINE:
            raise UserError(f"config.json says bidirectional_strategy = {strategy!r:.60}: unmask knows {[*COMBINE]}.")
        pairs = pairs_of(config.get("complement_map"), vocab) if config.get("rcps") else ""
        return {"vocab": vocab, "combine": COMBINE[strategy], "complement": pairs, **layer_sizes(config)}

    def read(self, files: Files) -> Contents:
        config, spec = files.config, self.spec(files.config)
        assert isinstance(spec, CaduceusSpec)
        real = config["vocab_size"]
        if "mask_index" not in config and real not in MASKS:
            raise UserError(
                f"config.json has no mask_index, and its vocabulary of {real} is not that of Caduceus's tokenizer: "
                "add the id of the tokenizer's mask as mask_index."
            )
        objective = self.check_objective(OBJECTIVES.entry(str(config.get(TRAINED, "mlm"))).make())
        mask = mask_of({"mask_index": MASKS.get(real), **config}, spec)
        published = real in MASKS and mask == MASKS[real] and spec.complement in ("", PAIRS)
        return Contents(spec, mask, objective, tokenizer=caduceus() if published else None)

    def our_name(self, name: str) -> str | None:
        if name.endswith("complement_map"):  # the config has it
            return None
        name = (
            name.removeprefix("caduceus.backbone.")
            .replace(".submodule.", ".")
            .replace("lm_head.lm_head.", "lm_head.")
        )
        return super().our_name(name.replace("word_embeddings.embedding.", "word_embeddings."))

    def written(self, name: str, spec: Spec) -> str:
        assert isinstance(spec, CaduceusSpec)
        name = name.removeprefix("backbone.")
        if name.startswith("lm_head."):
            return f"lm_head.{name}" if spec.equivariant else name
        if spec.equivariant:
            name = name.replace("word_embeddings.", "word_embeddings.embedding.").replace(
                ".mixer.", ".mixer.submodule."
            )
            if not spec.exchange:
                name = name.replace("norm.weight", "norm.submodule.weight").replace("norm_f.", "norm_f.submodule.")
        return f"caduceus.backbone.{name}"

    def constants(self, spec: Spec) -> dict[str, Tensor]:
        assert isinstance(spec, CaduceusSpec)
        if not spec.equivariant:
            return {}
        names = (f"caduceus.backbone.embeddings.{MAP}", "lm_head.complement_map")
        return {name: torch.tensor(complements(spec)) for name in names}

    def config(self, spec: Spec, objective: Objective, *, mask: int, dtype: str) -> dict[str, Any]:
        return {**super().config(spec, objective, mask=mask, dtype=dtype), TRAINED: objective.name}

    def other_keys(self, spec: Any) -> dict[str, Any]:
        if spec.cond:
            raise UserError(f"the layout {self.name!r} has no modulation by the noise level, and this network has.")
        return {
            "vocab_size": spec.vocab,
            "pad_vocab_size_multiple": 1,
            "ssm_cfg": ssm_of(spec),
            "residual_in_fp32": False,
            "bidirectional_strategy": {ours: theirs for theirs, ours in COMBINE.items()}[spec.combine],
            "complement_map": {str(i): j for i, j in enumerate(complements(spec))} if spec.equivariant else None,
        }


def complements(spec: CaduceusSpec) -> list[int]:
    partners = spec.partners
    return [partners.get(id, id) for id in range(spec.vocab)]


def pairs_of(table: Any, vocab: int) -> str:
    """The pairs of complementary ids in a complement_map, whose keys are texts; ids that are not in it stay."""
    if not isinstance(table, dict):
        raise UserError(f"config.json says complement_map = {table!r:.60}: with rcps it must be a table of ids.")
    pairs: dict[int, int] = {}
    for key, id in table.items():
        if not (key.isdecimal() and len(key) < 9 and type(id) is int and max(int(key), id) < vocab and id >= 0):
            raise UserError(f"config.json has {key!r:.20}: {id!r:.20} in complement_map, not ids below {vocab}.")
        pairs[int(key)] = id
    if any(pairs.get(id, id) != key for key, id in pairs.items()):
        raise UserError("config.json has a complement_map that is not its own inverse.")
    return " ".join(f"{key}-{id}" for key, id in pairs.items() if key < id)
