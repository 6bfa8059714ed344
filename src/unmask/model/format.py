"""Formats: the layouts of checkpoints on disk, one file each in `model/formats`.

A layout is recognised by the files (config.json's model_type and keys), never guessed: an unknown layout is refused
by name. A format reads a config into a spec, a mask and an objective, and maps the names of the tensors.
"""

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from unmask.diffusion.objective import Objective
from unmask.errors import UserError
from unmask.model.backbone import Spec
from unmask.model.weights import Tensors, tensors_in
from unmask.registry import Registry

NOTE = "unmask.json"
AGAIN = "Copy the file again from where it came from, or save the checkpoint again."


@dataclass(frozen=True)
class Files:
    """The files of a folder, before any weight is read."""

    folder: Path
    config: dict[str, Any]  # config.json
    note: dict[str, Any]  # unmask.json, or empty
    tensors: Tensors  # shapes and types, by the names in the files

    @property
    def kind(self) -> str | None:
        """config.json's model_type."""
        kind = self.config.get("model_type")
        return kind if kind is None else str(kind)


@dataclass(frozen=True)
class Found:
    """A config as a format reads it."""

    spec: Spec
    mask: int
    objective: Objective
    settings: dict[str, Any] = field(default_factory=dict)


class Format(ABC):
    """A layout with a name in `FORMATS`."""

    name: ClassVar[str]

    @abstractmethod
    def matches(self, files: Files) -> bool:
        """Whether a folder has this layout."""

    @abstractmethod
    def read(self, files: Files) -> Found:
        """The network, the mask and the objective that the files describe."""

    def renamed(self, name: str) -> str:
        """The denoiser's name of a tensor in a file: with the prefix `backbone.`, `parts.` or `state.`."""
        return name if name.startswith(("backbone.", "parts.", "state.")) else f"backbone.{name}"

    def written(self, name: str) -> str:
        """The opposite: a tensor's name in a file of this layout."""
        return name

    def config(self, spec: Spec, objective: Objective, *, mask: int, dtype: str) -> dict[str, Any]:
        """config.json of a network in this layout; refuses a network that the layout does not support."""
        raise UserError(f"the layout {self.name!r} can be read but not written.")


FORMATS: Registry[Format] = Registry("checkpoint format", room="unmask.model.formats", group="unmask.formats")


def recognised(folder: Path) -> tuple[Files, Format]:
    """A folder's files, and the format that recognises them."""
    config, note = read_config(folder), read_note(folder)
    files = Files(folder, config, note, tensors_in(folder))
    for name in FORMATS:
        layout = FORMATS[name]()
        if layout.matches(files):
            return files, layout
    what = f"model_type {files.kind!r}" if files.kind else "no model_type"
    raise UserError(
        f"{folder / 'config.json'} describes a model that unmask does not know: {what}"
        f"{', block_size ' + str(config['block_size']) if config.get('block_size') else ''}. "
        f"Known layouts: {', '.join(FORMATS)}."
    )


def read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{folder} has no config.json. A checkpoint needs config.json and model.safetensors."
        ) from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}): copy it again from where it came from.") from None
    if not isinstance(config, dict):
        raise UserError(f"{path} should hold a JSON object, not a {type(config).__name__}.")
    return config


def read_note(folder: Path) -> dict[str, Any]:
    """unmask.json; empty for a published checkpoint."""
    path = folder / NOTE
    if not path.is_file():
        return {}
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
        missing = {"version", "weights", "probe", "tokenizer", "objective"} - note.keys()
    except (ValueError, AttributeError):
        raise UserError(f"{path} is damaged: it is not a JSON object. {AGAIN}") from None
    if missing:
        raise UserError(f"{path} is damaged: it has no {', '.join(sorted(missing))}. {AGAIN}")
    return note
