"""The layout of SEDD's own checkpoints (louaaron/sedd-small): the network of MDLM, shown the noise level.

Its scores are those of a denoiser, times a constant: normalised, the network is a masked diffusion model. The bound
of that is never above SEDD's own, which adds a penalty for scores that do not sum to what they should. So the model
is read as one, and every sampler of masks applies.
"""

from collections.abc import Mapping
from typing import Any

from unmask.diffusion.mdlm import MDLM
from unmask.diffusion.schedule import LogLinear
from unmask.errors import UserError
from unmask.model.backbones.transformer import Architecture
from unmask.model.format import FORMATS, Contents, Files, Format
from unmask.model.formats.keys import Keys, check_fixed, read_fields, whole

SIZES: Keys = {
    "width": "hidden_size",
    "blocks": "n_blocks",
    "heads": "n_heads",
    "cond": "cond_dim",
    "length": "length",
    "dropout": ("dropout", 0.0),
}
EPS = 1e-3  # of the log-linear schedule, in its authors' code


@FORMATS.register("sedd", "SEDD's own checkpoints, with an absorbing mask")
class SeddLayout(Format):
    """config.json without a model_type, with the tables `model`, `graph` and `noise`."""

    def matches(self, files: Files) -> bool:
        return not files.note and files.kind is None and {"model", "graph", "noise", "tokens"} <= files.config.keys()

    def read(self, files: Files) -> Contents:
        config = files.config
        model, graph, noise = (inner_table(config, key) for key in ("model", "graph", "noise"))
        check_fixed(graph, {"type": "absorb"})
        check_fixed(noise, {"type": "loglinear"})
        check_fixed(model, {"type": "ddit", "scale_by_sigma": True})
        mask = whole(config, "tokens")
        spec = Architecture(vocab=mask + 1, **read_fields(model, SIZES), time_conditioning=True)
        settings = {"dialect": "sedd", "sampling": {"sampler": "ancestral", "steps": 1024}}
        return Contents(spec, mask, MDLM(schedule=LogLinear(EPS)), settings)


def inner_table(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = config[key]
    if not isinstance(table, Mapping):
        raise UserError(f"config.json says {key} = {table!r:.60}: it must be a table.")
    return table
