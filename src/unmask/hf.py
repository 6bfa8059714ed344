"""Our networks in transformers: `import unmask.hf`, and its Auto classes know them.

    import unmask.hf
    from transformers import AutoModelForMaskedLM, pipeline

    model = AutoModelForMaskedLM.from_pretrained("kuleshov-group/mdlm-owt", trust_remote_code=True)

A class that is registered here is preferred to code of the repository, which is not run; flash-attn is not needed.
The model types are `unmask` (checkpoints of ours), `mdlm` and `bd3lm`. Trainer, peft and pipeline("fill-mask") work
as with any other model. Needs transformers (`pip install "unmask[hf]"`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput
from transformers.utils.hub import cached_file

from unmask.diffusion.block import BlockDiffusion
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.objective import Objective
from unmask.errors import UserError
from unmask.model.backbone import Spec, build
from unmask.model.denoiser import NetworkView
from unmask.model.format import NOTE, read_note
from unmask.model.formats.bd3lm import objective_of_class
from unmask.model.formats.encoder import TRAINED
from unmask.model.formats.official import architecture_of, mask_of
from unmask.model.formats.own import objective_from, spec_from
from unmask.model.passes.doubled import doubled_pass
from unmask.model.passes.whole import hidden_states
from unmask.random import Noise
from unmask.sampling.logits import LogitOptions
from unmask.sampling.masked import fill
from unmask.sampling.policy import policy_of
from unmask.text.prompt.canvas import of_tokens

HUB = ("revision", "cache_dir", "token", "local_files_only", "force_download")  # where a file of the hub is
IGNORED = -100  # a label that does not count, in transformers


class UnmaskConfig(PreTrainedConfig):
    """config.json of a checkpoint of ours."""

    model_type = "unmask"

    def __init__(self, **keys: Any) -> None:
        super().__init__(**keys)

    def spec(self) -> Spec:
        table = self.to_dict()
        if self.model_type == "unmask":
            return spec_from(table)
        modulated = table.get("cond_dim") and table.get("adaln", True)
        usual = {"causal": False} if self.model_type == "bd3lm" else {}
        return architecture_of({**usual, **table}, ["sigma_map."] if modulated else [])

    def objective(self, spec: Spec) -> Objective:
        if self.model_type == "bd3lm":
            return objective_of_class(self.to_dict(), spec)  # type: ignore[arg-type]
        return objective_from(getattr(self, TRAINED, "mdlm"), {})

    def mask(self, spec: Spec) -> int:
        return mask_of(self.to_dict(), spec)


class MdlmConfig(UnmaskConfig):
    """config.json of a published MDLM."""

    model_type = "mdlm"

    def __init__(self, **keys: Any) -> None:
        super().__init__(**keys)


class Bd3lmConfig(UnmaskConfig):
    """config.json of a published block diffusion model."""

    model_type = "bd3lm"

    def __init__(self, **keys: Any) -> None:
        super().__init__(**keys)


class Network(PreTrainedModel):
    """A network of ours, with the names of its checkpoints."""

    config_class = UnmaskConfig
    base_model_prefix = ""
    supports_gradient_checkpointing = True

    def __init__(self, config: UnmaskConfig) -> None:
        super().__init__(config)
        spec = config.spec()
        self.backbone = build(spec)
        self.objective, self.mask = config.objective(spec), config.mask(spec)
        self.generation_config = GenerationConfig()  # trainers set its ids
        self.post_init()

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *given: Any, dtype: Any = torch.float32, **options: Any
    ) -> "Network":
        """As everywhere, in float32 unless another type is asked for: half precision is not safe on all CPUs.

        A checkpoint of ours has the objective that it was trained with, which must be one of hidden tokens.
        """
        path, _ = pretrained_model_name_or_path, options.pop("torch_dtype", None)
        network = super().from_pretrained(path, *given, dtype=dtype or torch.float32, **options)
        hub = {key: options[key] for key in HUB if key in options}
        if note := cached_file(path, NOTE, _raise_exceptions_for_missing_entries=False, **hub):
            objective = read_note(Path(note).parent)["objective"]
            network.objective = objective_from(objective, {})
            setattr(network.config, TRAINED, objective)
        facts = network.objective.facts
        if not facts.conditionals or "orders" in facts.gives:
            raise UserError(
                f"{path} was trained with {network.objective.name}, and these classes hold networks that predict "
                "masks: load it with unmask.load."
            )
        return network

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Constants that a file does not have; our networks make their other weights themselves."""
        reset = getattr(module, "reset_constants", None)
        if callable(reset):
            reset()

    def _set_gradient_checkpointing(self, enable: bool = True, *_: Any, **__: Any) -> None:
        self.backbone.recompute = enable

    def get_input_embeddings(self) -> nn.Module:
        names = ("vocab_embed", "embed_tokens", "tok_embeddings", "embedding")
        return next(part for name, part in self.backbone.named_children() if name in names)

    def hidden(self, input_ids: Tensor, attention_mask: Tensor | None, timesteps: Tensor | None) -> Tensor:
        """States of all positions; `timesteps`: the noise level σ of each row, 0 if it is not given.

        A position of a block model sees its block and those before it. As in the published class, a row of twice the
        model's length is a noisy row and the clean one, and the states are those of the noisy one.
        """
        network, device = self.backbone, input_ids.device
        sigma = torch.zeros(len(input_ids), device=device) if timesteps is None else timesteps.float()
        allowed = None
        if isinstance(self.objective, BlockDiffusion):
            if input_ids.shape[1] == 2 * network.spec.length:
                noisy, clean = input_ids.chunk(2, 1)
                rows = torch.arange(noisy.numel(), device=device)
                p = doubled_pass(network.spec, noisy, clean, self.objective.size, rows=rows)
                return network.run(p).hidden.view(*noisy.shape, -1)
            block = torch.arange(input_ids.shape[1], device=device) // self.objective.size
            allowed = block[:, None] >= block
        return hidden_states(network, input_ids, sigma, lengths=lengths_of(attention_mask), allowed=allowed)


class UnmaskModel(Network):
    """The network without its head."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, timesteps: Tensor | None = None, **_: Any
    ) -> BaseModelOutput:
        states: Any = self.hidden(input_ids, attention_mask, timesteps)
        return BaseModelOutput(last_hidden_state=states)


@dataclass
class Generated:
    """What `generate` returns."""

    sequences: Tensor


class UnmaskForMaskedLM(Network):
    """The network with its head.

    With `labels`, rows that have masks give the cross-entropy of the labelled positions; clean rows give the bound of
    the objective, with masks drawn by torch's random numbers.
    """

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        timesteps: Tensor | None = None,
        return_dict: bool | None = None,
        **more: Any,
    ) -> MaskedLMOutput | tuple[Tensor, ...]:
        logits: Any = self.backbone.head(self.hidden(input_ids, attention_mask, timesteps))
        loss: Any = None
        if labels is not None:  # with gradient accumulation a trainer counts the labels of all its batches
            loss = self.loss(input_ids, labels, attention_mask, logits)
            count = more.get("num_items_in_batch")
            loss = loss if count is None else loss * (labels != IGNORED).sum() / count
        if return_dict is False:
            return (logits,) if loss is None else (loss, logits)
        return MaskedLMOutput(loss=loss, logits=logits)

    def loss(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None, logits: Tensor) -> Tensor:
        if bool((input_ids == self.mask).any()):
            return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        given = labels == IGNORED
        clean = torch.where(given, input_ids, labels)
        noise = Noise(torch.rand(len(clean), device=clean.device), torch.rand(clean.shape, device=clean.device))
        view = NetworkView(self.backbone, lengths_of(attention_mask))
        rows = CleanRows(clean, noise=noise, mask=self.mask, frozen=given if bool(given.any()) else None)
        return self.objective.nats(view, rows).loss.sum() / (~given).sum().clamp(min=1)

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor,
        *,
        max_new_tokens: int = 64,
        sampler: str = "first-hitting",
        steps: int | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int = 0,
        streamer: Any = None,
    ) -> Generated:
        """Fill masks after the tokens of each row; a `TextDiffusionStreamer` is shown every step."""
        if not self.objective.facts.masked_lm:
            raise UserError(
                f"generate fills masks; a model of the objective {self.objective.name} needs unmask.sample."
            )
        blanks = input_ids.new_full((len(input_ids), max_new_tokens), self.mask)
        canvas, start = of_tokens(torch.cat((input_ids, blanks), 1), mask=self.mask), input_ids.shape[1]
        options = LogitOptions(temperature=temperature, top_k=top_k, top_p=top_p)
        if streamer is not None:
            streamer.put(input_ids.cpu())
        tokens = canvas.tokens
        for step in fill(self.backbone, canvas, policy_of(sampler, steps=steps), seed=seed, options=options):
            tokens = step.canvas.tokens
            if streamer is not None:
                streamer.put_draft(tokens[:, start:].cpu())
        if streamer is not None:
            streamer.put(tokens[:, start:].flatten().cpu())
            streamer.end()
        return Generated(tokens)


def lengths_of(attention_mask: Tensor | None) -> Tensor | None:
    """The lengths of rows that are padded at their end."""
    if attention_mask is None or bool(attention_mask.all()):
        return None
    lengths = attention_mask.sum(1)
    ends = torch.arange(attention_mask.shape[1], device=lengths.device) < lengths[:, None]
    if not torch.equal(attention_mask.bool(), ends):
        raise UserError("rows must be padded at their end: set padding_side = 'right' in the tokenizer.")
    return lengths


def register() -> None:
    """Make transformers' Auto classes know the networks."""
    for config in (UnmaskConfig, MdlmConfig, Bd3lmConfig):
        AutoConfig.register(config.model_type, config, exist_ok=True)
        for auto, kind in ((AutoModel, UnmaskModel), (AutoModelForMaskedLM, UnmaskForMaskedLM)):
            own = type(f"{config.__name__.removesuffix('Config')}{kind.__name__}", (kind,), {"config_class": config})
            auto.register(config, kind if config is UnmaskConfig else own, exist_ok=True)


register()
