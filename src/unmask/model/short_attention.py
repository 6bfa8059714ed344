"""Attention to few keys in bfloat16 on a CPU, as two products and a softmax between them.

torch's own kernel computes its products of small floats in float32 there, and their gradients more slowly still
(bench/products.py). These are products as any others; in exchange all weights of the attention are in memory.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

KEYS = 512  # with more of them torch's kernel, which skips what is not visible, comes near
WEIGHTS = 2**24  # of a layer that are kept for its gradients, 32 MB


def suits(q: Float[Tensor, "b h m e"], k: Float[Tensor, "b g l e"]) -> bool:
    """Whether these are such queries and keys."""
    return (
        q.device.type == "cpu"
        and q.dtype == torch.bfloat16
        and k.shape[2] <= KEYS
        and q.shape[:3].numel() * k.shape[2] <= WEIGHTS
        and not torch.compiler.is_compiling()
    )


def short_attention(
    q: Float[Tensor, "b h m e"],
    k: Float[Tensor, "b g l e"],
    v: Float[Tensor, "b g l e"],
    *,
    visible: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Float[Tensor, "b h m e"]:
    """As torch's scaled_dot_product_attention: `visible` is true where a key is seen, or is added to the scores."""
    if q.shape[1] != k.shape[1]:
        k, v = (one.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for one in (k, v))
    if causal:
        visible = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    with torch.autocast(q.device.type, enabled=False):
        scores = (q * q.shape[-1] ** -0.5) @ k.mT
        if visible is not None:
            scores = scores.add_(added(visible, q.dtype))
        weights = scores.softmax(-1)
        return F.dropout(weights, dropout) @ v if dropout else weights @ v


def added(visible: Tensor, kind: torch.dtype) -> Tensor:
    """What is added to the scores so that hidden keys have no weight."""
    if visible.dtype != torch.bool:
        return visible.to(kind)
    return torch.zeros_like(visible, dtype=kind).masked_fill_(~visible, torch.finfo(kind).min)
