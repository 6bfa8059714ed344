"""Layouts of one backbone, each a table: what config.json calls the fields of the spec, and how tensors are named."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from unmask.diffusion.autoregressive import Autoregressive
from unmask.diffusion.objective import Objective
from unmask.errors import UserError
from unmask.model.backbone import Spec
from unmask.model.format import Contents, Files, Format
from unmask.model.formats.keys import Keys, check_fixed, config_fields, read_fields
from unmask.model.formats.official import mask_of


class TableFormat(Format):
    """A layout that holds one backbone. What its table cannot say is in `others` and `other_keys`."""

    kinds: ClassVar[tuple[str | None, ...]]  # values of model_type, the first for writing; None: it has none
    marked: ClassVar[frozenset[str]] = frozenset()  # keys that config.json must have to be of this layout
    architecture: ClassVar[str] = ""  # the class of transformers
    backbone: ClassVar[type[Spec]]
    causal: ClassVar[bool] = True  # the network predicts the next token; False: hidden tokens from visible ones
    fields: ClassVar[Keys]  # of the spec, by their keys
    fixed: ClassVar[Mapping[str, Any]] = {}  # keys that have one value here: another one means another network
    prefix: ClassVar[str] = ""  # of all tensors but the head's
    outside: ClassVar[tuple[str, ...]] = ()  # how names without the prefix begin
    names: ClassVar[Mapping[str, str]] = {}  # parts of names here and in the network; # stands for a digit before

    def others(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Fields of the spec that do not have a key each."""
        return {}

    def other_keys(self, spec: Any) -> dict[str, Any]:
        """The opposite of `others`, and keys that are only written; refuses a network that they do not describe."""
        return {}

    def spec(self, config: Mapping[str, Any]) -> Spec:
        check_fixed(config, self.fixed)
        return self.backbone(**read_fields(config, self.fields) | self.others(config))

    def matches(self, files: Files) -> bool:
        return not files.note and files.kind in self.kinds and self.marked <= files.config.keys()

    def read(self, files: Files) -> Contents:
        spec = self.spec(files.config)
        return Contents(spec, stated_mask(files.config, spec), Autoregressive())

    def config(self, spec: Spec, objective: Objective, *, mask: int, dtype: str) -> dict[str, Any]:
        if not isinstance(spec, self.backbone):
            raise UserError(
                f"the layout {self.name!r} holds the backbone {self.backbone.name!r} only, not {spec.name!r}."
            )
        self.check_objective(objective)
        return {
            **({"model_type": self.kinds[0], "architectures": [self.architecture]} if self.architecture else {}),
            **config_fields(spec, self.fields),
            **self.fixed,
            **self.other_keys(spec),
            "mask_index": mask,
            "torch_dtype": dtype,
        }

    def check_objective(self, objective: Objective) -> Objective:
        """The objective, if networks of this layout are trained for such a one."""
        if not (objective.facts.causal if self.causal else objective.facts.masked_lm):
            raise UserError(f"the layout {self.name!r} cannot record that the objective is {objective.name!r}.")
        return objective

    def our_name(self, name: str) -> str | None:
        return f"backbone.{swap_parts(name.removeprefix(self.prefix), self.names)}"

    def written(self, name: str, spec: Spec) -> str:
        name = swap_parts(name.removeprefix("backbone."), {ours: theirs for theirs, ours in self.names.items()})
        return name if name.startswith(self.outside) else self.prefix + name


def stated_mask(config: Mapping[str, Any], spec: Spec) -> int | None:
    """The mask in a config.json that unmask wrote; published ones have none."""
    return mask_of(dict(config), spec) if "mask_index" in config else None


def swap_parts(name: str, names: Mapping[str, str]) -> str:
    """A name with parts replaced, one after the other."""
    for old, new in names.items():
        before = r"(?<=\d)" if old.startswith("#") else ""
        name = re.sub(before + re.escape(old.removeprefix("#")), new.removeprefix("#"), name)
    return name
