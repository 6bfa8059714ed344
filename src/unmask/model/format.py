"""Formats: the layouts of checkpoints on disk, one file each in `model/formats`.

A layout is recognised by the files (config.json's model_type and keys), never guessed: an unknown layout is refused
by name. A format reads a config into a spec, a mask and an objective, and maps the names of the tensors.
"""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from unmask.diffusion.objective import Objective
from unmask.errors import UserError, unknown
from unmask.model.backbone import Spec
from unmask.model.gguf_file import SUFFIX, read_header
from unmask.model.weights import Tensors, tensors_in
from unmask.registry import Registry
from unmask.text.layout import Layout
from unmask.text.tokens.files import TOKENIZER_FILES
from unmask.text.tokens.tokenizer import Tokenizer
from unmask.untrusted import read_object

NOTE = "unmask.json"
STATED = "unmask_dialect"  # a key of config.json: the dialect of files that look like those of several families
UNTRAINED = "unmask_new_head"  # a key of config.json: whether the head for masked words was never trained
HEADER = "gguf"  # the header of a GGUF file, in the place of a config.json
AGAIN = "Copy the file again from where it came from, or save the checkpoint again."


@dataclass(frozen=True)
class Files:
    """The files of a folder, before any weight is read."""

    folder: Path
    config: dict[str, Any]  # config.json
    note: dict[str, Any]  # unmask.json, or empty
    tensors: Tensors  # shapes and types, by the names in the files
    dialect: str | None = None  # the family that a user named; None: what the files say
    tokenized: bool = False  # a tokenizer comes with them

    @property
    def kind(self) -> str | None:
        """config.json's model_type."""
        kind = self.config.get("model_type")
        return kind if kind is None else str(kind)


@dataclass(frozen=True)
class Contents:
    """A config as a format reads it."""

    spec: Spec
    mask: int | None  # None: the files do not say; it is then the tokenizer's, or the last id
    objective: Objective
    settings: dict[str, Any] = field(default_factory=dict)
    tokenizer: Tokenizer | None = None  # of published models whose files come without one
    fresh: str = ""  # how the names of tensors begin that the files lack and that are made anew: a head; empty: none
    layout: Layout | None = None  # of the rows that it was trained on; None: it follows from the settings
    paired: bool = False  # rotated pairs of queries and keys are adjacent in the files
    word: int = -1  # the word whose vector blanks have, where they get an id of their own; -1: the mean of all


class Format(ABC):
    """A layout with a name in `FORMATS`."""

    name: ClassVar[str]
    repeats: ClassVar[bool] = False  # whether its files hold tied tensors under each of their names

    @abstractmethod
    def matches(self, files: Files) -> bool:
        """Whether a folder has this layout."""

    @abstractmethod
    def read(self, files: Files) -> Contents:
        """The network, the mask and the objective that the files describe."""

    def base(self, files: Files) -> str:
        """The autoregressive dialect, where the files may be of several families; empty: they say what they are."""
        return ""

    def our_name(self, name: str) -> str | None:
        """The denoiser's name of a tensor in a file, with the prefix `backbone.`, `parts.` or `state.`; None: it has
        no such tensor."""
        return name if name.startswith(("backbone.", "parts.", "state.")) else f"backbone.{name}"

    def unpack(self, name: str, tensor: Tensor, contents: Contents) -> dict[str, Tensor]:
        """The denoiser's tensors that a tensor of a file holds, by their names; the same for tensors on `meta`."""
        known = self.our_name(name)
        return {} if known is None else {known: tensor}

    def written(self, name: str, spec: Spec) -> str:
        """The opposite of `renamed`: a tensor's name in a file of this layout."""
        return name

    def constants(self, spec: Spec) -> dict[str, Tensor]:
        """Tensors that files of this layout hold in addition, and that follow from the spec."""
        return {}

    def config(self, spec: Spec, objective: Objective, *, mask: int, dtype: str) -> dict[str, Any]:
        """config.json of a network in this layout; refuses a network that the layout does not support."""
        raise UserError(f"the layout {self.name!r} can be read but not written.")


FORMATS: Registry[Format] = Registry("checkpoint format", room="unmask.model.formats", group="unmask.formats")


def written_formats() -> dict[str, str]:
    """The formats that can be written, with a line about each."""
    return {name: FORMATS.entry(name).about for name in FORMATS if FORMATS[name].config is not Format.config}


def recognise_format(folder: Path, dialect: str | None = None) -> tuple[Files, Format]:
    """A folder's files, and the format that recognises them; `dialect`: its name, where a user gave it."""
    if folder.suffix == SUFFIX:
        config: dict[str, Any] = {HEADER: read_header(folder)}
        note: dict[str, Any] = {}
    else:
        config, note = read_config(folder), read_note(folder)
    there = any((folder / name).is_file() for name in TOKENIZER_FILES)
    files = Files(folder, config, note, tensors_in(folder), dialect or config.get(STATED), there)
    if dialect and dialect not in FORMATS:
        raise unknown("dialect", dialect, list(FORMATS))
    for name in FORMATS:
        layout = FORMATS[name]()
        if layout.matches(files):
            return files, layout
    what = f"model_type {files.kind!r}" if files.kind else "no model_type"
    what += ", a mixture of experts" if config.get("num_experts") or config.get("num_local_experts") else ""
    if dialect:
        raise UserError(f"{folder / 'config.json'} does not describe a model of the dialect {dialect!r}: {what}.")
    raise UserError(
        f"{folder / 'config.json'} describes a model that unmask does not know: {what}"
        f"{', block_size ' + str(config['block_size']) if config.get('block_size') else ''}. "
        f"Known layouts: {', '.join(FORMATS)}."
    )


def read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        if not folder.is_dir():
            raise UserError(
                f"there is no folder {folder}. A checkpoint is a folder with config.json and model.safetensors."
            )
        there = path.exists() or path.is_symlink()
        what = "its config.json is not a regular file" if there else "a folder without config.json"
        raise UserError(f"{folder} is not a checkpoint: {what}. A checkpoint has config.json and model.safetensors.")
    return read_object(path)


def read_note(folder: Path) -> dict[str, Any]:
    """unmask.json, the type of every field checked; empty for a published checkpoint."""
    path = folder / NOTE
    if not os.path.lexists(path):
        return {}
    try:
        note = read_object(path)
    except UserError as error:
        raise UserError(f"{path} is damaged: {error} {AGAIN}") from None
    missing = {"version", "weights", "probe", "tokenizer", "objective"} - note.keys()
    if missing:
        raise UserError(f"{path} is damaged: it has no {', '.join(sorted(missing))}. {AGAIN}")
    for field_name, (fits, what) in FIELDS.items():
        if field_name in note and not fits(note[field_name]):
            raise UserError(f"{path} is damaged: {field_name} is {note[field_name]!r:.60}, not {what}. {AGAIN}")
    return note


def is_sha256(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None


# The fields of unmask.json: a test of the value, and what the test asks for.
FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "version": (lambda value: isinstance(value, str), "a text"),
    "weights": (is_sha256, "a sha256"),
    "tokenizer": (lambda value: value is None or is_sha256(value), "a sha256 or null"),
    "objective": (lambda value: isinstance(value, str | dict), "a table"),
    "settings": (lambda value: isinstance(value, dict), "a table"),
    "probe": (lambda value: isinstance(value, dict), "a table"),
    "step": (lambda value: value is None or (type(value) is int and value >= 0), "a number of steps"),
    "ema": (lambda value: value is None or type(value) is bool, "true, false or null"),
}
