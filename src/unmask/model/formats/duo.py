"""The layout of Duo (s-sahoo/duo): the network of MDLM, shown the noise level, for uniform diffusion. It has no mask.

Our networks have an id for one, so the embedding and the head get a row that is never read and never an answer.
"""

import torch
from torch import Tensor

from unmask.diffusion.d3pm_uniform import D3PMUniform
from unmask.diffusion.schedule import LogLinear
from unmask.model.format import FORMATS, Contents, Files, Format
from unmask.model.formats.keys import whole
from unmask.model.formats.official import architecture_of
from unmask.model.formats.sedd import EPS

ROWS = ("vocab_embed.embedding", "output_layer.linear.weight", "output_layer.linear.bias")


@FORMATS.register("duo", "Duo: uniform diffusion in continuous time")
class DuoLayout(Format):
    """`model_type` duo, with the keys and tensors of a published MDLM."""

    def matches(self, files: Files) -> bool:
        return not files.note and files.kind == "duo"

    def read(self, files: Files) -> Contents:
        spec = architecture_of({**files.config, "vocab_size": whole(files.config, "vocab_size") + 1}, files.tensors)
        settings = {"dialect": "duo", "sampling": {"sampler": "d3pm-uniform", "steps": 1000}}
        return Contents(spec, spec.vocab - 1, D3PMUniform(schedule=LogLinear(EPS), continuous=True), settings)

    def unpack(self, name: str, tensor: Tensor, contents: Contents) -> dict[str, Tensor]:
        ours = self.our_name(name)
        assert ours is not None
        more = name.removeprefix("backbone.") in ROWS and len(tensor) < contents.spec.vocab
        return {ours: torch.cat((tensor, torch.zeros_like(tensor[:1]))) if more else tensor}
