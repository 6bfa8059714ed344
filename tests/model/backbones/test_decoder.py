"""The decoder is Llama, Qwen2, Qwen3 and GPT-2 of transformers: values and gradients, padded and cached."""

import json

import pytest
import torch

from unmask.errors import UserError
from unmask.model.backbone import build
from unmask.model.backbones.decoder import DecoderSpec
from unmask.model.checkpoint import load
from unmask.model.passing import Blocks, Causal, Empty, Full, Pass

transformers = pytest.importorskip("transformers")
VOCAB, LENGTH = 40, 12
WIDE = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def llama(**keys):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**WIDE | keys))


def qwen2(**keys):
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**WIDE | keys))


def qwen3(**keys):
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**WIDE | {"head_dim": 6} | keys))


def gpt2(**keys):
    narrow = {"vocab_size": VOCAB, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 4}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**narrow | keys))


PEERS = {
    "llama": (llama, {"rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    "llama with biases": (llama, {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}),
    "llama 3": (llama, {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "smollm2": (llama, {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "qwen2": (qwen2, {"tie_word_embeddings": False}),
    "qwen2 tied": (qwen2, {"tie_word_embeddings": True}),
    "qwen3": (qwen3, {}),
    "gpt2": (gpt2, {}),
}
DIALECT = {"smollm2": "llama", "qwen2 tied": "qwen2"}


def saved_peer(name, folder, **more):
    """A peer with weights that are random and not small; biases are not zero."""
    torch.manual_seed(0)
    make, keys = PEERS[name]
    peer = make(**keys | more).eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.2)
    peer.save_pretrained(folder)
    return peer


def dialect_of(name):
    return DIALECT.get(name, name.split()[0])


@pytest.fixture(params=PEERS)
def pair(request, tmp_path):
    peer = saved_peer(request.param, tmp_path)
    return peer, load(tmp_path, dialect=dialect_of(request.param), trainable=True)


def tokens(rows=3, length=LENGTH, seed=0):
    return torch.randint(VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))


CAUSAL = Causal()


def logits(model, x, sees=CAUSAL, **options):
    return model.network.head(model.network.run(Pass(x, sees, **options)).hidden)[..., :VOCAB]


def close(a, b):
    torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)


def additive(visible):
    """A rule of who sees whom as transformers takes it, (b 1 l l)."""
    return torch.where(visible, 0.0, torch.finfo(torch.float32).min)


@torch.no_grad()
def test_logits_are_those_of_transformers_at_every_length(pair):
    peer, model = pair
    for length in range(1, LENGTH + 1):
        x = tokens(length=length, seed=length)
        close(logits(model, x), peer(x).logits)


@torch.no_grad()
def test_direction_comes_with_the_pass(pair):
    peer, model = pair
    x, place = tokens(), torch.arange(LENGTH)
    every = torch.ones(3, 1, LENGTH, LENGTH, dtype=torch.bool)
    blocks = (place[:, None] // 4 >= place // 4).expand(3, 1, -1, -1)
    close(logits(model, x, Full()), peer(x, attention_mask=additive(every)).logits)
    close(logits(model, x, Blocks(4)), peer(x, attention_mask=additive(blocks)).logits)


@torch.no_grad()
def test_padding_is_seen_by_nobody(pair):
    peer, model = pair
    x, lengths = tokens(), torch.tensor([5, LENGTH, 1])
    real = torch.arange(LENGTH) < lengths[:, None]
    for sees, rule in ((Full(), real[:, None, None].expand(3, 1, LENGTH, LENGTH)), (Causal(), None)):
        wanted = peer(x, attention_mask=real.long() if rule is None else additive(rule)).logits
        close(logits(model, x, sees, lengths=lengths)[real], wanted[real])


@torch.no_grad()
def test_read_in_pieces_it_is_the_cached_peer(pair):
    peer, model = pair
    x, memory, past, parts, wanted = tokens(), Empty(), None, [], []
    for piece in x.split([5, 1, 6], 1):
        states = model.network.run(Pass(piece, Causal(), memory=memory))
        memory = states.memory
        parts.append(model.network.head(states.hidden)[..., :VOCAB])
        out = peer(piece, past_key_values=past, use_cache=True)
        past = out.past_key_values
        wanted.append(out.logits)
    close(torch.cat(parts, 1), torch.cat(wanted, 1))


def test_gradients_are_those_of_transformers(pair):
    peer, model = pair
    x = tokens()
    weight = torch.randn(3, LENGTH, VOCAB, generator=torch.Generator().manual_seed(1))
    (logits(model, x) * weight).sum().backward()
    (peer(x).logits * weight).sum().backward()
    ours, theirs = dict(model.network.named_parameters()), dict(peer.named_parameters())
    if "transformer.wte.weight" in theirs:
        scale = max(p.grad.abs().max().item() for p in theirs.values())
        stacked = theirs["transformer.h.1.attn.c_attn.weight"].grad.T.chunk(3)
        for which, wanted in zip("qkv", stacked, strict=True):
            close(ours[f"layers.1.self_attn.{which}_proj.weight"].grad / scale, wanted / scale)
        close(ours["embed_tokens.weight"].grad[:VOCAB] / scale, theirs["transformer.wte.weight"].grad / scale)
        close(ours["embed_positions.weight"].grad / scale, theirs["transformer.wpe.weight"].grad / scale)
        return
    assert len(ours) == len(theirs)
    for name, parameter in theirs.items():
        wanted, scale = parameter.grad, parameter.grad.abs().max()
        close(ours[name.removeprefix("model.")].grad[: len(wanted)] / scale, wanted / scale)


@torch.no_grad()
def test_weights_in_bfloat16_stay_in_it_and_are_computed_in_float32(tmp_path):
    peer = saved_peer("qwen2", tmp_path).bfloat16()
    peer.save_pretrained(tmp_path)
    model, x = load(tmp_path, dialect="qwen2"), tokens()
    assert {p.dtype for p in model.network.parameters()} == {torch.bfloat16}
    wide = type(peer).from_pretrained(tmp_path, dtype=torch.float32)  # peer.float() would keep rounded angles
    close(logits(model, x), wide(x).logits)
    assert {p.dtype for p in load(tmp_path, dialect="qwen2", trainable=True).network.parameters()} == {torch.float32}


@torch.no_grad()
def test_the_last_layer_computes_the_wanted_positions_alone(tmp_path):
    saved_peer("qwen3", tmp_path)
    model, x, seen = load(tmp_path, dialect="qwen3"), tokens(), []
    model.network.layers[-1].mlp.register_forward_hook(lambda layer, given, out: seen.append(given[0].shape))
    wanted = torch.tensor([30, 2, 17])
    close(logits(model, x, Full(), wanted=wanted), logits(model, x, Full()).flatten(0, 1)[wanted])
    assert seen == [(3, 16), (3, LENGTH, 16)]


def test_a_part_of_a_head_may_rotate():
    torch.manual_seed(0)
    network = build(DecoderSpec(vocab=9, length=8, width=16, blocks=1, heads=2, rotated=4)).eval()
    q = torch.randn(1, 5, 16)
    turns = torch.stack((torch.full((5, 2), 0.0), torch.full((5, 2), 1.0)), -1)  # a quarter turn
    found = network.layers[0].self_attn.queries(q, turns)
    still = network.layers[0].self_attn.queries(q, None)
    assert torch.equal(found[..., 4:], still[..., 4:])
    close(found[..., :2], -still[..., 2:4])
    close(found[..., 2:4], still[..., :2])


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"heads": 3}, "cannot be split into 3 heads"),
        ({"shared": 3}, "must be a multiple of shared"),
        ({"features": 5}, "features and rotated even"),
        ({"rotated": 100}, "at most the first"),
        ({"scaling": (8.0, 4.0, 1.0, 8192.0)}, "low below high"),
        ({"positions": 64, "length": 65}, "has 64 positions"),
        ({"outputs": -1}, "outputs must be 0 or more"),
    ],
)
def test_a_shape_that_no_decoder_has_is_refused(fields, told):
    with pytest.raises(UserError, match=told):
        DecoderSpec(**{"width": 256, "heads": 4, **fields})


def test_a_row_longer_than_the_learned_positions_is_refused(tmp_path):
    saved_peer("gpt2", tmp_path)
    model = load(tmp_path, dialect="gpt2")
    with pytest.raises(UserError, match=r"has 33 tokens, .* has 32 positions"):
        logits(model, tokens(length=33))


@pytest.mark.parametrize(
    ("name", "keys", "told"),
    [
        ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type = 'yarn'"),
        ("llama", {"mlp_bias": True}, "mlp_bias without attention_bias"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ("llama", {"num_hidden_layers": 3}, "is missing"),
        ("llama", {"num_hidden_layers": 2**30}, "more layers than"),
        ("llama", {"intermediate_size": 25}, "has shape"),
        ("qwen3", {"num_experts": 8}, "mixture of experts"),
        ("gpt2", {"n_embd": 24}, "queries, keys and values"),
        ("gpt2", {"activation_function": "relu"}, "activation_function = 'relu'"),
    ],
)
def test_another_network_is_refused_by_name(name, keys, told, tmp_path):
    saved_peer(name, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    with pytest.raises(UserError, match=told):
        load(tmp_path, dialect=name)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gpt2"])
def test_files_that_may_be_of_several_families_need_a_stated_dialect(name, tmp_path):
    saved_peer(name, tmp_path)
    with pytest.raises(UserError, match=f"several kinds of models do.*--dialect.*{name}"):
        load(tmp_path)
    with pytest.raises(UserError, match="Did you mean"):
        load(tmp_path, dialect=f"{name}x")
    with pytest.raises(UserError, match="does not describe a model of the dialect 'llada'"):
        load(tmp_path, dialect="llada")
