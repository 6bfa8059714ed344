"""GGUF files give the network and the tokenizer that were written to them; cut and lying files are refused."""

import struct

import pytest
import torch

from model.backbones.test_decoder import VOCAB, logits, saved_peer, tokens
from unmask.cli.inspect import describe_checkpoint
from unmask.errors import UserError
from unmask.model.checkpoint import load
from unmask.model.formats.gguf import NAMES
from unmask.model.gguf_file import read_header, tensors_of

transformers = pytest.importorskip("transformers")
UINT, FLOAT, TEXT, LIST, F32, F16 = 4, 6, 8, 9, 0, 1


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value_of(value):
    """A value with its type."""
    if isinstance(value, list):
        kind = TEXT if isinstance(value[0], str) else UINT
        items = b"".join(text(one) if kind == TEXT else struct.pack("<I", one) for one in value)
        return struct.pack("<IIQ", LIST, kind, len(value)) + items
    if isinstance(value, str):
        return struct.pack("<I", TEXT) + text(value)
    return struct.pack("<If", FLOAT, value) if isinstance(value, float) else struct.pack("<II", UINT, value)


def gguf_bytes(keys, tensors, *, kind=F32):
    """A file of version 3, with matrices of one type."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    head += b"".join(text(name) + value_of(value) for name, value in keys.items())
    body = b""
    for name, tensor in tensors.items():
        own = kind if tensor.ndim == 2 else F32
        shape = tuple(reversed(tensor.shape))
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, own, len(body))
        body += tensor.contiguous().to(torch.float16 if own == F16 else torch.float32).numpy().tobytes()
        body += b"\0" * (-len(body) % 32)
    return head + b"\0" * (-len(head) % 32) + body


def header_keys(name, config):
    wide = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "attention.head_count": config.num_attention_heads,
    }
    if name == "gpt2":
        wide |= {"feed_forward_length": 4 * config.hidden_size, "attention.layer_norm_epsilon": 1e-5}
    else:
        wide |= {
            "attention.head_count_kv": config.num_key_value_heads,
            "feed_forward_length": config.intermediate_size,
            "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
            "rope.freq_base": float(config.rope_parameters["rope_theta"]),
        }
    if name == "qwen3":
        wide |= {"attention.key_length": config.head_dim}
    return {"general.architecture": name} | {f"{name}.{key}": value for key, value in wide.items()}


def gguf_tensors(name, peer):
    """A peer's tensors with the names of GGUF; Llama's queries and keys with adjacent pairs."""
    found, names = {}, {ours: theirs for theirs, ours in NAMES.items()}
    gpt2 = {
        "wte.": "token_embd.",
        "wpe.": "position_embd.",
        "ln_f.": "output_norm.",
        ".ln_1.": ".attn_norm.",
        ".attn.c_attn.": ".attn_qkv.",
        ".attn.c_proj.": ".attn_output.",
        ".ln_2.": ".ffn_norm.",
        ".mlp.c_fc.": ".ffn_up.",
        ".mlp.c_proj.": ".ffn_down.",
        "h.": "blk.",
    }
    for key, tensor in peer.state_dict().items():
        if key.endswith("lm_head.weight") and peer.config.tie_word_embeddings:
            continue
        if name == "gpt2" and tensor.ndim == 2 and ".h." in key:
            tensor = tensor.T
        heads = {"q": peer.config.num_attention_heads, "k": getattr(peer.config, "num_key_value_heads", 1)}
        for which, count in heads.items():
            if name == "llama" and f".{which}_proj." in key:
                tensor = tensor.unflatten(0, (count, 2, -1)).transpose(1, 2).flatten(0, 2)
        key = key.removeprefix("model.").removeprefix("transformer.")
        for old, new in (gpt2 if name == "gpt2" else names).items():
            old, new = old.replace("#", ""), new.replace("#", "")
            if key.startswith(old) or old[0] == ".":
                key = key.replace(old, new, 1)
        found[key] = tensor
    return found


# A tokenizer for small letters, with as many ids as a peer.
SMOLLM = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["<|im_end|>", *"abcdefghijklmnopqrstuvwxyz.", "Ġ", "Ċ", "on", "at", *"01234567"],
    "tokenizer.ggml.merges": ["o n", "a t"],
    "tokenizer.ggml.token_type": [3, *[1] * (VOCAB - 1)],
    "tokenizer.ggml.eos_token_id": 0,
}


def written(name, folder, *, kind=F32, **more):
    peer = saved_peer(name, folder / "peer")
    path = folder / "model.gguf"
    path.write_bytes(gguf_bytes(header_keys(name, peer.config) | more, gguf_tensors(name, peer), kind=kind))
    return peer, path


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gpt2"])
@torch.no_grad()
def test_a_file_has_the_logits_of_the_network_that_was_written(name, tmp_path):
    peer, path = written(name, tmp_path)
    model, x = load(path, dialect=name), tokens()
    torch.testing.assert_close(logits(model, x), peer(x).logits, rtol=2e-5, atol=2e-5)
    with pytest.raises(UserError, match="several kinds of models do: say which"):
        load(path)
    with pytest.raises(UserError, match="which is not 'sdar'"):
        load(path, dialect="sdar")
    about = describe_checkpoint(path, dialect=name)
    assert (about.types, about.bytes) == (("F32",), path.stat().st_size)


@torch.no_grad()
def test_half_precision_is_kept(tmp_path):
    peer, path = written("qwen2", tmp_path, kind=F16)
    model = load(path, dialect="qwen2")
    assert {p.dtype for p in model.network.parameters() if p.ndim == 2} == {torch.float16}
    x = tokens()
    torch.testing.assert_close(logits(model, x), peer(x).logits, rtol=0, atol=0.05)


@torch.no_grad()
def test_a_quantised_tensor_is_what_the_library_makes_of_it(tmp_path):
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "q.gguf"
    values = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    kind = gguf.GGMLQuantizationType.Q8_0
    raw = gguf.quantize(values.numpy(), kind).tobytes()
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("w") + struct.pack("<I2QIQ", 2, 64, 4, int(kind), 0)
    path.write_bytes(head + b"\0" * (-len(head) % 32) + raw)
    ((name, found),) = tensors_of(path)
    assert (name, found.dtype) == ("w", torch.float32)
    torch.testing.assert_close(found, values, rtol=0, atol=0.02)


def test_the_tokenizer_is_that_of_the_header(tmp_path):
    pieces = ["<|im_start|>", "<|im_end|>", "a", "b", "c", "1", "2", "Ġ", "ab", "Ġab", "abc"]
    keys = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.merges": ["a b", "Ġ ab", "ab c"],
        "tokenizer.ggml.token_type": [3, 3, *[1] * 9],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }
    _, path = written("llama", tmp_path, **keys)
    model = load(path, dialect="llama")
    assert (model.tokenizer.bos, model.tokenizer.eos, model.mask) == (0, 1, len(pieces))
    ids = model.tokenizer.encode("abc ab12")
    assert [model.tokenizer.pieces[id] for id in ids] == ["abc", "Ġab", "1", "2"]
    assert model.tokenizer.decode(ids) == "abc ab12"
    other = written("llama", tmp_path / "b", **keys | {"tokenizer.ggml.pre": "other"})[1]
    assert load(other, dialect="llama").tokenizer is None


def test_cut_files_and_changed_bytes_are_refused_or_read(tmp_path):
    _, path = written("qwen2", tmp_path)
    whole = path.read_bytes()
    for size in [*range(0, 1200, 7), len(whole) - 33]:
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match=r"empty|no GGUF|truncated|ends before|cannot be read"):
            load(path, dialect="qwen2")
    dice = torch.Generator().manual_seed(0)
    for _ in range(150):
        changed = bytearray(whole)
        for at in torch.randint(1600, (3,), generator=dice).tolist():
            changed[at] = int(torch.randint(256, (), generator=dice))
        path.write_bytes(changed)
        try:
            load(path, dialect="qwen2")
        except UserError:
            continue


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"general.architecture": "mamba"}, "architecture 'mamba'"),
        ({"qwen2.expert_count": 8}, "mixture of experts"),
        ({"qwen2.rope.scaling.type": "yarn"}, "scales its rotary positions"),
        ({"qwen2.block_count": 3}, "is missing"),
        ({"qwen2.block_count": 2**31}, "more layers than|more than"),
        ({"qwen2.embedding_length": 32}, "has shape"),
        ({"qwen2.rope.dimension_count": 2}, "rotates 2 features"),
        ({"general.alignment": 0}, "alignment is 0"),
    ],
)
def test_what_a_header_cannot_mean_is_refused(keys, told, tmp_path):
    _, path = written("qwen2", tmp_path, **keys)
    with pytest.raises(UserError, match=told):
        load(path, dialect="qwen2")


@pytest.mark.parametrize(
    ("head", "told"),
    [
        (struct.pack("<IQQ", 3, 2**40, 0), "tensors, more than"),
        (struct.pack("<IQQ", 3, 0, 2**40), "keys, more than"),
        (struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (struct.pack("<IQQQ", 3, 0, 1, 2**60), "letters, more than"),
        (struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", LIST, UINT, 2**60), "items, more than"),
        (struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", LIST, UINT, 2**20), "truncated"),
        (struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<I", 77), "unknown type 77"),
        (struct.pack("<IQQ", 3, 1, 0) + text("w") + struct.pack("<I", 9), "9 axes"),
        (struct.pack("<IQQ", 3, 1, 0) + text("w") + struct.pack("<I2QIQ", 2, 2**40, 2**20, F32, 0), "ends before"),
        (struct.pack("<IQQ", 3, 1, 0) + text("w") + struct.pack("<I1QIQ", 1, 4, F32, 2**60), "ends before"),
    ],
)
def test_a_header_that_lies_is_refused_before_anything_is_read(head, told, tmp_path):
    path = tmp_path / "lie.gguf"
    path.write_bytes(b"GGUF" + head + b"\0" * 64)
    with pytest.raises(UserError, match=told):
        read_header(path)


def test_tensors_that_share_their_bytes_and_many_long_lists_are_refused(tmp_path):
    path, entry = tmp_path / "lie.gguf", struct.pack("<I1QIQ", 1, 4000, F32, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 3, 0) + b"".join(text(f"w{i}") + entry for i in range(3))
    path.write_bytes(head + b"\0" * 17000)
    with pytest.raises(UserError, match="overlap"):
        read_header(path)
    flags = struct.pack("<IIQ", LIST, 7, 3_000_000) + b"\0" * 3_000_000
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + text("a") + flags + text("b") + flags)
    with pytest.raises(UserError, match="lists have more than"):
        read_header(path)


def test_the_vocabulary_has_one_id_more_for_blanks(tmp_path):
    model = load(written("llama", tmp_path)[1], dialect="llama")
    assert (model.spec.vocab, model.spec.outputs, model.mask) == (VOCAB + 1, VOCAB, VOCAB)
