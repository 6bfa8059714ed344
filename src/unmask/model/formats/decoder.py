"""The one reader of published decoders: Llama, Qwen, GPT-2 and the diffusion models made of them, by their tables.

Files of autoregressive models do not say whether somebody made a diffusion model of them: for these a user names the
dialect (`--dialect`, `dialect=` in Python, or "unmask_dialect" in config.json). Where the mask is an ordinary word,
or there is none, blanks have an id of their own, after those of the files: a word is never taken for a blank.
"""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from unmask.diffusion.autoregressive import Autoregressive
from unmask.diffusion.block import BlockDiffusion
from unmask.diffusion.mdlm import MDLM
from unmask.diffusion.objective import Objective
from unmask.errors import UserError
from unmask.model.backbones.decoder import DecoderSpec
from unmask.model.backbones.rotary import THETA
from unmask.model.format import FORMATS, STATED, Contents, Files, Format
from unmask.model.formats.dialect import Dialect
from unmask.model.formats.dialects import DIALECTS
from unmask.model.formats.keys import check_fixed, flag, number, read_fields, whole
from unmask.model.formats.table import swap_parts

MASK = "mask_token_id"


class Published(Format):
    """A published decoder, as its table says."""

    dialect: ClassVar[Dialect]

    def matches(self, files: Files) -> bool:
        d = self.dialect
        if files.note or files.kind != d.kind or not set(d.marked) <= files.config.keys():
            return False
        if files.dialect is not None:
            return files.dialect == d.name
        same = [one for one in DIALECTS.values() if one.kind == d.kind]
        alike = [one for one in same if one.begins and any(name.startswith(one.begins) for name in files.tensors)]
        return (alike or same)[0] is d  # the first of several asks the user

    def read(self, files: Files) -> Contents:
        d, config = self.dialect, files.config
        if d.stated and files.dialect is None:
            same = ", ".join(one.name for one in DIALECTS.values() if one.kind == d.kind)
            raise UserError(
                f"config.json says model_type {d.kind!r}, and several kinds of models do: say which one this is with "
                f"--dialect (dialect= in Python, or {STATED!r} in config.json): {same}."
            )
        check_another(d, config)
        rows = row_count(d, config)
        mask, word = blank_of(d, files, rows)
        added = d.causal or word is not None or d.mask_row
        spec = DecoderSpec(
            **self.values(config) | {"vocab": rows + added},
            **d.fields,
            **rotation(config),
            **biases(d, config),
            outputs=d.tokens.get(rows, rows if added else 0),
            causal=d.causal,
            reads_before=d.shift or d.causal,
        )
        settings: dict[str, Any] = {"dialect": d.name, "ends": end_ids(d, config, rows)}
        settings |= {"sampling": dict(d.sampling)} if d.sampling else {}
        settings |= {"new": d.new} if d.new else {}
        return Contents(spec, mask, self.objective(config), settings, word=-1 if word is None else word)

    def base(self, files: Files) -> str:
        d = self.dialect
        return d.name if d.causal and d.stated and files.dialect is None else ""

    def values(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of the spec that config.json has, apart from the vocabulary."""
        given = {key: value for key, value in config.items() if value is not None}
        fields = read_fields(given, {name: key for name, key in self.dialect.keys.items() if name != "vocab"})
        longest = self.dialect.trained or fields["length"]
        return fields | {"length": min(fields["length"], longest)}

    def objective(self, config: Mapping[str, Any]) -> Objective:
        d = self.dialect
        if d.causal:
            return Autoregressive()
        if d.block:
            size = config.get("block_size", d.block) if isinstance(d.block, int) else whole(config, d.block)
            return BlockDiffusion(whole({"block_size": size}, "block_size"), given_first=d.shift, opens=d.opens)
        return MDLM(given_first=d.shift)

    def our_name(self, name: str) -> str | None:
        if any(part in name for part in self.dialect.dropped):
            return None
        return f"backbone.{renamed_parts(name, self.dialect.names)}"

    def unpack(self, name: str, tensor: Tensor, contents: Contents) -> dict[str, Tensor]:
        d, ours = self.dialect, self.our_name(name)
        if ours is None:
            return {}
        if d.transposed and tensor.ndim == 2 and ".layers." in ours:
            tensor = tensor.mT
        return parts_of(ours, tensor, contents, grouped=d.fused == "grouped")


def parts_of(ours: str, tensor: Tensor, contents: Contents, *, grouped: bool = False) -> dict[str, Tensor]:
    """The network's tensors in one with a name of ours: queries, keys and values apart, rows for blanks added."""
    if ".qkv_proj." in ours:
        assert isinstance(contents.spec, DecoderSpec)
        parts = split_heads(tensor, contents.spec, grouped=grouped)
        return {ours.replace("qkv_proj", f"{which}_proj"): part for which, part in zip("qkv", parts, strict=True)}
    return {ours: with_blank_rows(ours, tensor, contents)}


def check_another(d: Dialect, config: Mapping[str, Any]) -> None:
    """Refuse a network of this model_type that is something else."""
    check_fixed(config, d.fixed)
    if config.get("num_experts") or config.get("num_local_experts"):
        raise UserError("config.json describes a mixture of experts, which unmask does not support.")
    if d.name == "dream" and ("block_size" in config or config.get("architectures") == ["DreamForCausalLM"]):
        raise UserError(
            "config.json says model_type 'Dream' with a block size: this is DreamReasoner, a block diffusion model "
            "with another mask and no shift. unmask supports Dream and Dream-Coder."
        )


def row_count(d: Dialect, config: Mapping[str, Any]) -> int:
    """The rows of the embedding in the files, without one that is only there for the mask (SMDM)."""
    key = d.keys["vocab"]
    key, other = key if isinstance(key, tuple) else (key, key)
    return whole(config, key if config.get(key) is not None else other)


def blank_of(d: Dialect, files: Files, rows: int) -> tuple[int | None, int | None]:
    """The id of blanks, and the word of the files that they look like; None: the tokenizer's, and no word."""
    given, tokenizer = files.config.get(MASK), files.tokenized
    if given is not None and (type(given) is not int or not 0 <= given < rows):
        raise UserError(f"config.json says {MASK} = {given!r:.60}: it must be one of 0 to {rows - 1}.")
    if d.causal:
        return (None if tokenizer else rows), None
    if d.mask_row:
        return rows, None
    if d.word and (given is not None or rows in d.word):
        return rows, d.word[rows] if given is None else given
    mask = d.mask.get(rows) if given is None else given
    known = d.mask or d.word
    if mask is None and (not tokenizer or known):
        raise UserError(
            f"{files.folder} does not say which id is the mask, and its {rows} ids are not those of the published "
            f"models: write {MASK} into config.json{'' if known else ', or put its tokenizer.json there'}."
        )
    return mask, None


def end_ids(d: Dialect, config: Mapping[str, Any], rows: int) -> list[int]:
    """The ids that end a text: those of the table and eos_token_id, as far as the vocabulary has them."""
    eos = config.get("eos_token_id")
    given = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if not all(type(id) is int for id in given):
        raise UserError(f"config.json says eos_token_id = {eos!r:.60}: it must be an id, or a list of ids.")
    return sorted({id for id in (*given, *d.ends) if 0 <= id < rows})


def rotation(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary positions: in `rope_parameters`, or in `rope_theta` and `rope_scaling`."""
    table = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(table, Mapping):
        raise UserError(f"config.json says rope_parameters = {table!r:.60}: it must be a table.")
    kind = table.get("rope_type", table.get("type", "default"))
    fields: dict[str, Any] = {}
    if "rope_theta" in table or "rope_theta" in config:
        fields["theta"] = number({**config, **table}, "rope_theta", THETA)
    if table.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UserError("config.json says partial_rotary_factor: no dialect that unmask knows rotates a part.")
    if kind == "llama3":
        names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        fields["scaling"] = tuple(number(table, name, 0.0) for name in names)
    elif kind != "default":
        raise UserError(f"config.json says rope_type = {kind!r:.60}: unmask supports default and llama3.")
    return fields


def biases(d: Dialect, config: Mapping[str, Any]) -> dict[str, Any]:
    """Llama may have biases: of attention, and of the MLP too."""
    if d.kind != "llama":
        return {}
    attention, mlp = flag(config, "attention_bias", False), flag(config, "mlp_bias", False)
    if mlp and not attention:
        raise UserError("config.json says mlp_bias without attention_bias: unmask supports both, or the second only.")
    return {"bias": "all" if mlp else "attention" if attention else "none"}


def renamed_parts(name: str, names: Mapping[str, str]) -> str:
    """A name with parts replaced, one after the other; `#` stands for a digit."""
    whole_parts = {old: new for old, new in names.items() if not old.endswith("#")}
    for old, new in names.items():
        if old.endswith("#"):
            name = re.sub(rf"^{re.escape(old[:-1])}(?=\d)", new[:-1], name)
        elif old in whole_parts and (name.startswith(old) or old.startswith((".", "#"))):
            name = swap_parts(name, {old: new}) if old.startswith((".", "#")) else new + name.removeprefix(old)
    return name


def split_heads(tensor: Tensor, spec: DecoderSpec, *, grouped: bool) -> list[Tensor]:
    """Queries, keys and values of one tensor; `grouped`: of each group of heads, one after the other."""
    sizes = [spec.heads * spec.each, spec.pairs * spec.each, spec.pairs * spec.each]
    if len(tensor) != sum(sizes):
        raise UserError(
            f"a tensor of queries, keys and values has {len(tensor)} rows, and config.json describes {sum(sizes)}."
        )
    if not grouped:
        return list(tensor.split(sizes))
    each = spec.heads // spec.pairs
    parts = tensor.unflatten(0, (spec.pairs, each + 2, spec.each)).split((each, 1, 1), 1)
    return [part.flatten(0, 2) for part in parts]


def with_blank_rows(name: str, table: Tensor, contents: Contents) -> Tensor:
    """An embedding or a head with one more row for blanks, if it has too few: the vector of a word, or the mean of
    all; in a head it is 0 and never an answer (`DecoderSpec.outputs`)."""
    if table.ndim != 2 or len(table) >= contents.spec.vocab:
        return table
    if name == "backbone.embed_tokens.weight":
        row = table.mean(0, dtype=torch.float32).to(table.dtype) if contents.word < 0 else table[contents.word]
        return torch.cat((table, row[None]))
    return torch.cat((table, table.new_zeros(1, table.shape[1]))) if name == "backbone.lm_head.weight" else table


for table in DIALECTS.values():
    FORMATS.register(table.name, table.about)(type(table.name, (Published,), {"dialect": table}))
