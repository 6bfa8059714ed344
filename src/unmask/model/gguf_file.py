"""GGUF files: their header as numbers and texts, checked byte by byte, and their tensors, dequantised.

The header is read here, because a file of a stranger may announce anything; the `gguf` library dequantises. A file is
one checkpoint: its config is that of the dialect of its architecture, and its tokenizer is in it too.
"""

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Core
from torch import Tensor

from unmask.errors import UserError
from unmask.text.tokens.files import add_mask
from unmask.text.tokens.tokenizer import Tokenizer

SUFFIX = ".gguf"
MOST = {"keys": 4096, "tensors": 65536, "letters": 1 << 20, "items": 1 << 22}  # of a header; items: of all its lists
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, LIST = 8, 9  # other types of values
PLAIN = {0: ("F32", np.float32), 1: ("F16", np.float16)}  # types of tensors that need no library
BF16 = 30
# How the vocabulary's texts are cut before byte pairs are joined, by `tokenizer.ggml.pre`.
GPT2_WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CUTS: dict[str, list[Any]] = {
    "gpt-2": [GPT2_WORDS],
    "smollm": [pre_tokenizers.Digits(individual_digits=True), GPT2_WORDS],
    "qwen2": [
        pre_tokenizers.Split(Regex(QWEN2), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ],
    "llama-bpe": [
        pre_tokenizers.Split(Regex(QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|")), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ],
}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file."""

    shape: tuple[int, ...]
    kind: int  # GGML's type
    start: int  # its first byte in the file
    size: int  # bytes


@dataclass(frozen=True)
class Header:
    """What a file says before its tensors."""

    keys: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    @property
    def family(self) -> str:
        return str(self.keys.get("general.architecture"))

    def get(self, key: str) -> Any:
        return self.keys.get(f"{self.family}.{key}")


class Cursor:
    """A place in a file from which values are read, never beyond its end."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path, self.at, self.items = data, path, 0, 0

    def refuse(self, why: str) -> UserError:
        return UserError(f"{self.path} cannot be read: {why}. Copy the file again from where it came from.")

    def skip(self, size: int) -> int:
        start, self.at = self.at, self.at + size
        if self.at > len(self.data):
            raise self.refuse("it is truncated")
        return start

    def number(self, code: str) -> Any:
        start = self.skip(struct.calcsize(f"<{code}"))
        return struct.unpack_from(f"<{code}", self.data, start)[0]

    def count(self, what: str) -> int:
        value = self.number("Q")
        if value > MOST[what]:
            raise self.refuse(f"it announces {value} {what}, more than {MOST[what]}")
        return int(value)

    def text(self) -> str:
        size = self.count("letters")
        start = self.skip(size)
        return self.data[start : start + size].decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == TEXT:
            return self.text()
        if kind in NUMBERS:
            return self.number(NUMBERS[kind])
        if kind != LIST:
            raise self.refuse(f"a value has the unknown type {kind}")
        inner, count = self.number("I"), self.count("items")
        self.items += count
        if self.items > MOST["items"]:
            raise self.refuse(f"its lists have more than {MOST['items']} items")
        if inner in NUMBERS:
            size = struct.calcsize(f"<{NUMBERS[inner]}")
            start = self.skip(count * size)
            return list(struct.unpack_from(f"<{count}{NUMBERS[inner]}", self.data, start))
        if inner != TEXT:
            raise self.refuse("a list of lists")
        return [self.text() for _ in range(count)]


def gguf_library() -> Any:
    try:
        import gguf
    except ImportError:
        raise UserError("quantised GGUF files need the package gguf: pip install gguf") from None
    return gguf


def block_of(kind: int, cursor: Cursor) -> tuple[int, int]:
    """Numbers and bytes of a block of a type."""
    if kind in PLAIN:
        return 1, np.dtype(PLAIN[kind][1]).itemsize
    if kind == BF16:
        return 1, 2
    gguf = gguf_library()
    try:
        return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    except (ValueError, KeyError):
        raise cursor.refuse(f"a tensor has the unknown type {kind}") from None


def read_header(path: Path) -> Header:
    """The header of a file; sizes and places that the file does not have are refused."""
    with path.open("rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise UserError(f"{path} is empty.") from None
    with data:
        cursor = Cursor(data, path)
        if data[:4] != b"GGUF":
            raise cursor.refuse("it is no GGUF file")
        cursor.at = 4
        version = cursor.number("I")
        if version not in (2, 3):
            raise cursor.refuse(f"it has version {version} of GGUF, and unmask reads 2 and 3")
        tensors, count = cursor.count("tensors"), cursor.count("keys")
        keys = {}
        for _ in range(count):
            name = cursor.text()
            keys[name] = cursor.value(cursor.number("I"))
        step = keys.get("general.alignment", 32)
        if type(step) is not int or not 1 <= step <= 1 << 16:
            raise cursor.refuse(f"its alignment is {step!r:.40}")
        announced = dict(read_entries(cursor, tensors))
        first = -(-cursor.at // step) * step
        entries = {}
        for name, entry in announced.items():
            entries[name] = StoredTensor(entry.shape, entry.kind, first + entry.start, entry.size)
            if entries[name].start + entry.size > len(data):
                raise cursor.refuse(f"it ends before the tensor {name:.80} does")
        if sum(entry.size for entry in entries.values()) > len(data):
            raise cursor.refuse("its tensors overlap, so that they are larger than the file")
    return Header(keys, entries)


def read_entries(cursor: Cursor, count: int) -> Iterator[tuple[str, StoredTensor]]:
    """The tensors that the header announces, at places relative to the end of the header."""
    for _ in range(count):
        name, axes = cursor.text(), cursor.number("I")
        if not 1 <= axes <= 4:
            raise cursor.refuse(f"the tensor {name:.80} has {axes} axes")
        shape = tuple(reversed([cursor.number("Q") for _ in range(axes)]))
        kind, start = cursor.number("I"), cursor.number("Q")
        per, bytes_each = block_of(kind, cursor)
        if shape[-1] % per:
            raise cursor.refuse(f"the tensor {name:.80} has rows of {shape[-1]} numbers, no multiple of {per}")
        yield name, StoredTensor(shape, kind, start, prod(shape) // per * bytes_each)


def type_name(kind: int) -> str:
    """The type that a tensor has once it is read."""
    return "BF16" if kind == BF16 else PLAIN.get(kind, ("F32", None))[0]


def read_entry(data: np.memmap, entry: StoredTensor) -> Tensor:
    """A tensor, dequantised to float32 unless it is stored in 16 or 32 bits."""
    raw = data[entry.start : entry.start + entry.size]
    if entry.kind in PLAIN:
        return torch.from_numpy(raw.view(PLAIN[entry.kind][1]).reshape(entry.shape).copy())
    if entry.kind == BF16:
        return torch.from_numpy(raw.view(np.int16).reshape(entry.shape).copy()).view(torch.bfloat16)
    gguf = gguf_library()
    rows = raw.reshape(prod(entry.shape[:-1]), -1)
    wide = gguf.dequantize(rows, gguf.GGMLQuantizationType(entry.kind))
    return torch.from_numpy(np.ascontiguousarray(wide, np.float32)).reshape(entry.shape)


def tensors_of(path: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a file, one after the other."""
    data = np.memmap(path, np.uint8, "r")
    for name, entry in read_header(path).tensors.items():
        yield name, read_entry(data, entry)


def tokenizer_of(keys: Mapping[str, Any]) -> Tokenizer | None:
    """The tokenizer in a header: byte pairs whose words are cut in a way that is known; None for others."""
    pieces, joins = (texts_in(keys, name) for name in ("tokens", "merges"))
    cuts = CUTS.get(str(keys.get("tokenizer.ggml.pre")))
    if keys.get("tokenizer.ggml.model") != "gpt2" or cuts is None or not pieces or not joins:
        return None
    if any(join.count(" ") != 1 for join in joins) or len(set(pieces)) != len(pieces):
        return None
    merges = [(first, second) for first, _, second in (join.partition(" ") for join in joins)]
    try:
        core = Core(models.BPE({piece: id for id, piece in enumerate(pieces)}, merges))
    except Exception as error:  # the library's own type; a merge of pieces that the vocabulary does not have
        raise UserError(f"the tokenizer of a GGUF file cannot be read: {str(error)[:200]}.") from None
    core.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    core.decoder = decoders.ByteLevel()
    kinds = keys.get("tokenizer.ggml.token_type")
    kinds = kinds if isinstance(kinds, list) else []
    control = [piece for piece, kind in zip(pieces, kinds, strict=False) if kind == 3]
    core.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in control])

    def role(name: str) -> int | None:
        id = keys.get(f"tokenizer.ggml.{name}_token_id")
        return id if type(id) is int and 0 <= id < len(pieces) else None

    pad, mask = role("padding"), role("mask")
    mask = add_mask(core) if mask is None or mask == pad else mask
    return Tokenizer(core, mask, pad, role("bos"), role("eos"))


def texts_in(keys: Mapping[str, Any], name: str) -> list[str]:
    """A list of texts of the tokenizer; empty, if it is none."""
    value = keys.get(f"tokenizer.ggml.{name}")
    return value if isinstance(value, list) and all(isinstance(one, str) for one in value) else []
