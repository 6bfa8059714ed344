"""Dialects: the published decoders, autoregressive and diffusion, each a table. `formats/decoder.py` reads them all.

A dialect says how config.json and the tensors describe a `decoder`, and how the network is used: which id is the
mask, whether position i is predicted at i − 1, blocks, the tokens that end a text, and its authors' sampler.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Keys = Mapping[str, str | tuple[str, Any]]  # a field of the spec: its key in config.json, perhaps with a default


@dataclass(frozen=True)
class Dialect:
    """A family of published models."""

    name: str
    about: str  # one line for lists
    kind: str | None  # config.json's model_type; None: it has none
    keys: Keys
    fields: Mapping[str, Any] = field(default_factory=dict)  # of the spec, the same in the whole family
    fixed: Mapping[str, Any] = field(default_factory=dict)  # keys that have only one value here
    marked: tuple[str, ...] = ()  # keys that config.json must have to be of this family
    begins: str = ""  # how names of tensors begin that tell it from others with the same model_type
    names: Mapping[str, str] = field(default_factory=dict)  # parts of tensors' names, theirs to ours
    dropped: tuple[str, ...] = ()  # parts of names that the network does not have
    fused: Literal["", "stacked", "grouped"] = ""  # queries, keys and values in one tensor: one after the other, or
    # of each group of heads
    transposed: bool = False  # matrices are [in, out]
    stated: bool = False  # files do not tell it from other families: a user has to name it
    hub: tuple[str, ...] = ()  # repositories that are of this family
    causal: bool = False  # autoregressive
    shift: bool = False  # position i is predicted at i − 1; the first token of a row is given
    block: int | str = 0  # tokens per block, or their key in config.json; 0: it sees both sides of everything
    opens: bool = False  # the first token of a block is predicted before the others, from the finished text alone
    part: int = 0  # tokens of a block that its authors' sampler fills before the next ones of it; 0: all
    aligned: bool = False  # its authors' sampler begins a block where the prompt ends
    mask_row: bool = False  # the embedding has one row more than config.json says, and than the head: the mask's
    mask: Mapping[int, int] = field(default_factory=dict)  # the mask by the number of ids, where config.json has none
    word: Mapping[int, int] = field(default_factory=dict)  # the same, where it is an ordinary word: blanks get an id
    tokens: Mapping[int, int] = field(default_factory=dict)  # ids that have a token, by the number of ids
    sampling: Mapping[str, Any] = field(default_factory=dict)  # its authors' settings
    ends: tuple[int, ...] = ()  # ids that end a text, of its published vocabulary; beside eos_token_id of config.json
    template: str = ""  # of conversations
    bound: str = "upper bound on -log p of the text"  # what its number means


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
ANSWERS = "upper bound on -log p of an answer given its prompt: it was tuned on answers"

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
)
DIFFULLAMA = replace(
    LLAMA,
    name="diffullama",
    about="DiffuLLaMA: Llama 2 turned into a diffusion model, shifted; its mask is the word of id 811",
    causal=False,
    shift=True,
    word={32000: 811},
    hub=("diffusionfamily/diffullama",),
    sampling={"sampler": "ancestral", "steps": 64, "temperature": 0.9, "top_p": 0.9},
    bound="upper bound on -log p of the text after its first token",
)
DIFFUGPT = replace(
    GPT2,
    name="diffugpt",
    about="DiffuGPT: GPT-2 turned into a diffusion model, shifted; its mask is the word of id 10541",
    begins="denoise_model.",
    names={"denoise_model.": "", **GPT2.names},
    stated=False,
    causal=False,
    shift=True,
    word={50257: 10541},
    mask={50258: 50257},
    hub=("diffusionfamily/diffugpt-s", "diffusionfamily/diffugpt-m"),
    sampling={"sampler": "ancestral", "steps": 64, "temperature": 0.95, "top_p": 0.9},
    bound="upper bound on -log p of the text after its first token",
)
LLADA = Dialect(
    "llada",
    "LLaDA (8B, 1.5, Instruct): a diffusion model of Llama's shape",
    "llada",
    {
        "vocab": ("embedding_size", "vocab_size"),
        "length": "max_sequence_length",
        "width": "d_model",
        "blocks": "n_layers",
        "heads": "n_heads",
        "shared": ("n_kv_heads", 0),
        "inner": "mlp_hidden_size",
        "eps": ("rms_norm_eps", 1e-5),
        "tied": ("weight_tying", False),
    },
    fixed={
        "block_type": "llama",
        "layer_norm_type": "rms",
        "activation_type": "silu",
        "alibi": False,
        "rope": True,
        "attention_layer_norm": False,
        "scale_logits": False,
        "input_emb_norm": False,
        "block_group_size": 1,
        "include_bias": False,
        "include_qkv_bias": False,
    },
    names={
        "model.transformer.ff_out.": "lm_head.",
        "model.transformer.": "",
        "wte.": "embed_tokens.",
        "ln_f.": "norm.",
        "blocks.": "layers.",
        ".attn_norm.": ".input_layernorm.",
        "#.q_proj.": "#.self_attn.q_proj.",
        "#.k_proj.": "#.self_attn.k_proj.",
        "#.v_proj.": "#.self_attn.v_proj.",
        "#.attn_out.": "#.self_attn.o_proj.",
        ".ff_norm.": ".post_attention_layernorm.",
        "#.ff_proj.": "#.mlp.gate_proj.",
        "#.up_proj.": "#.mlp.up_proj.",
        "#.ff_out.": "#.mlp.down_proj.",
    },
    mask={126464: 126336},
    tokens={126464: 126349},
    hub=("GSAI-ML/LLaDA-8B-Base", "GSAI-ML/LLaDA-8B-Instruct", "GSAI-ML/LLaDA-1.5"),
    sampling={"sampler": "draw-then-keep", "temperature": 0.0},
    ends=(126081, 126348),
    template="<|startoftext|><|start_header_id|>ROLE<|end_header_id|>, blank line, text, <|eot_id|>",
    bound="upper bound on -log p of the text; for Instruct and 1.5, of an answer given its prompt",
)
DREAM = replace(
    QWEN2,
    name="dream",
    about="Dream and Dream-Coder: Qwen2 turned into a diffusion model, shifted",
    kind="Dream",
    causal=False,
    stated=False,
    shift=True,
    mask={152064: 151666},
    hub=(
        "Dream-org/Dream-v0-Base-7B",
        "Dream-org/Dream-v0-Instruct-7B",
        "Dream-org/Dream-Coder-v0-Base-7B",
        "Dream-org/Dream-Coder-v0-Instruct-7B",
    ),
    sampling={"sampler": "entropy:falls=0.001", "steps": 512, "temperature": 0.2, "top_p": 0.95},
    ends=(151643,),
    template="ChatML",
    bound="upper bound on -log p of the text after its first token",
)
FAST_DLLM = replace(
    QWEN2,
    name="fast-dllm",
    about="Fast-dLLM v2: Qwen2 turned into a block diffusion model, shifted",
    kind="Fast_dLLM_Qwen",
    causal=False,
    stated=False,
    shift=True,
    block="bd_size",
    opens=True,
    part=8,
    mask={151936: 151665, 152064: 151665},
    hub=("Efficient-Large-Model/Fast_dLLM_v2_1.5B", "Efficient-Large-Model/Fast_dLLM_v2_7B"),
    sampling={"sampler": "threshold:tau=0.9", "temperature": 0.0},
    ends=(151645,),
    template="ChatML",
    bound="upper bound on -log p of the text after its first token; it was not trained on a bound",
)
A2D = replace(
    QWEN3,
    name="a2d-mdlm",
    about="Tiny-A2D: Qwen3 turned into a diffusion model that sees both sides",
    kind="a2d-qwen3",
    stated=True,
    causal=False,
    mask={},
    tokens={151936: 151670},
    hub=("dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1",),
    sampling={"sampler": "draw-then-keep", "steps": 128, "temperature": 0.0},
    ends=(151645, 151643),
    template="ChatML with an empty think block",
    bound=ANSWERS,
)
A2D_BLOCKS = replace(
    A2D,
    name="a2d-bd3lm",
    about="Tiny-A2D: Qwen3 turned into a block diffusion model",
    block=32,
    aligned=True,
    hub=("dllm-hub/Qwen3-0.6B-diffusion-bd3lm-v0.1",),
    sampling={"sampler": "draw-then-keep", "temperature": 0.0},
)
SDAR = replace(
    QWEN3,
    name="sdar",
    about="SDAR: Qwen3 turned into a block diffusion model",
    kind="sdar",
    stated=False,
    causal=False,
    block="block_size",
    mask={151936: 151669},
    tokens={151936: 151670},
    hub=("JetLM/SDAR-1.7B-Chat", "JetLM/SDAR-4B-Chat", "JetLM/SDAR-8B-Chat"),
    sampling={"sampler": "threshold:tau=0.85", "temperature": 1.0},
    ends=(151645, 151643),
    template="ChatML",
    bound=ANSWERS,
)
SMDM = Dialect(
    "smdm",
    "SMDM: masked diffusion models of Llama's shape, 6M to 2.1B",
    None,
    {
        "vocab": "padded_vocab_size",
        "length": "block_size",
        "width": "n_embd",
        "blocks": "n_layer",
        "heads": "n_head",
        "shared": ("n_query_groups", 0),
        "inner": "intermediate_size",
        "eps": ("norm_eps", 1e-5),
    },
    fields={"tied": False},
    fixed={
        "bias": False,
        "parallel_residual": False,
        "rotary_percentage": 1.0,
        "_mlp_class": "LLaMAMLP",
        "_norm_class": "FusedRMSNorm",
    },
    marked=("n_query_groups", "padded_vocab_size"),
    names={
        "transformer.": "",
        "wte.": "embed_tokens.",
        "ln_f.": "norm.",
        "h.#": "layers.#",
        ".norm_1.": ".input_layernorm.",
        ".norm_2.": ".post_attention_layernorm.",
        ".attn.attn.": ".self_attn.qkv_proj.",
        ".attn.proj.": ".self_attn.o_proj.",
        ".mlp.swiglu.w1.": ".mlp.gate_proj.",
        ".mlp.swiglu.w2.": ".mlp.up_proj.",
        ".mlp.swiglu.w3.": ".mlp.down_proj.",
    },
    fused="grouped",
    mask_row=True,
    sampling={"sampler": "ancestral", "steps": 512},
)
TABLES = (LLAMA, QWEN2, QWEN3, GPT2, LLADA, DREAM, DIFFULLAMA, DIFFUGPT, A2D, A2D_BLOCKS, SDAR, FAST_DLLM, SMDM)
DIALECTS = {table.name: table for table in TABLES}


def family_of(settings: Mapping[str, Any]) -> Dialect | None:
    """The table of a model that was read by one; None: by none."""
    return DIALECTS.get(str(settings.get("dialect")))
