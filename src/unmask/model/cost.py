"""The cost of a network before it is built: parameters, floating-point operations, memory."""

from functools import cache

from unmask.model.backbone import Spec, skeleton

FLOAT = 4  # bytes of a float32


@cache
def parameters(spec: Spec) -> int:
    """The number of weights, embedding and head included."""
    return sum(p.numel() for p in skeleton(spec).parameters())


def training_flops(spec: Spec, *, rows: float = 0.5, length: int | None = None) -> float:
    """FLOPs per token of one training step: the backward pass costs two forward passes."""
    return 3 * spec.flops(rows=rows, length=length)


def pass_flops(spec: Spec) -> float:
    """FLOPs of a forward pass over one row, with logits at every position."""
    return spec.flops(rows=1.0) * spec.length


def inference_bytes(spec: Spec, *, batch: int = 1, rows: float = 1.0, length: int | None = None) -> int:
    """Bytes of the weights, the largest activations of one layer, and the logits at the requested positions."""
    tokens = batch * (length or spec.length)
    return FLOAT * (parameters(spec) + tokens * 10 * spec.width + int(rows * tokens) * spec.vocab)


def training_bytes(
    spec: Spec,
    *,
    batch: int,
    rows: float = 0.5,
    ema: bool = True,
    length: int | None = None,
    learned: int | None = None,
) -> int:
    """Bytes of weights, gradients, AdamW moments and EMA; saved activations; logits and their gradient.

    learned   the weights of an adapter, which alone have gradients; None: all of the network have
    """
    tokens = batch * (length or spec.length)
    states = 5 if ema else 4
    held = states * parameters(spec) if learned is None else parameters(spec) + states * learned
    logits = 3 * int(rows * tokens) * spec.vocab
    return FLOAT * int(held + spec.activations * tokens + logits)
