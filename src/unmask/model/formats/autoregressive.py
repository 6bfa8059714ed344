"""The tables of published autoregressive decoders, of which most published diffusion models were made."""

from dataclasses import replace

from unmask.model.formats.dialect import Dialect
from unmask.model.formats.keys import Keys

LLAMA_KEYS: Keys = {
    "vocab": "vocab_size",
    "length": "max_position_embeddings",
    "width": "hidden_size",
    "blocks": "num_hidden_layers",
    "heads": "num_attention_heads",
    "shared": ("num_key_value_heads", 0),
    "features": ("head_dim", 0),
    "inner": "intermediate_size",
    "eps": ("rms_norm_eps", 1e-6),
    "tied": ("tie_word_embeddings", False),
}
LLAMA_NAMES = {"model.": ""}
SILU = {"hidden_act": "silu"}
AR_BOUND = "-log p of the text, exactly"

LLAMA = Dialect(
    "llama",
    "Llama, SmolLM2 and relatives, autoregressive",
    "llama",
    LLAMA_KEYS,
    fixed={**SILU, "pretraining_tp": 1},
    names=LLAMA_NAMES,
    dropped=("rotary_emb.inv_freq",),
    stated=True,
    causal=True,
    bound=AR_BOUND,
    new=128,
)
QWEN2 = replace(
    LLAMA,
    name="qwen2",
    about="Qwen2 and Qwen2.5, autoregressive",
    kind="qwen2",
    fields={"bias": "qkv"},
    fixed={**SILU, "use_sliding_window": False},
)
QWEN3 = replace(
    QWEN2,
    name="qwen3",
    about="Qwen3, autoregressive",
    kind="qwen3",
    fields={"head_norm": True},
    fixed={**SILU, "use_sliding_window": False, "attention_bias": False},
    keys={**LLAMA_KEYS, "features": ("head_dim", 128)},
)
GPT2 = Dialect(
    "gpt2",
    "GPT-2, autoregressive",
    "gpt2",
    {
        "vocab": "vocab_size",
        "length": "n_positions",
        "positions": "n_positions",
        "width": "n_embd",
        "blocks": "n_layer",
        "heads": "n_head",
        "inner": ("n_inner", 0),
        "eps": ("layer_norm_epsilon", 1e-5),
    },
    fields={"norm": "layer", "gated": False, "bias": "all", "tied": True},
    fixed={
        "activation_function": "gelu_new",
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    names={
        "transformer.": "",
        "wte.": "embed_tokens.",
        "wpe.": "embed_positions.",
        "ln_f.": "norm.",
        "h.#": "layers.#",
        ".ln_1.": ".input_layernorm.",
        ".attn.c_attn.": ".self_attn.qkv_proj.",
        ".attn.c_proj.": ".self_attn.o_proj.",
        ".ln_2.": ".post_attention_layernorm.",
        ".mlp.c_fc.": ".mlp.up_proj.",
        ".mlp.c_proj.": ".mlp.down_proj.",
    },
    dropped=(".attn.bias", ".attn.masked_bias"),
    fused="stacked",
    transposed=True,
    stated=True,
    causal=True,
    bound=AR_BOUND,
    new=128,
)
