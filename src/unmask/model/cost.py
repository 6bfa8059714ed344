"""What a network costs, before it is built: parameters, floating-point operations, memory."""

from unmask.model.backbones.transformer import SINUSOID, Architecture

FLOAT = 4  # bytes of a float32


def parameters(a: Architecture) -> int:
    """All weights, the embedding and the head included."""
    block = 12 * a.width**2 + 7 * a.width + a.cond * 6 * a.width + (6 * a.width if a.cond else 0)
    output = a.width + a.vocab + (0 if a.tied else a.vocab * a.width)
    if a.cond:
        output += 2 * a.width * (a.cond + 1)
    time = a.cond * (SINUSOID + 1) + a.cond * (a.cond + 1) if a.cond else 0
    return a.vocab * a.width + a.blocks * block + output + time


def forward_flops(a: Architecture, *, rows: float = 1.0, length: int | None = None) -> float:
    """Operations a token in one pass, two for each multiply-add, when a share `rows` of the positions is asked for.

    The last block answers for these rows alone: keys and values of all positions, the rest (10 of 12 d²) of the rows.
    """
    d, l = a.width, length or a.length
    seen = 0.5 if a.causal else 1.0
    whole = 24 * d * d + 4 * l * d * seen
    last = 4 * d * d + rows * (20 * d * d + 4 * l * d * seen)
    return (a.blocks - 1) * whole + last + rows * 2 * d * a.vocab


def training_flops(a: Architecture, *, rows: float = 0.5, length: int | None = None) -> float:
    """Operations a token of one training step: the backward pass costs two forward ones."""
    return 3 * forward_flops(a, rows=rows, length=length)


def inference_bytes(a: Architecture, *, batch: int = 1, rows: float = 1.0, length: int | None = None) -> int:
    """Weights, the widest activations of one block, and the logits of the rows that are asked for."""
    tokens = batch * (length or a.length)
    return FLOAT * (parameters(a) + tokens * 10 * a.width + int(rows * tokens) * a.vocab)


def training_bytes(
    a: Architecture, *, batch: int, rows: float = 0.5, ema: bool = True, length: int | None = None
) -> int:
    """Weights, gradients, two AdamW moments and the EMA; what backward keeps of every block; logits and theirs.

    A block keeps 16 widths a token: two normed copies and their inputs, q, k, v and their rotations, the attention's
    output, and both sides of the GELU (8); dropout's masks add a quarter of a float for each of two widths.
    """
    tokens = batch * (length or a.length)
    states = 5 if ema else 4
    kept = a.blocks * tokens * a.width * (18 + (0.5 if a.dropout else 0))
    logits = 3 * int(rows * tokens) * a.vocab
    return FLOAT * int(states * parameters(a) + kept + logits)
