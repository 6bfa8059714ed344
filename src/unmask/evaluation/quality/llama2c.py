"""Models of llama2.c: a flat file of float32 weights after seven integers, and a file of tokens with scores.

    model.bin   dim, hidden, layers, heads, key-value heads, vocabulary (negative: the head is not tied), length; then
                embedding, attention norms, wq, wk, wv, wo, feed-forward norms, w1, w2, w3, last norm, two tables of
                the rotation (constants, skipped), and the head if it is not the embedding
    tok*.bin    the longest token's bytes; then for each token its score, its length, its bytes

The network is rebuilt as transformers' Llama; its rotation pairs feature i with i + half instead of 2i with
2i + 1, so the rows of wq and wk are reordered.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.errors import UserError

HEADER = 7
BOS, EOS, BYTES = 1, 2, 3  # ids of llama2.c: the bytes 0 to 255 start at 3


def read_network(path: Path) -> Any:
    """transformers' LlamaForCausalLM with the weights of a .bin file."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = np.fromfile(path, "<i4", HEADER)
    if len(sizes) < HEADER or (sizes[:5] < 1).any() or sizes[5] == 0 or sizes[6] < 1 or sizes[0] % sizes[3]:
        raise UserError(f"{path} is not a llama2.c model: its first seven integers are {sizes.tolist()}.")
    width, hidden, layers, heads, groups, vocab, length = sizes.tolist()
    tied, vocab, size = vocab > 0, abs(vocab), width // heads
    shapes: list[tuple[str, tuple[int, ...]]] = [
        ("model.embed_tokens.weight", (vocab, width)),
        ("input_layernorm", (layers, width)),
        ("self_attn.q_proj", (layers, width, width)),
        ("self_attn.k_proj", (layers, groups * size, width)),
        ("self_attn.v_proj", (layers, groups * size, width)),
        ("self_attn.o_proj", (layers, width, width)),
        ("post_attention_layernorm", (layers, width)),
        ("mlp.gate_proj", (layers, hidden, width)),
        ("mlp.down_proj", (layers, width, hidden)),
        ("mlp.up_proj", (layers, hidden, width)),
        ("model.norm.weight", (width,)),
        ("rotation", (2, length, size // 2)),
        *(() if tied else (("lm_head.weight", (vocab, width)),)),
    ]
    numbers = np.fromfile(path, "<f4", offset=4 * HEADER)
    needed = sum(int(np.prod(shape)) for _, shape in shapes)
    if len(numbers) != needed:
        raise UserError(f"{path} holds {len(numbers):,} weights where its header needs {needed:,}: copy it again.")
    ends = np.cumsum([int(np.prod(shape)) for _, shape in shapes])[:-1]
    parts = {
        name: torch.from_numpy(part.reshape(shape))
        for (name, shape), part in zip(shapes, np.split(numbers, ends), strict=True)
    }
    parts.pop("rotation")
    state = {name: tensor for name, tensor in parts.items() if name.endswith(".weight")}
    for name in parts.keys() - state.keys():
        for i, tensor in enumerate(parts[name]):
            turned = name.endswith(("q_proj", "k_proj"))
            state[f"model.layers.{i}.{name}.weight"] = halves(tensor, size) if turned else tensor
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=width,
        intermediate_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        max_position_embeddings=length,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )
    network = LlamaForCausalLM(config)
    if tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    network.load_state_dict(state)
    return network.eval()


def halves(weight: Tensor, size: int) -> Tensor:
    """The rows of each head reordered: first those of even features, then those of odd ones."""
    heads = weight.unflatten(0, (-1, size // 2, 2))
    return heads.transpose(1, 2).reshape(weight.shape)


def read_llama2c_tokenizer(path: Path, vocab: int) -> Any:
    """The tokenizer of a tok*.bin file: pairs merge in the order of their scores; a space is put before the text."""
    from tokenizers import Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    data, at, words, scores = path.read_bytes(), 4, [], []
    try:
        for _ in range(vocab):
            size = int(np.frombuffer(data, "<i4", 1, at + 4)[0])
            scores.append(float(np.frombuffer(data, "<f4", 1, at)[0]))
            words.append(data[at + 8 : at + 8 + size].decode("utf-8", "replace"))
            at += 8 + size
    except ValueError:
        at = -1
    if at != len(data):
        raise UserError(f"{path} does not hold the {vocab} tokens that its model has: it belongs to another one.")
    words[:BYTES] = ["<unk>", "<s>", "</s>"]
    words[BYTES : BYTES + 256] = [f"<0x{byte:02X}>" for byte in range(256)]
    ids = {word: id for id, word in reversed(list(enumerate(words)))}
    merges = [
        (score, word[:cut], word[cut:])
        for word, score in zip(words[BYTES + 256 :], scores[BYTES + 256 :], strict=True)
        for cut in range(1, len(word))
        if word[:cut] in ids and word[cut:] in ids
    ]
    merges.sort(key=lambda merge: -merge[0])
    pairs = [(left, right) for _, left, right in merges]
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=pairs, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Prepend(" ")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    between = "<s>"  # the training text was concatenated stories, each with <s> before it, never </s>
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token=between)


def tokens_beside(path: Path) -> Path:
    """The only file of tokens in a model's folder."""
    found = sorted(path.parent.glob("tok*.bin"))
    if len(found) != 1:
        seen = ", ".join(file.name for file in found) or "none"
        raise UserError(f"a llama2.c model needs its tokenizer: one tok*.bin in {path.parent}, not {seen}.")
    return found[0]
