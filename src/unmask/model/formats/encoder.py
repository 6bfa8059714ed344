"""What the layouts of transformers for encoders share: a missing head, heads for other tasks, and the mask.

A folder holds an encoder with its head for masked words, or the encoder alone: then the head is new. Nothing
in it says how the network was trained: a masked language model, unless unmask wrote another objective to config.json.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from unmask.diffusion.objective import OBJECTIVES, Objective
from unmask.errors import UserError
from unmask.model.backbone import Spec
from unmask.model.backbones.bert import BertSpec
from unmask.model.format import Contents, Files
from unmask.model.formats.keys import Keys
from unmask.model.formats.official import mask_of
from unmask.model.formats.table import TableFormat, swap_parts
from unmask.text.tokens.files import TOKENIZER_FILES

TRAINED = "unmask_objective"  # written by unmask
OLD = {".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"}  # of files from before 2019
ACTIVATIONS = {"gelu": False, "gelu_new": True, "gelu_pytorch_tanh": True}  # whether GELU is approximated by tanh
SIZES: Keys = {  # in most configs
    "vocab": "vocab_size",
    "width": "hidden_size",
    "blocks": "num_hidden_layers",
    "heads": "num_attention_heads",
    "inner": "intermediate_size",
}


class EncoderFormat(TableFormat):
    """A layout of transformers for encoders, recognised by its `model_type`; an encoder alone has no prefix."""

    backbone: ClassVar[type[Spec]] = BertSpec
    causal = False
    head: ClassVar[str] = "cls.predictions."  # how the head's tensors begin in the network
    dropped: ClassVar[tuple[str, ...]] = (
        "classifier.",
        "embeddings.position_ids",
    )  # parts of names that the network does not have

    def read(self, files: Files) -> Contents:
        names = [name for name in map(self.our_name, files.tensors) if name is not None]
        spec = self.spec(files.config)
        headless = not any(name.startswith(f"backbone.{self.head}") for name in names)
        objective = self.check_objective(OBJECTIVES.entry(str(files.config.get(TRAINED, "mlm"))).make())
        return Contents(spec, mask_in(files, spec), objective, fresh=f"backbone.{self.head}" if headless else "")

    def our_name(self, name: str) -> str | None:
        name = swap_parts(name.removeprefix(self.prefix), OLD)
        ours = swap_parts(name, self.names)
        other = name.startswith(self.outside) and not ours.startswith(self.head)  # a head for another task
        return None if other or any(part in name for part in self.dropped) else f"backbone.{ours}"

    def config(self, spec: Spec, objective: Objective, *, mask: int, dtype: str) -> dict[str, Any]:
        written = super().config(spec, objective, mask=mask, dtype=dtype)
        return {**written, "tie_word_embeddings": True, TRAINED: objective.name}

    def check_fields(self, spec: Spec, **wanted: Any) -> None:
        """Refuse a network whose fields have other values than the layout can hold."""
        other = [f"{name} = {getattr(spec, name)}" for name, value in wanted.items() if getattr(spec, name) != value]
        if other:
            raise UserError(f"the layout {self.name!r} has no network with {', '.join(other)}.")


def mask_in(files: Files, spec: Spec) -> int | None:
    """The mask's id in config.json; else it is the tokenizer's, and without a tokenizer nobody knows it."""
    for key in ("mask_index", "mask_token_id"):
        if files.config.get(key) is not None:
            return mask_of({"mask_index": files.config[key]}, spec)
    if not any((files.folder / name).is_file() for name in TOKENIZER_FILES):
        raise UserError(
            f"{files.folder} does not say which id is the mask: put its tokenizer.json (or vocab.txt) there, or "
            "write mask_index into config.json."
        )
    return None


def activation(config: Mapping[str, Any], key: str = "hidden_act", usual: str = "gelu") -> bool:
    """Whether GELU is approximated by tanh; refuses another activation."""
    name = config.get(key, usual)
    if name not in ACTIVATIONS:
        raise UserError(f"config.json says {key} = {name!r:.60}: unmask supports {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]
