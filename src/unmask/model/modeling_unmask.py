"""The network of a checkpoint of unmask in transformers, without unmask: `unmask push --transformers` adds this file.

    from transformers import AutoModelForMaskedLM
    model = AutoModelForMaskedLM.from_pretrained(NAME, trust_remote_code=True)

The logits at position i are those of the token there. It needs torch and transformers alone, and unmask does not
import it: a test compares both.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput

SINUSOID = 256  # sinusoidal features of the noise level


class UnmaskConfig(PretrainedConfig):
    """config.json: the keys of a published MDLM, with causal, reads_before, tied, visible_keys and mask_index."""

    model_type = "mdlm"

    def __init__(self, **keys: Any) -> None:
        super().__init__(**keys)
        self.cond_dim: int = keys.get("cond_dim") or 0
        self.time_conditioning: bool = keys.get("time_conditioning", False)
        self.causal: bool = keys.get("causal", not self.cond_dim)
        self.reads_before: bool = keys.get("reads_before", self.causal)
        self.tied: bool = keys.get("tied", False)
        self.visible_keys: bool = keys.get("visible_keys", False)
        self.mask_index: int = keys.get("mask_index", keys.get("vocab_size", 1) - 1)


class Norm(nn.Module):
    """Layer norm with a weight and no bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, shift: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
        y = F.layer_norm(x, x.shape[-1:], self.weight)
        return y if shift is None or scale is None else y * (1 + scale) + shift


def modulation_of(layer: nn.Linear | None, c: Tensor | None, parts: int) -> list[Tensor | None]:
    return [None] * parts if layer is None or c is None else list(layer(c)[:, None].chunk(parts, -1))


def rotate_halves(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Heads (b h l e) with feature i rotated against feature i + e/2."""
    one, two = x.chunk(2, -1)
    return torch.cat((one * cosine - two * sine, two * cosine + one * sine), -1)


class Block(nn.Module):
    """Attention, then an MLP, both pre-norm with residual connections."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        d, self.heads = config.hidden_dim, config.n_heads
        self.norm1 = Norm(d)
        self.attn_qkv = nn.Linear(d, 3 * d, bias=False)
        self.attn_out = nn.Linear(d, d, bias=False)
        self.norm2 = Norm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(approximate="tanh"), nn.Linear(4 * d, d))
        self.adaLN_modulation = nn.Linear(config.cond_dim, 6 * d) if config.cond_dim else None

    def forward(self, x: Tensor, c: Tensor | None, turns: tuple[Tensor, Tensor], visible: Tensor | None) -> Tensor:
        shift, scale, gate, shift2, scale2, gate2 = modulation_of(self.adaLN_modulation, c, 6)
        parts = self.attn_qkv(self.norm1(x, shift, scale)).unflatten(-1, (3, self.heads, -1))
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(rotate_halves(q, *turns), rotate_halves(k, *turns), v, attn_mask=visible)
        y = self.attn_out(o.transpose(1, 2).flatten(2))
        x = x + (y if gate is None else gate * y)
        y = self.mlp(self.norm2(x, shift2, scale2))
        return x + (y if gate2 is None else gate2 * y)


class Rotary(nn.Module):
    """The angle per position of each pair of features: those of the file, which may be rounded."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.inv_freq: Tensor
        self.register_buffer("inv_freq", torch.empty(features // 2))
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        self.inv_freq.copy_(1 / 10000 ** (torch.arange(len(self.inv_freq)) / len(self.inv_freq)))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        angles = torch.arange(x.shape[1], device=x.device)[:, None] * self.inv_freq.float()
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class Embedding(nn.Module):
    """A vector for every id."""

    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.zeros(vocab, width))


class NoiseLevel(nn.Module):
    """σ as a vector."""

    def __init__(self, cond: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(SINUSOID, cond), nn.SiLU(), nn.Linear(cond, cond))

    def forward(self, sigma: Tensor) -> Tensor:
        half = torch.arange(SINUSOID // 2, dtype=torch.float32, device=sigma.device)
        angles = sigma.clamp(max=1e3)[:, None] * torch.exp(-math.log(10000) * half / (SINUSOID // 2))
        return F.silu(self.mlp(torch.cat((angles.cos(), angles.sin()), -1).to(next(self.parameters()).dtype)))


class Output(nn.Module):
    """The last norm and the head; a tied head has no weight of its own."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.norm_final = Norm(config.hidden_dim)
        self.linear = nn.Linear(config.hidden_dim, config.vocab_size)
        if config.tied:
            self.linear.register_parameter("weight", None)
        self.adaLN_modulation = nn.Linear(config.cond_dim, 2 * config.hidden_dim) if config.cond_dim else None


class Backbone(nn.Module):
    """The network, with the names of the checkpoint."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.vocab_embed = Embedding(config.vocab_size, config.hidden_dim)
        self.sigma_map = NoiseLevel(config.cond_dim) if config.cond_dim else None
        self.rotary_emb = Rotary(config.hidden_dim // config.n_heads)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_blocks))
        self.output_layer = Output(config)

    def visible(self, tokens: Tensor, real: Tensor | None) -> Tensor | None:
        """(b 1 l l): who sees whom; everybody sees itself. None: all see all."""
        config, length = self.config, tokens.shape[1]
        if real is None and not (config.causal or config.visible_keys):
            return None
        seen = torch.ones_like(tokens, dtype=torch.bool) if real is None else real.bool()
        if config.visible_keys and not config.causal:
            seen = seen & (tokens != config.mask_index)
        whole = torch.ones(length, length, dtype=torch.bool, device=tokens.device)
        pairs = seen[:, None, :] & (whole.tril() if config.causal else whole)
        return (pairs | whole.tril().triu())[:, None]

    def forward(self, tokens: Tensor, real: Tensor | None, sigma: Tensor | None) -> Tensor:
        config = self.config
        if sigma is None or not config.time_conditioning:
            sigma = torch.zeros(len(tokens), device=tokens.device)
        c = None if self.sigma_map is None else self.sigma_map(sigma.float())
        x = F.embedding(tokens, self.vocab_embed.embedding)
        turns, visible = self.rotary_emb(x), self.visible(tokens, real)
        for block in self.blocks:
            x = block(x, c, turns, visible)
        out = self.output_layer
        x = out.norm_final(x, *modulation_of(out.adaLN_modulation, c, 2))
        if config.reads_before:
            x = torch.cat((x[:, :1], x[:, :-1]), 1)
        weight = self.vocab_embed.embedding if out.linear.weight is None else out.linear.weight
        return F.linear(x, weight, out.linear.bias)


class UnmaskForMaskedLM(PreTrainedModel):
    """The network with its head."""

    config_class = UnmaskConfig
    base_model_prefix = ""

    def __init__(self, config: UnmaskConfig) -> None:
        super().__init__(config)
        self.backbone = Backbone(config)
        self.post_init()

    @classmethod
    def from_pretrained(cls, *given: Any, dtype: Any = None, **options: Any) -> "UnmaskForMaskedLM":
        """In float32 unless another type is asked for: half precision is not safe on all CPUs."""
        options.pop("torch_dtype", None)
        return super().from_pretrained(*given, dtype=dtype or torch.float32, **options)

    def _init_weights(self, module: nn.Module) -> None:
        """All weights come from the file; a published one may lack the angles."""
        if isinstance(module, Rotary):
            module.reset()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        timesteps: Tensor | None = None,
        **_: Any,
    ) -> MaskedLMOutput:
        """`timesteps`: the noise level σ of each row; `labels`: cross-entropy of those that are not -100."""
        logits: Any = self.backbone(input_ids, attention_mask, timesteps)
        loss: Any = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return MaskedLMOutput(loss=loss, logits=logits)
