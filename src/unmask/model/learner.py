"""Learner: what a run trains. A network, with the parts that are learned with it and what changes without gradients.

`Denoiser` learns text, with the parts and the state of an objective; `Predictor` learns answers, with a head.
"""

from collections.abc import Mapping

from torch import Tensor, nn

from unmask.model.adapter import PART, Adapter, LowRankUpdates, adapt
from unmask.model.backbone import Backbone


class Learner(nn.Module):
    """A forward pass gives the `Nats` of some rows, and what the network carries to the next step, or None."""

    def __init__(self, backbone: Backbone, parts: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.backbone = backbone
        self.parts = nn.ModuleDict(dict(parts))
        self.state: dict[str, Tensor] = {}  # changes at every step without being learned

    @property
    def units(self) -> list[nn.Module]:
        return self.backbone.units

    def add_adapter(self, adapter: Adapter) -> None:
        """Learn the updates of an adapter as one more part; all other weights stay as they are."""
        updates = LowRankUpdates(self.backbone, adapter)
        self.parts[PART] = updates
        adapt(self.backbone, updates)

    @property
    def adapter(self) -> LowRankUpdates | None:
        adapters = [part for part in self.parts.values() if isinstance(part, LowRankUpdates)]
        return adapters[0] if adapters else None

    def choose_learned(self) -> None:
        """Let gradients flow to what is learned: everything that a logit depends on, or an adapter alone."""
        self.requires_grad_(self.adapter is None)
        if self.adapter is not None:
            self.adapter.requires_grad_(True)
        for parameter in self.backbone.idle:  # DDP waits for the gradient of every parameter that may have one
            parameter.requires_grad_(False)

    def learned(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self.named_parameters() if p.requires_grad]

    def advance(self, seen: Mapping[str, Tensor]) -> None:
        """Update the state after a step, from the sums of `Nats.seen`."""
