"""A toy that reads token by token and carries its state from step to step: a small recurrent network."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from unmask.model.backbone import BACKBONES, Backbone, Spec
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
    def incremental(self) -> bool:
        return True

    @property
    def carries(self) -> bool:
        return True

    def flops(self, *, rows: float = 1.0, length: int | None = None) -> float:
        return 12 * self.width**2 + rows * 2 * self.width * self.vocab


@dataclass(frozen=True)
class State:
    """The hidden state of each row."""

    hidden: Tensor | None = None
    filled: int = 0

    def take(self, rows: Tensor) -> "State":
        return replace(self, hidden=None if self.hidden is None else self.hidden[rows])


class Recurrent(Backbone):
    """A GRU; position i is predicted from its state after the tokens before i."""

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

    def states(self, x: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
        """The state before each position, and the last one."""
        x = x if x.is_floating_point() else self.embed(x)
        start = x.new_zeros(len(x), self.spec.width) if before is None else before
        after, last = self.gru(x, start[None].contiguous())
        return torch.cat((start[:, None], after[:, :-1]), 1), last[0]

    def trunk(self, x, sigma=None, *, rows=None, lengths=None, allowed=None):
        hidden, _ = self.states(x, None)
        return hidden if rows is None else hidden.flatten(0, 1)[rows]

    def head(self, hidden: Tensor) -> Tensor:
        return self.out(hidden)

    def memory(self, capacity: int) -> State:
        return State()

    def read(self, tokens: Tensor, memory: State) -> tuple[Tensor, State]:
        hidden, last = self.states(tokens, memory.hidden)
        after = torch.cat((hidden[:, 1:], last[:, None]), 1)  # row i predicts the token after token i
        return after, State(last, memory.filled + tokens.shape[1])

    def carried(self, x, sigma, rows, memory):
        hidden, _ = self.states(x, memory)
        return self.head(hidden.flatten(0, 1)[rows]), hidden[:, -1]  # the next row reads the last token


RecurrentSpec.network = Recurrent
