"""The layouts of BERT, RoBERTa, DistilBERT, ALBERT and MosaicBERT in transformers: one network under several names.

A folder holds an encoder with its head for masked words, or the encoder alone: then the head is new. Nothing in such
a folder says how the network was trained: it is a masked language model, unless unmask wrote another objective into
config.json.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from unmask.diffusion.objective import OBJECTIVES, Objective
from unmask.errors import UserError
from unmask.model.backbone import Spec
from unmask.model.backbones.bert import BertSpec
from unmask.model.format import FORMATS, Files, Format, Found
from unmask.model.formats.mamba import check_fixed, number, whole
from unmask.model.formats.official import mask_of
from unmask.text.tokens.files import TOKENIZER_FILES

FIXED = {"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"}
SIZES = {  # the spec's fields by their key in the configs of BERT, RoBERTa and ALBERT
    "vocab": "vocab_size",
    "width": "hidden_size",
    "blocks": "num_hidden_layers",
    "heads": "num_attention_heads",
    "inner": "intermediate_size",
    "segments": "type_vocab_size",
}
TRAINED = "unmask_objective"  # written by unmask
HEAD = "cls.predictions."
NARROW = frozenset({"embedding", "shared", "tanh"})  # fields that only ALBERT has
GATED = frozenset({"alibi", "gated", "joined"})  # and MosaicBERT


class EncoderFormat(Format):
    """A layout of transformers for encoders: `model_type`, and names of tensors."""

    kinds: ClassVar[tuple[str, ...]]  # values of model_type
    architecture: ClassVar[str]  # the class of transformers
    head: ClassVar[str]  # how the head's tensors begin, in the network
    backbone: ClassVar[type[Spec]] = BertSpec

    def matches(self, files: Files) -> bool:
        return not files.note and files.kind in self.kinds

    @abstractmethod
    def spec(self, config: Mapping[str, Any], *, pooled: bool) -> Spec:
        """The network of a config.json."""

    @abstractmethod
    def described(self, spec: Any) -> dict[str, Any]:
        """The keys of config.json for a network; refuses one that the layout does not have."""

    def read(self, files: Files) -> Found:
        names = {self.renamed(name) for name in files.tensors}
        spec = self.spec(files.config, pooled="backbone.pooler.dense.weight" in names)
        headless = not any(name is not None and name.startswith(f"backbone.{self.head}") for name in names)
        objective = self.fitting(OBJECTIVES.entry(str(files.config.get(TRAINED, "mlm"))).make())
        return Found(spec, self.mask(files, spec), objective, fresh=f"backbone.{self.head}" if headless else "")

    def mask(self, files: Files, spec: Spec) -> int | None:
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

    def config(self, spec: Spec, objective: Objective, *, mask: int, dtype: str) -> dict[str, Any]:
        if not isinstance(spec, self.backbone):
            raise UserError(f"the layout {self.name!r} holds the backbone {self.backbone.name!r}, not {spec.name!r}.")
        return {
            "model_type": self.kinds[0],
            "architectures": [self.architecture],
            **self.described(spec),
            "tie_word_embeddings": True,
            "mask_index": mask,
            TRAINED: self.fitting(objective).name,
            "torch_dtype": dtype,
        }

    def fitting(self, objective: Objective) -> Objective:
        """The objective, if its network predicts hidden tokens from visible ones."""
        if not (objective.facts.infills and objective.facts.conditionals):
            raise UserError(f"the layout {self.name!r} cannot record that the objective is {objective.name!r}.")
        return objective

    def only(self, spec: BertSpec, *, offset: int | None = None, without: frozenset[str]) -> None:
        """Refuse a network with what another layout has."""
        extra = sorted(name for name in without if getattr(spec, name) not in (0, False))
        if offset is not None and spec.offset != offset:
            extra.append(f"offset {spec.offset}")
        if extra:
            raise UserError(f"the layout {self.name!r} has no network with {', '.join(extra)}.")


def sizes(config: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    return {field: whole(config, key) for field, key in keys.items()}


def activation(config: Mapping[str, Any], *, key: str = "hidden_act", usual: str = "gelu") -> bool:
    """Whether GELU is approximated by tanh; refuses another activation."""
    name = config.get(key, usual)
    known = {"gelu": False, "gelu_new": True, "gelu_pytorch_tanh": True}
    if name not in known:
        raise UserError(f"config.json says {key} = {name!r:.60}: unmask supports {', '.join(known)}.")
    return known[name]


def swapped(name: str, pairs: Mapping[str, str]) -> str:
    for old, new in pairs.items():
        name = name.replace(old, new)
    return name


@FORMATS.register("bert", "the BERT checkpoints of transformers")
class BertLayout(EncoderFormat):
    """`model_type` bert; an encoder alone has no `bert.` before its names; old files say gamma and beta."""

    kinds = ("bert",)
    architecture = "BertForMaskedLM"
    head = HEAD

    def matches(self, files: Files) -> bool:
        return super().matches(files) and "alibi_starting_size" not in files.config

    def spec(self, config: Mapping[str, Any], *, pooled: bool) -> Spec:
        check_fixed(config, FIXED)
        positions = whole(config, "max_position_embeddings")
        return BertSpec(
            **sizes(config, SIZES),
            positions=positions,
            length=positions,
            tanh=activation(config),
            pooled=pooled,
            eps=number(config, "layer_norm_eps", 1e-12),
            dropout=number(config, "hidden_dropout_prob", 0.1),
        )

    def renamed(self, name: str) -> str | None:
        name = swapped(name.removeprefix("bert."), {".gamma": ".weight", ".beta": ".bias"})
        if name == "embeddings.position_ids" or name.startswith("classifier."):
            return None
        return None if name.startswith("cls.") and not name.startswith(HEAD) else super().renamed(name)

    def written(self, name: str, spec: Spec) -> str:
        name = name.removeprefix("backbone.")
        return name if name.startswith("cls.") else f"bert.{name}"

    def described(self, spec: Any) -> dict[str, Any]:
        self.only(spec, offset=0, without=GATED | {"embedding", "shared"})
        return {
            **{key: getattr(spec, field) for field, key in SIZES.items()},
            "intermediate_size": spec.hidden,
            "max_position_embeddings": spec.reach,
            "hidden_act": "gelu_new" if spec.tanh else "gelu",
            "layer_norm_eps": spec.eps,
            "hidden_dropout_prob": spec.dropout,
            "attention_probs_dropout_prob": spec.dropout,
        }
