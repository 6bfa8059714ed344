"""Small networks with no zero anywhere, in double precision, so that equalities are sharp."""

import torch

from unmask.model.backbones.transformer import Architecture, Transformer

PLAIN = Architecture(vocab=11, length=9, width=16, blocks=3, heads=2, cond=0)
KINDS = {
    "plain": PLAIN,
    "modulated": Architecture(vocab=11, length=9, width=16, blocks=3, heads=2, cond=8),
    "timed": Architecture(vocab=11, length=9, width=16, blocks=3, heads=2, cond=8, time_conditioning=True),
    "tied": Architecture(vocab=11, length=9, width=16, blocks=1, heads=2, cond=0, tied=True),
    "causal": Architecture(vocab=11, length=9, width=16, blocks=3, heads=2, cond=0, causal=True),
    "causal, reads before": Architecture(
        vocab=11, length=9, width=16, blocks=3, heads=2, cond=0, causal=True, reads_before=True
    ),
    "modulated, reads before": Architecture(
        vocab=11, length=9, width=16, blocks=2, heads=4, cond=8, reads_before=True
    ),
}


def random_network(architecture: Architecture, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Transformer:
    """A network whose every weight is random and not small."""
    g = torch.Generator().manual_seed(seed)
    network = Transformer(architecture)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=g) * (0.5 if parameter.ndim == 1 else 0.4))
    return network.to(dtype).eval()


def random_tokens(batch: int, length: int, *, vocab: int = 11, seed: int = 0) -> torch.Tensor:
    return torch.randint(vocab, (batch, length), generator=torch.Generator().manual_seed(seed))
