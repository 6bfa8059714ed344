"""What the layers of encoders and decoders share: fresh weights, heads, and going through them one by one."""

from jaxtyping import Float
from torch import Tensor, nn

from unmask.errors import UserError
from unmask.model.passing import Pass

STD = 0.02  # of fresh weights


def fresh(network: nn.Module) -> None:
    """Initial weights: N(0, 0.02) for matrices, 0 for biases."""
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=STD)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)


def in_heads(x: Float[Tensor, "*shape d"], heads: int) -> Float[Tensor, "*shape h e"]:
    return x.unflatten(-1, (heads, -1))


def check_reach(p: Pass, reach: int | None, name: str) -> None:
    """Refuse a pass with positions beyond the last one that a network has."""
    highest = p.start + p.x.shape[1] if p.position is None else int(p.position.max()) + 1
    if reach is not None and highest > reach:
        raise UserError(
            f"a row has {highest} tokens, and this {name} has {reach} positions: use shorter rows, or "
            f"a window (--window {reach})."
        )


class Embeddings(nn.Module):
    """A vector for every id."""

    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab, width)
        nn.init.normal_(self.word_embeddings.weight, std=STD)
