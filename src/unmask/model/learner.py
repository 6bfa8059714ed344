"""Learner: what a run trains. A network, with the parts that are learned with it and what changes without gradients.

`Denoiser` learns text, with the parts and the state of an objective; `Predictor` learns answers, with a head.
"""

from collections.abc import Mapping

from torch import Tensor, nn

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

    def advance(self, seen: Mapping[str, Tensor]) -> None:
        """Update the state after a step, from the sums of `Nats.seen`."""
