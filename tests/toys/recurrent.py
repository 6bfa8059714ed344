"""A toy that reads token by token and carries its state from step to step: a small recurrent network."""

from dataclasses import dataclass

from torch import Tensor, nn

from unmask.model.backbone import BACKBONES, Backbone, Spec
from unmask.model.passing import Abilities, Causal, Pass, Segment, States
from unmask.registry import derived


@BACKBONES.register("toy-recurrent")
@dataclass(frozen=True)
class RecurrentSpec(Spec):
    """The shape of a recurrent toy."""

    vocab: int = derived(1)
    length: int = derived(16)
    causal: bool = derived(True)
    width: int = 16  # features of a position
    dropout: float = 0.0

    @property
    def abilities(self) -> Abilities:
        return Abilities(frozenset({Causal}), memory=True, carried=True)

    def flops(self, *, rows: float = 1.0, length: int | None = None) -> float:
        return 12 * self.width**2 + rows * 2 * self.width * self.vocab


class Recurrent(Backbone):
    """A GRU; position i is predicted from the state after the tokens before it."""

    spec: RecurrentSpec

    def __init__(self, spec: RecurrentSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = nn.Embedding(spec.vocab, spec.width)
        self.gru = nn.GRU(spec.width, spec.width, batch_first=True)
        self.out = nn.Linear(spec.width, spec.vocab)

    @property
    def units(self) -> list[nn.Module]:
        return [self.gru]

    def embed(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens)

    def forward(self, p: Pass) -> States:
        x = p.x if p.x.is_floating_point() else self.embed(p.x)
        before = p.memory.states if isinstance(p.memory, Segment) else None
        start = x.new_zeros(len(x), self.spec.width) if before is None else before
        hidden, last = self.gru(x, start[None].contiguous())
        memory = None if p.memory is None else Segment(last[0], p.memory.filled + x.shape[1])
        return States(hidden if p.wanted is None else hidden.flatten(0, 1)[p.wanted], memory)

    def head(self, hidden: Tensor) -> Tensor:
        return self.out(hidden)


RecurrentSpec.network = Recurrent
