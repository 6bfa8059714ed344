"""The same network as a textbook has it, for comparison: nothing folded, every row answered, nothing shared.

Modulation is computed for each sequence and applied where it stands, rotations are written out, the head answers for
all positions, and the log-softmax covers all of its logits. It takes the parameters of `Transformer` as they are.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.model.backbones.transformer import Architecture


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class LayerNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.float(), x.shape[-1:]) * self.weight


class Block(nn.Module):
    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.heads, self.dropout = a.heads, a.dropout
        self.norm1, self.norm2 = LayerNorm(a.width), LayerNorm(a.width)
        self.attn_qkv = nn.Linear(a.width, 3 * a.width, bias=False)
        self.attn_out = nn.Linear(a.width, a.width, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(a.width, 4 * a.width), nn.GELU(approximate="tanh"), nn.Linear(4 * a.width, a.width)
        )
        self.adaLN_modulation = nn.Linear(a.cond, 6 * a.width)

    def forward(self, x: Tensor, c: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, l, d = x.shape
        s1, k1, g1, s2, k2, g2 = self.adaLN_modulation(c)[:, None].chunk(6, dim=-1)
        h = self.norm1(x) * (1 + k1) + s1
        q, k, v = self.attn_qkv(h).view(b, l, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v)
        o = self.attn_out(o.transpose(1, 2).reshape(b, l, d))
        x = x + g1 * F.dropout(o, self.dropout, self.training)
        h = self.mlp(self.norm2(x) * (1 + k2) + s2)
        return x + g2 * F.dropout(h, self.dropout, self.training)


class Output(nn.Module):
    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.norm_final = LayerNorm(a.width)
        self.linear = nn.Linear(a.width, a.vocab)
        self.adaLN_modulation = nn.Linear(a.cond, 2 * a.width)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation(c)[:, None].chunk(2, dim=-1)
        return self.linear(self.norm_final(x) * (1 + scale) + shift)


class Textbook(nn.Module):
    """Logits (b l v) at all positions; σ = 0 is passed for each sequence, as the published network has it."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.features = a.width // a.heads
        self.vocab_embed = nn.ParameterDict({"embedding": torch.empty(a.vocab, a.width).normal_()})
        self.sigma_map = nn.ModuleDict(
            {"mlp": nn.Sequential(nn.Linear(256, a.cond), nn.SiLU(), nn.Linear(a.cond, a.cond))}
        )
        self.blocks = nn.ModuleList(Block(a) for _ in range(a.blocks))
        self.output_layer = Output(a)

    def forward(self, tokens: Tensor, sigma: Tensor) -> Tensor:
        frequencies = torch.exp(-math.log(10000) * torch.arange(128) / 128)
        angles = (sigma * 0)[:, None] * frequencies
        c = F.silu(self.sigma_map["mlp"](torch.cat((angles.cos(), angles.sin()), dim=-1)))
        positions = torch.arange(tokens.shape[1])[:, None]
        turns = positions * 10000 ** (-torch.arange(0, self.features, 2) / self.features)
        x = F.embedding(tokens, self.vocab_embed["embedding"])
        for block in self.blocks:
            x = block(x, c, turns.cos(), turns.sin())
        return self.output_layer(x, c)


def log_probs(logits: Tensor, tokens: Tensor, mask: int) -> Tensor:
    """SUBS over all logits: the mask impossible, a log-softmax everywhere, then visible tokens copied."""
    logits[:, :, mask] += -1e6
    logits = logits - torch.logsumexp(logits, dim=-1, keepdim=True)
    visible = tokens != mask
    logits[visible] = -1e6
    logits[visible, tokens[visible]] = 0
    return logits
