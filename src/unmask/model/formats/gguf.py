"""GGUF files of the dialects: Llama, Qwen2, Qwen3, GPT-2, Dream and LLaDA, with their tokenizers.

A header says the same as a config.json, with other names. Llama's queries and keys are stored in another order: the
two features of a rotated pair are adjacent there.
"""

from dataclasses import replace
from typing import Any

from torch import Tensor

from unmask.errors import UserError
from unmask.model.backbones.decoder import DecoderSpec
from unmask.model.format import FORMATS, HEADER, Contents, Files, Format
from unmask.model.formats.decoder import Published, parts_of, renamed_parts
from unmask.model.formats.dialect import Dialect
from unmask.model.formats.dialects import DIALECTS
from unmask.model.gguf_file import Header, tokenizer_of

KINDS = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gpt2": "gpt2", "dream": "Dream", "llada": "llada"}
PAIRED = ("llama", "llada")  # whose rotated pairs are adjacent
KEYS = {  # fields of a spec by the key of the header
    "length": "context_length",
    "positions": "context_length",
    "width": "embedding_length",
    "blocks": "block_count",
    "heads": "attention.head_count",
    "shared": "attention.head_count_kv",
    "features": "attention.key_length",
    "inner": "feed_forward_length",
}
NAMES = {
    "token_embd.": "embed_tokens.",
    "position_embd.": "embed_positions.",
    "output_norm.": "norm.",
    "output.": "lm_head.",
    "blk.#": "layers.#",
    ".attn_norm.": ".input_layernorm.",
    ".attn_qkv.": ".self_attn.qkv_proj.",
    ".attn_q.": ".self_attn.q_proj.",
    ".attn_k.": ".self_attn.k_proj.",
    ".attn_v.": ".self_attn.v_proj.",
    ".attn_output.": ".self_attn.o_proj.",
    ".attn_q_norm.": ".self_attn.q_norm.",
    ".attn_k_norm.": ".self_attn.k_norm.",
    ".ffn_norm.": ".post_attention_layernorm.",
    ".ffn_gate.": ".mlp.gate_proj.",
    ".ffn_up.": ".mlp.up_proj.",
    ".ffn_down.": ".mlp.down_proj.",
}


@FORMATS.register("gguf", "GGUF files of Llama, Qwen2, Qwen3, GPT-2, Dream and LLaDA")
class GgufFile(Format):
    """One file with everything in it."""

    def matches(self, files: Files) -> bool:
        return HEADER in files.config

    def read(self, files: Files) -> Contents:
        header = files.config[HEADER]
        table = family_of(header, files.dialect)
        config = config_of(header, table)
        tokenizer = tokenizer_of(header.keys)
        reader: Any = FORMATS[table.name]()
        assert isinstance(reader, Published)
        contents = reader.read(replace(files, config=config, dialect=table.name, tokenized=tokenizer is not None))
        return replace(contents, tokenizer=tokenizer, paired=header.family in PAIRED)

    def base(self, files: Files) -> str:
        same = [one for one in DIALECTS.values() if one.kind == KINDS.get(files.config[HEADER].family)]
        return next((one.name for one in same if one.causal and one.stated and files.dialect is None), "")

    def our_name(self, name: str) -> str | None:
        return f"backbone.{renamed_parts(name, NAMES)}"

    def unpack(self, name: str, tensor: Tensor, contents: Contents) -> dict[str, Tensor]:
        ours, spec = self.our_name(name), contents.spec
        assert isinstance(spec, DecoderSpec)
        assert ours is not None
        if contents.paired and ours.endswith(("q_proj.weight", "k_proj.weight")):
            tensor = in_halves(tensor, spec.heads if "q_proj" in ours else spec.pairs)
        return parts_of(ours, tensor, contents)


def family_of(header: Header, dialect: str | None) -> Dialect:
    if header.family not in KINDS:
        raise UserError(f"the GGUF file has the architecture {header.family!r:.60}; unmask reads {', '.join(KINDS)}.")
    same = [one for one in DIALECTS.values() if one.kind == KINDS[header.family]]
    if dialect is None and same[0].stated:
        raise UserError(
            f"the GGUF file has the architecture {header.family!r}, and several kinds of models do: say which one "
            f"this is with --dialect (dialect= in Python): {', '.join(one.name for one in same)}."
        )
    chosen = [one for one in same if dialect in (None, one.name)]
    if not chosen:
        raise UserError(f"the GGUF file has the architecture {header.family!r}, which is not {dialect!r}.")
    return chosen[0]


def config_of(header: Header, table: Dialect) -> dict[str, Any]:
    """The header with the keys that the dialect has in a config.json."""
    if "rope_freqs.weight" in header.tensors or header.get("rope.scaling.type") not in (None, "none"):
        raise UserError("the GGUF file scales its rotary positions, which unmask reads from safetensors only.")
    if header.get("expert_count"):
        raise UserError("the GGUF file describes a mixture of experts, which unmask does not support.")
    words = header.tensors.get("token_embd.weight")
    if words is None:
        raise UserError("the GGUF file has no tensor token_embd.weight.")
    values = {field: header.get(key) for field, key in KEYS.items()}
    values["vocab"] = words.shape[0]
    values["tied"] = "output.weight" not in header.tensors
    eps = header.get("attention.layer_norm_rms_epsilon")
    values["eps"] = header.get("attention.layer_norm_epsilon") if eps is None else eps
    keys = {field: key if isinstance(key, str) else key[0] for field, key in table.keys.items()}
    config = {key: values[field] for field, key in keys.items() if values.get(field) is not None}
    mask, base = header.keys.get("tokenizer.ggml.mask_token_id"), header.get("rope.freq_base")
    eos = header.keys.get("tokenizer.ggml.eos_token_id")
    config |= {} if mask is None else {"mask_token_id": mask}
    config |= {} if eos is None else {"eos_token_id": eos}
    config |= {} if base is None else {"rope_theta": base}
    turned, each = header.get("rope.dimension_count"), header.get("attention.key_length")
    each = each or (values["width"] or 0) // max(1, values["heads"] or 1)
    if turned is not None and not table.keys.get("positions") and turned != each:
        raise UserError(f"the GGUF file rotates {turned} features of a head of {each}: unmask supports all of them.")
    return {"model_type": table.kind, **config}


def in_halves(weight: Tensor, heads: int) -> Tensor:
    """Rows of queries or keys with the two features of each rotated pair in the two halves of a head."""
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
