"""What the layouts of transformers for encoders share: names of tensors, a missing head, and the mask.

A folder holds an encoder with its head for masked words, or the encoder alone: then the head is new. Nothing
in it says how the network was trained: a masked language model, unless unmask wrote another objective to config.json.
"""

import re
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from unmask.diffusion.objective import OBJECTIVES, Objective
from unmask.errors import UserError
from unmask.model.backbone import Spec
from unmask.model.backbones.bert import BertSpec
from unmask.model.format import Files, Format, Found
from unmask.model.formats.keys import whole
from unmask.model.formats.official import mask_of
from unmask.text.tokens.files import TOKENIZER_FILES

TRAINED = "unmask_objective"  # written by unmask
OLD = {".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"}  # of files from before 2019
ACTIVATIONS = {"gelu": False, "gelu_new": True, "gelu_pytorch_tanh": True}  # whether GELU is approximated by tanh
SIZES = {  # the spec's fields by their key in most configs
    "vocab": "vocab_size",
    "width": "hidden_size",
    "blocks": "num_hidden_layers",
    "heads": "num_attention_heads",
    "inner": "intermediate_size",
}


class EncoderFormat(Format):
    """A layout of transformers for encoders, recognised by its `model_type`."""

    kinds: ClassVar[tuple[str, ...]]  # values of model_type, the first for writing
    architecture: ClassVar[str]  # the class of transformers
    backbone: ClassVar[type[Spec]] = BertSpec
    prefix: ClassVar[str]  # of all tensors but the head's; an encoder alone has none
    head: ClassVar[str] = "cls.predictions."  # how the head's tensors begin in the network
    names: ClassVar[Mapping[str, str]] = {}  # parts of names here and in the network; # stands for a digit before
    outside: ClassVar[tuple[str, ...]]  # how names without the prefix begin
    dropped: ClassVar[tuple[str, ...]] = (
        "classifier.",
        "embeddings.position_ids",
    )  # parts of names that the network does not have

    @abstractmethod
    def spec(self, config: Mapping[str, Any], *, pooled: bool) -> Spec:
        """The network of a config.json."""

    @abstractmethod
    def keys(self, spec: Any) -> dict[str, Any]:
        """The keys of config.json for a network; refuses one that the layout does not have."""

    def matches(self, files: Files) -> bool:
        return not files.note and files.kind in self.kinds

    def read(self, files: Files) -> Found:
        names = [name for name in map(self.renamed, files.tensors) if name is not None]
        spec = self.spec(files.config, pooled="backbone.pooler.dense.weight" in names)
        headless = not any(name.startswith(f"backbone.{self.head}") for name in names)
        objective = self.fitting(OBJECTIVES.entry(str(files.config.get(TRAINED, "mlm"))).make())
        return Found(spec, mask_in(files, spec), objective, fresh=f"backbone.{self.head}" if headless else "")

    def renamed(self, name: str) -> str | None:
        name = swapped(name.removeprefix(self.prefix), OLD)
        ours = swapped(name, self.names)
        other = name.startswith(self.outside) and not ours.startswith(self.head)  # a head for another task
        return None if other or any(part in name for part in self.dropped) else f"backbone.{ours}"

    def written(self, name: str, spec: Spec) -> str:
        name = swapped(name.removeprefix("backbone."), {ours: theirs for theirs, ours in self.names.items()})
        return name if name.startswith(self.outside) else self.prefix + name

    def config(self, spec: Spec, objective: Objective, *, mask: int, dtype: str) -> dict[str, Any]:
        if not isinstance(spec, self.backbone):
            raise UserError(f"the layout {self.name!r} holds the backbone {self.backbone.name!r}, not {spec.name!r}.")
        return {
            "model_type": self.kinds[0],
            "architectures": [self.architecture],
            **self.keys(spec),
            "tie_word_embeddings": True,
            "mask_index": mask,
            TRAINED: self.fitting(objective).name,
            "torch_dtype": dtype,
        }

    def fitting(self, objective: Objective) -> Objective:
        """The objective, if its network predicts hidden tokens from visible ones."""
        if not objective.facts.masked_lm:
            raise UserError(f"the layout {self.name!r} cannot record that the objective is {objective.name!r}.")
        return objective

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


def sizes(config: Mapping[str, Any], keys: Mapping[str, str] = SIZES) -> dict[str, Any]:
    return {field: whole(config, key) for field, key in keys.items()}


def activation(config: Mapping[str, Any], key: str = "hidden_act", usual: str = "gelu") -> bool:
    """Whether GELU is approximated by tanh; refuses another activation."""
    name = config.get(key, usual)
    if name not in ACTIVATIONS:
        raise UserError(f"config.json says {key} = {name!r:.60}: unmask supports {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def swapped(name: str, names: Mapping[str, str]) -> str:
    """A name with parts replaced, one after the other."""
    for old, new in names.items():
        before = r"(?<=\d)" if old.startswith("#") else ""
        name = re.sub(before + re.escape(old.removeprefix("#")), new.removeprefix("#"), name)
    return name
