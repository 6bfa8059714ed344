"""Model: a network with its objective, its tokenizer, and the record of its training."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import unmask
from unmask.diffusion.mdlm import MDLM
from unmask.diffusion.objective import Objective, objective_of
from unmask.errors import UserError
from unmask.model.backbone import Backbone, Spec
from unmask.model.passes.whole import hidden_states, logits_at
from unmask.model.passing import Causal, Pass
from unmask.text.corpus.chat_template import published_template
from unmask.text.layout import LAYOUTS, Layout, Marks, recorded_layout, usual_layout
from unmask.text.tokens.tokenizer import Tokenizer

HOME = Path(unmask.__file__).parent / "shipped"
GPT2 = 50258  # ids of a published network with GPT-2's tokenizer


@dataclass(frozen=True)
class Model:
    """A network with its objective, its tokenizer, and the record of its training."""

    network: Backbone
    mask: int
    objective: Objective = field(default_factory=MDLM)
    tokenizer: Tokenizer | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the training run
    step: int | None = None
    ema: bool | None = None  # None: not recorded
    folder: Path | None = None
    self_test: float | None = None  # largest difference from the recorded answers; None: none recorded
    parts: Mapping[str, nn.Module] = field(default_factory=dict)  # learned parts of the objective
    state: Mapping[str, Tensor] = field(default_factory=dict)  # of the objective
    new_head: bool = False  # its head for masked words was never trained
    trained_layout: Layout | None = None  # as stored; None: it follows from the rest

    @property
    def spec(self) -> Spec:
        return self.network.spec

    @property
    def device(self) -> torch.device:
        return self.network.device

    @property
    def num_parameters(self) -> int:
        learned = [*self.network.parameters(), *(p for part in self.parts.values() for p in part.parameters())]
        return sum(parameter.numel() for parameter in learned)

    @cached_property
    def layout(self) -> Layout:
        """How a text becomes a row, with the marks of its tokenizer."""
        about = self.settings, self.tokenizer
        framed, marks = self.spec.framed, Marks.of(self.tokenizer, leads=self.objective.leads)
        layout = self.trained_layout or recorded_layout(*about, framed=framed) or usual_layout(*about, framed=framed)
        return layout.on(marks)

    @cached_property
    def talker(self) -> "Model | None":
        """The model with rows for conversations: as trained, or by the template of a published one; None: neither."""
        if self.layout.answers:
            return self
        template = None if self.folder is None else published_template(self.folder)
        if template is None or self.tokenizer is None:
            return None
        return replace(self, trained_layout=LAYOUTS.make("chat").with_template(template.text, self.tokenizer))

    @property
    def sampling(self) -> Mapping[str, Any]:
        """The default sampling settings stored in its checkpoint; empty: none."""
        stored = self.settings.get("sampling") or {}
        if not isinstance(stored, Mapping):
            raise UserError(f"the default sampling settings must be a table; saw {stored!r}.")
        return stored

    @property
    def ends(self) -> frozenset[int]:
        """Ids that end a text, by the files of a published model."""
        stored = self.settings.get("ends") or ()
        if not isinstance(stored, list | tuple) or not all(type(id) is int for id in stored):
            raise UserError(f"the ids that end a text must be a list of numbers; saw {stored!r:.60}.")
        return frozenset(stored)

    @property
    def new(self) -> int | None:
        """Tokens to draw after a prompt by default, by the table of a published model; None: a whole row."""
        new = self.settings.get("new")
        if new is not None and (type(new) is not int or new < 1):
            raise UserError(f"the number of new tokens must be a whole number from 1; saw {new!r:.60}.")
        return new

    def with_sampling(self, **settings: Any) -> "Model":
        """The model with these default sampling settings and no others: sampler="entropy", top_p=0.9."""
        return replace(self, settings={**self.settings, "sampling": settings})

    def log_probs(self, x_t: Int[Tensor, "b l"], sigma: Float[Tensor, " b"] | None = None) -> Float[Tensor, "b l v"]:
        """log p(x_0 | x_t) at all positions (b l v): for inspection."""
        return network_log_probs(self.network, x_t, mask=self.mask, objective=self.objective, sigma=sigma)

    def text_tokenizer(self) -> Tokenizer:
        """The tokenizer; if there is none, an error that says what is missing."""
        if self.tokenizer is None:
            where = self.folder or "its folder"
            gpt2 = self.spec.vocab == GPT2 and self.mask == GPT2 - 1
            which = "GPT-2's tokenizer.json (or vocab.json and merges.txt)" if gpt2 else "its tokenizer.json"
            raise UserError(f"this model has no tokenizer, so it works on token ids only: put {which} into {where}.")
        return self.tokenizer


def network_log_probs(
    network: Backbone,
    x_t: Int[Tensor, "b l"],
    *,
    mask: int,
    objective: Objective | str = "mdlm",
    sigma: Float[Tensor, " b"] | None = None,
) -> Float[Tensor, "b l v"]:
    """log p(x_0 | x_t) at all positions (b l v): for inspection, not for loops over large vocabularies.

    With a causal objective, position i predicts the token after token i.
    """
    objective, vocab = objective_of(objective), network.spec.vocab
    if x_t.numel() and not 0 <= int(x_t.min()) <= int(x_t.max()) < vocab:
        seen = next(id for id in x_t.flatten().tolist() if not 0 <= id < vocab)
        raise UserError(f"id {seen} is outside the network's vocabulary of {vocab}: give ids 0 to {vocab - 1}.")
    if objective.facts.causal and network.spec.incremental:
        return objective.log_probs(network.head(network.run(Pass(x_t, Causal())).hidden), x_t, mask=mask)
    if network.spec.shown_sigma and sigma is None:
        raise UserError("this network is conditioned on the noise level: give sigma, one number per row.")
    if context := objective.context(x_t):
        rows = torch.arange(x_t.numel(), device=x_t.device)
        logits = logits_at(network, x_t, sigma, rows, **context).view(*x_t.shape, -1)
        return objective.log_probs(logits, x_t, mask=mask)
    return objective.log_probs(network.head(hidden_states(network, x_t, sigma)), x_t, mask=mask)


def shipped_models(home: Path = HOME) -> dict[str, Path]:
    """The models that come with the package, by name; each folder has a model card."""
    return {config.parent.name: config.parent for config in sorted(home.glob("*/config.json"))}
