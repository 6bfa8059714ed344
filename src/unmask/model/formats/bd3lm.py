"""The layout of the published block diffusion checkpoints (kuleshov-group/bd3lm-owt-block_size4) and of their class.

The network is that of the MDLM checkpoints. config.json says what it was trained for:

    causal: true                        autoregressive (ar-noeos-owt)
    cross_attn: true, block_size < l    block diffusion; the first token of a row is given and never predicted
    cross_attn: true, block_size = l    one block: mdlm (bd3lm-owt-block_size1024-pretrain)
    cross_attn: false                   mdlm (mdlm-noeos-owt), or SEDD if it takes the noise level (sedd-noeos-owt)

Not used: the interval of noise it was trained with (sampling_eps_min and sampling_eps_max, in the config and as
scalars among the weights), `var_min`, `attn_backend`, `tie_word_embeddings` (which does nothing there either) and
`auto_map` (code).
"""

from typing import Any

from unmask.diffusion.autoregressive import Autoregressive
from unmask.diffusion.block import BlockDiffusion
from unmask.diffusion.mdlm import MDLM
from unmask.diffusion.objective import Objective
from unmask.diffusion.sedd import SEDD
from unmask.errors import UserError, unknown
from unmask.model.backbone import Spec
from unmask.model.backbones.transformer import Architecture
from unmask.model.format import FORMATS, Contents, Files, Format
from unmask.model.formats.keys import flag
from unmask.model.formats.official import architecture_of, config_of, is_published, mask_of

KIND = "bd3lm"
SCALARS = ("sampling_eps_min", "sampling_eps_max")
KINDS = {"subs": MDLM, "sedd": SEDD}  # our key `parameterization`, which tells the two apart


@FORMATS.register("bd3lm", "the published block diffusion checkpoints")
class BD3LM(Format):
    """`model_type` bd3lm, every tensor under `backbone.`, and two scalars."""

    def matches(self, files: Files) -> bool:
        return not files.note and files.kind == KIND

    def read(self, files: Files) -> Contents:
        config = files.config
        spec = architecture_of({"causal": False, **config}, files.tensors)
        objective = objective_of_class(config, spec)
        # Documents one after another with an eos between them; no bos and no eos at the ends of rows.
        return Contents(spec, mask_of(config, spec), objective, {**config, "text": {"pack": "stream"}})

    def our_name(self, name: str) -> str | None:
        return None if name in SCALARS else super().our_name(name)

    def config(self, spec: Spec, objective: Objective, *, mask: int, dtype: str) -> dict[str, Any]:
        if not isinstance(spec, Architecture):
            raise UserError(f"the layout {KIND} holds transformers only, not the backbone {spec.name!r}.")
        own = {"model_type": KIND, "architectures": ["BD3LM"], "attn_backend": "sdpa", "var_min": False}
        config = config_of(spec, mask=mask, dtype=dtype)
        if not is_published(config):
            raise UserError(
                f"the layout {KIND} has no such network: it needs noise features (cond > 0) unless it is "
                "autoregressive, an untied head, and to predict a position from its own state."
            )
        if isinstance(objective, BlockDiffusion):
            if not objective.given_first:
                raise UserError(
                    f"the models of the layout {KIND} never predict the first token of a row: train with "
                    "objective.given-first."
                )
            size, blocks = objective.size, True
        elif isinstance(objective, MDLM | Autoregressive):
            size, blocks = spec.length, False
        else:
            raise UserError(f"the layout {KIND} cannot record that the objective is {objective.name!r}.")
        return (
            config
            | own
            | {
                "block_size": size,
                "cross_attn": blocks,
                "causal": spec.causal,
                "adaln": bool(spec.cond),
            }
        )


def objective_of_class(config: dict[str, Any], spec: Architecture) -> Objective:
    """What a network of this class was trained for."""
    if spec.causal:
        return Autoregressive()
    if not flag(config, "cross_attn", True):
        return mdlm_or_sedd(config, spec)
    size = config.get("block_size")
    if type(size) is not int or size < 1:
        raise UserError(f"config.json says block_size = {size!r:.60}: it must be a whole number, 1 or more.")
    if size > spec.length:
        raise UserError(f"config.json says block_size = {size}, more than model_length = {spec.length}.")
    if spec.time_conditioning:
        raise UserError(
            "config.json says cross_attn and time_conditioning: the original then shows every block the noise level "
            "of the first one. Such a model is not supported; none was published."
        )
    return MDLM() if size == spec.length else BlockDiffusion(size, given_first=True)


def mdlm_or_sedd(config: dict[str, Any], spec: Architecture) -> Objective:
    """MDLM or SEDD: their networks are the same, and the published config does not tell them apart."""
    name = config.get("parameterization")
    if name is not None:
        if not isinstance(name, str) or name not in KINDS:
            raise unknown("parameterization in config.json", str(name)[:60], KINDS)
        return KINDS[name]()
    if spec.time_conditioning:
        raise UserError(
            "config.json does not say whether this network, which takes the noise level, is SEDD or mdlm: add "
            '"parameterization": "sedd" (for sedd-noeos-owt) or "subs" to it.'
        )
    return MDLM()
