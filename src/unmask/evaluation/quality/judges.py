"""Judges: causal language models that score samples, in nats per token. `JUDGES` says what can be one.

Rows of a batch are padded at their ends, which a causal model does not see, so batching changes no number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.diffusion.autoregressive import Autoregressive
from unmask.diffusion.clean import CleanRows
from unmask.errors import UserError, install
from unmask.evaluation.record import of_model
from unmask.files import fingerprint
from unmask.hub import fetch
from unmask.model.checkpoint import in_run, load
from unmask.model.denoiser import NetworkView
from unmask.model.format import NOTE
from unmask.model.model import Model, shipped_models
from unmask.model.passes.whole import hidden_states
from unmask.model.weights import FILE

JUDGES = {
    "stories-ar": "the autoregressive model of stories that is shipped with the package",
    "FOLDER": "an autoregressive unmask model, or a causal model that transformers loads: safetensors only",
    "NAME": "such a model on the hub: gpt2-large",
    "FILE.gguf": "a GGUF file, through transformers",
}
BUDGET = 2048  # tokens in a forward pass
NEEDS = f"this judge needs transformers: {install('eval')}"


@runtime_checkable
class Judge(Protocol):
    """The interface of a judge."""

    @property
    def eos(self) -> int | None:
        """The id between documents."""

    @property
    def most(self) -> int:
        """The longest context, in tokens."""

    @property
    def about(self) -> dict[str, Any]:
        """Its description, for a record."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens."""

    def nats(self, tokens: Int[Tensor, "b l"]) -> Float[Tensor, "b l"]:
        """−log p of each token given those before it; 0 for the first."""


@dataclass(frozen=True)
class OwnJudge:
    """An autoregressive unmask model."""

    model: Model

    @property
    def eos(self) -> int | None:
        return self.model.text_tokenizer().eos

    @property
    def most(self) -> int:
        return self.model.spec.length

    @property
    def about(self) -> dict[str, Any]:
        return {"kind": "unmask", **of_model(self.model)}

    def encode(self, text: str) -> list[int]:
        return self.model.text_tokenizer().encode(text)

    @torch.no_grad()
    def nats(self, tokens: Int[Tensor, "b l"]) -> Float[Tensor, "b l"]:
        clean = CleanRows(tokens.to(self.model.device), mask=self.model.mask)
        return Autoregressive().nats(NetworkView(self.model.network), clean).bound.cpu()

    @torch.no_grad()
    def mind(self, tokens: Int[Tensor, "1 l"]) -> Float[Tensor, " d"]:
        device, seen = self.model.device, tokens[:, -self.most :]
        return hidden_states(self.model.network, seen.to(device), torch.zeros(1, device=device))[0, -1].cpu()


@dataclass(frozen=True)
class Hugging:
    """A causal model of transformers, in float32."""

    network: Any
    tokenizer: Any
    name: str
    sha256: str | None  # of its weights, if they are one local file

    @property
    def eos(self) -> int | None:
        return self.tokenizer.eos_token_id

    @property
    def most(self) -> int:
        return int(getattr(self.network.config, "max_position_embeddings", None) or 1024)

    @property
    def about(self) -> dict[str, Any]:
        return {
            "kind": "transformers",
            "name": self.name,
            "weights": self.sha256,
            "revision": getattr(self.network.config, "_commit_hash", None),
            "architecture": type(self.network).__name__,
            "parameters": self.network.num_parameters(),
            "dtype": str(self.network.dtype).removeprefix("torch."),
        }

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    @torch.no_grad()
    def nats(self, tokens: Int[Tensor, "b l"]) -> Float[Tensor, "b l"]:
        seen = tokens.to(self.network.device)
        logits = self.network(input_ids=seen, use_cache=False).logits[:, :-1].float()
        nats = torch.nn.functional.cross_entropy(logits.transpose(1, 2), seen[:, 1:], reduction="none")
        return torch.nn.functional.pad(nats, (1, 0)).cpu()

    @torch.no_grad()
    def mind(self, tokens: Int[Tensor, "1 l"]) -> Float[Tensor, " d"]:
        seen = tokens[:, -self.most :].to(self.network.device)
        return self.network(input_ids=seen, output_hidden_states=True, use_cache=False).hidden_states[-1][0, -1].cpu()


def judge(place: str) -> Judge:
    """The judge at a place: an unmask model, a GGUF file, or a model that transformers loads."""
    folder = in_run(Path(place))
    if (folder / NOTE).is_file() or place in shipped_models():
        model = load(place)
        if not model.objective.facts.causal:
            raise UserError(
                f"a judge reads from left to right, and {place} is an {model.objective.name} model. Give an "
                "autoregressive model, or one that transformers loads, such as gpt2-large."
            )
        model.text_tokenizer()
        return OwnJudge(model)
    if place.endswith(".gguf") and not folder.is_file():
        raise UserError(f"there is no file {place}.")
    if place.endswith(".gguf"):
        return _hugging(str(folder.parent), place, fingerprint(folder), gguf_file=folder.name)
    if not folder.exists():
        try:
            fetch(place, ["config.json"])  # at once; transformers would try again for a minute
        except Exception as error:  # no such name, no network: the message says which
            raise unusable(place, error) from None
    weights = folder / FILE
    return _hugging(place, place, fingerprint(weights) if weights.is_file() else None)


def _hugging(where: str, name: str, sha256: str | None, **more: str) -> Judge:
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils.logging import disable_progress_bar
    except ImportError:
        raise UserError(NEEDS) from None
    disable_progress_bar()
    safe: dict[str, Any] = {"trust_remote_code": False, **more}
    if not more:
        safe["use_safetensors"] = True  # a pickle could run any code
    try:
        tokenizer = AutoTokenizer.from_pretrained(where, trust_remote_code=False, **more)
        network = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32, **safe).eval()
    except Exception as error:  # no such name, no network, no safetensors, not a causal model: the message says which
        raise unusable(name, error) from None
    return Hugging(network, tokenizer, name, sha256)


def unusable(name: str, error: Exception) -> UserError:
    """Why a judge cannot be loaded, in one line, and what a judge is."""
    message = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return UserError(
        f"the judge {name} cannot be loaded: {message.rstrip('.')}. A judge is an autoregressive unmask model, a "
        ".gguf file, or the folder or hub name of a causal model with safetensors."
    )


def judged_nats(
    judge: Judge,
    rows: Sequence[np.ndarray],
    *,
    budget: int = BUDGET,
    after: Callable[[int], None] = lambda done: None,
) -> list[np.ndarray]:
    """Nats (float64) of every token of each row; rows of similar length share a pass. `after` gets the rows done."""
    scored: list[np.ndarray] = [np.zeros(len(row)) for row in rows]
    order = sorted((i for i, row in enumerate(rows) if len(row) > 1), key=lambda i: -len(rows[i]))
    done = 0
    while done < len(order):
        longest = len(rows[order[done]])
        some = order[done : done + max(1, budget // longest)]
        tokens = np.stack([np.pad(rows[i], (0, longest - len(rows[i])), mode="edge") for i in some])
        nats = judge.nats(torch.from_numpy(tokens.astype(np.int64))).double().numpy()
        for i, paid in zip(some, nats, strict=True):
            scored[i] = paid[: len(rows[i])]
        done += len(some)
        after(done)
    return scored
