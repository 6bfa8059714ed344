"""Tokenizer: text to ids and back, with a mask that is never confused with padding.

A thin frozen layer over the `tokenizers` library. What it adds: the ids a diffusion model needs (mask, pad,
bos, eos), a fingerprint, and two promises the library does not make:

- a special token's name inside a text ("<|mask|>", "[MASK]") is plain text, never the special id;
- a character the vocabulary has no token for is an error that names it, never silently dropped
  (vocabularies that have an unknown token, such as BERT's, use it).
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, SupportsInt

import numpy as np
import tokenizers
from tokenizers import decoders

from unmask.errors import UserError
from unmask.files import write_whole
from unmask.text.tokens.characters import Letters
from unmask.text.tokens.export import CONFIG, Inputs, config_of, separators_in, unknown_token, with_template
from unmask.text.tokens.files import ROLES, read_tokenizer_files, told_plainly

BLANK = "░"  # how decode shows a token that is still hidden
PIECE = 2**20  # letters that are counted at a time
CONTEXT = ("merges", "fuse_unk", "ignore_merges", "continuing_subword_prefix", "end_of_word_suffix")
SPACES = {"ByteLevel": "Ġ", "Metaspace": "▁"}  # how vocabularies with this decoder write a space


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """Text to ids and back; `Tokenizer.load(path)` reads one, vocabulary.py builds one."""

    core: tokenizers.Tokenizer
    mask: int
    pad: int | None = None
    bos: int | None = None
    eos: int | None = None

    def __post_init__(self) -> None:
        if self.mask == self.pad:
            raise UserError(f"mask and padding share id {self.mask}; give the tokenizer a mask of its own")
        self.core.no_truncation()
        self.core.no_padding()
        self.core.encode_special_tokens = True

    @classmethod
    def load(cls, path: str | Path, *, mask: int | None = None) -> "Tokenizer":
        """Read a folder or file: ours, any tokenizer.json, GPT-2's vocab.json + merges.txt, BERT's vocab.txt.

        `hf:NAME` is a tokenizer on the hub. A mask token is found by its name, or added as the last id; a model may
        know better which id is its `mask`.
        """
        core, roles = read_tokenizer_files(path, mask=mask)
        return cls(core, roles["mask"], roles["pad"], roles["bos"], roles["eos"])

    def save(self, folder: str | Path, inputs: Inputs | None = None) -> None:
        """Write tokenizer.json and tokenizer_config.json, which other libraries read too.

        With the `inputs` of an encoder, they frame texts and pairs as it needs them; our own calls never do.
        """
        folder, core = Path(folder), self.core
        ids = {role: getattr(self, role) for role in ROLES}
        names = {f"{role}_token": self.pieces[id] for role, id in ids.items() if id is not None}
        if inputs is not None and self.bos is not None and self.eos is not None:
            core = with_template(core, self.bos, self.eos, inputs)
        config = config_of(names, unknown_token(core), inputs)
        write_whole(folder / "tokenizer.json", core.to_str(pretty=True))
        write_whole(folder / CONFIG, json.dumps(config, indent=2, ensure_ascii=False) + "\n")

    def encode(self, text: str) -> list[int]:
        """The ids of a text; no special tokens are added."""
        return self.encode_batch([text])[0].tolist()

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each text; the library spreads the work over its threads."""
        if self.letters is not None:
            return [self.letters.encode(text) for text in texts]
        return [np.array(encoding.ids, np.int32) for encoding in self._encodings(texts)]

    def _encodings(self, texts: Sequence[str]) -> list[tokenizers.Encoding]:
        try:
            with told_plainly("the tokenizer cannot encode this text"):
                return self.core.encode_batch_fast(texts, add_special_tokens=False)
        except UserError:
            # Half a surrogate pair is not text; the library says only that it wants another type.
            half = [letter for text in texts for letter in text if "\ud800" <= letter <= "\udfff"]
            if half:
                raise NoToken(half[0]) from None
            raise

    def _letter(self, letter: str) -> list[int]:
        ids = self._encodings([letter])[0].ids
        if not ids:
            raise NoToken(letter)
        return ids

    def replaced(self, texts: Iterable[str]) -> dict[str, int]:
        """How many letters of some texts became another token: {"R as N": 3}. Vocabularies of plain letters only."""
        if self.letters is None or self.core.pre_tokenizer is not None:
            return {}
        counts = np.zeros(128, np.int64)
        others = Counter[str]()
        for text in texts:
            if text.isascii():
                for start in range(0, len(text), PIECE):  # bincount makes 8 bytes of each letter
                    piece = text[start : start + PIECE].encode()
                    counts += np.bincount(np.frombuffer(piece, np.uint8), minlength=128)
            else:
                others.update(text)
        others.update({chr(code): int(count) for code, count in enumerate(counts) if count})
        became = {letter: "".join(self.pieces[id] for id in self._letter(letter)) for letter in others}
        return {
            f"{letter} as {became[letter]}": count
            for letter, count in sorted(others.items())
            if became[letter].casefold() != letter.casefold()
        }

    def decode(self, ids: Iterable[SupportsInt], *, blank: str = BLANK, special: bool = False) -> str:
        """The text of some ids: masks are shown as `blank`, other special tokens only if `special`."""
        shown = []
        for id in map(int, ids):
            if not 0 <= id < self.size:
                raise UserError(f"id {id} is outside the tokenizer's vocabulary of {self.size}")
            if id == self.mask:
                shown.append(blank)
            elif special or id not in self.specials:
                shown.append(self.pieces[id])
        with told_plainly("the tokenizer cannot decode these ids"):
            decoder = self.core.decoder
            return decoder.decode(shown) if decoder is not None else " ".join(shown)

    @cached_property
    def size(self) -> int:
        """v: the number of ids, the mask included."""
        return max(self.core.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def separators(self) -> int:
        """Tokens between the texts of a pair in its own template; 0: it has none."""
        return separators_in(self.core)

    @cached_property
    def pieces(self) -> tuple[str, ...]:
        """Each id's token as the vocabulary writes it; ids that no token uses are empty."""
        vocabulary = self.core.get_vocab(with_added_tokens=True)
        pieces = [""] * self.size
        for piece, id in vocabulary.items():
            pieces[id] = piece
        return tuple(pieces)

    @cached_property
    def reads_letters(self) -> bool:
        """Whether every token of the vocabulary is one letter, special ones aside."""
        return all(len(piece) <= 1 for id, piece in enumerate(self.pieces) if id not in self.specials)

    @cached_property
    def specials(self) -> frozenset[int]:
        """Ids without text: mask, pad, bos, eos and any other token that is marked as special."""
        marked = {id for id, token in self.core.get_added_tokens_decoder().items() if token.special}
        return frozenset(marked | {id for id in (self.mask, self.pad, self.bos, self.eos) if id is not None})

    @cached_property
    def spacers(self) -> tuple[int, ...]:
        """Tokens that begin a word after a space: "Ġcat", "▁cat"; in WordPiece all that do not go on with a word."""
        decoder = self.core.decoder
        if isinstance(decoder, decoders.WordPiece):
            inside = decoder.prefix
            words = (id for id, piece in enumerate(self.pieces) if piece and not piece.startswith(inside))
            return tuple(id for id in words if id not in self.specials)
        space = SPACES.get(type(decoder).__name__)
        if space is None:
            return ()
        return tuple(id for id, piece in enumerate(self.pieces) if piece[:1] == space and len(piece) > 1)

    @cached_property
    def letters(self) -> Letters | None:
        """A table of characters, if the vocabulary has no merges."""
        model, split = self._description["model"], self._description["pre_tokenizer"]
        whole = split is None or (
            split["type"] == "ByteLevel" and not split["use_regex"] and not split["add_prefix_space"]
        )
        alone = model.get("type") == "BPE" and not any(model.get(key) for key in CONTEXT)
        added = self.core.get_added_tokens_decoder().values()
        if not (whole and alone and is_letterwise(self._description["normalizer"]) and all(t.special for t in added)):
            return None
        return Letters(self._letter)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of everything that determines how text becomes ids; equal fingerprints mean equal ids."""
        described = self._description
        model = dict(described["model"])
        if "merges" in model:  # written as "a b" or ["a", "b"], depending on the library's version
            model["merges"] = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]]
        parts = {
            "model": model,
            "normalizer": described["normalizer"],
            "pre_tokenizer": described["pre_tokenizer"],
            "special": {role: getattr(self, role) for role in ROLES},
            "size": self.size,
        }
        canonical = json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()

    @cached_property
    def _description(self) -> dict[str, Any]:
        return json.loads(self.core.to_str())


def is_letterwise(normalizer: Mapping[str, Any] | None) -> bool:
    """Whether a normalizer, as the library writes it, changes every letter by itself."""
    if normalizer is None or normalizer["type"] == "Lowercase":
        return True
    if normalizer["type"] == "Sequence":
        return all(map(is_letterwise, normalizer["normalizers"]))
    pattern = normalizer.get("pattern", {})
    return len(pattern.get("String", "")) == 1 or re.fullmatch(r"\[\w+\]", pattern.get("Regex", "")) is not None


class NoToken(UserError):
    """A letter that the vocabulary does not have, and where it is, if that is known."""

    def __init__(self, letter: str, where: str = "") -> None:
        super().__init__(letter, where)  # arguments, not a message: a worker process sends it
        self.letter = letter
        self.where = where

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        protein = "protein (letters A to Z), " if self.letter.isascii() and self.letter.isalpha() else ""
        return (
            f"{place}the tokenizer has no token for {self.letter!r} (U+{ord(self.letter):04X}). Remove it from the "
            f"text, or use a tokenizer that has it: {protein}character (the letters of your data), byte or bpe (all "
            "text)."
        )

    def locate(self, texts: Iterable[tuple[str, str]]) -> "NoToken":
        """The same with its place: `texts` are places and what is written there."""
        for where, text in texts:
            if self.letter in text:
                return NoToken(self.letter, f"{where}, letter {text.index(self.letter) + 1:,}")
        return self


def encode_given(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text; an error if the vocabulary would replace part of it by its unknown token."""
    ids = tokenizer.encode(text)
    unknown = getattr(tokenizer.core.model, "unk_token", None)
    lost = None if unknown is None else tokenizer.core.token_to_id(unknown)
    if lost is None or lost not in ids:
        return ids
    encoding = tokenizer.core.encode(text, add_special_tokens=False)
    first, last = encoding.offsets[encoding.ids.index(lost)]
    raise UserError(
        f"the tokenizer has no token for {text[first:last]!r}: the model would see {unknown} instead. "
        "Remove it from the text, or use a model whose tokenizer covers it."
    )
