"""A checkpoint: a folder with config.json, model.safetensors, tokenizer files, and unmask.json, which proves it.

The first two are those of the published checkpoints (kuleshov-group/mdlm-owt): a published checkpoint is one of ours
without a proof. unmask.json holds what made the weights (objective, step, EMA, settings, version, the tokenizer's
fingerprint), the sha256 of model.safetensors and a self-test; `load` refuses a folder that fails any of them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from unmask import __version__
from unmask.errors import UserError
from unmask.files import appearing
from unmask.model import probe
from unmask.model.backbones.transformer import Architecture, Transformer
from unmask.model.denoiser import check_objective, log_probs
from unmask.model.formats.official import architecture_of, config_of, mask_of, read_config
from unmask.model.shipped import shipped
from unmask.model.weights import AGAIN, FILE, check_names, fingerprint, names_in, read_network, write_network
from unmask.text.tokens.tokenizer import Tokenizer

NOTE = "unmask.json"
TOKENIZER_FILES = ("tokenizer.json", "merges.txt", "vocab.txt")
FROM_HUB = ["*.json", "model.safetensors", "*.txt"]
GPT2 = 50258  # ids of a published network that reads GPT-2's tokens


@dataclass(frozen=True)
class Model:
    """A network, its tokenizer, and what is known of how it was made."""

    network: Transformer
    mask: int
    objective: str = "mdlm"
    tokenizer: Tokenizer | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # those of the run that made it
    step: int | None = None
    ema: bool | None = None  # None: not recorded
    folder: Path | None = None
    self_test: float | None = None  # the largest difference to the recorded answers; None: nothing was recorded

    @property
    def architecture(self) -> Architecture:
        return self.network.architecture

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.network.parameters())

    def log_probs(self, x_t: Int[Tensor, "b l"], sigma: Float[Tensor, " b"] | None = None) -> Float[Tensor, "b l v"]:
        """log p(x_0 | x_t) at all positions (b l v): for inspection."""
        return log_probs(self.network, x_t, mask=self.mask, objective=self.objective, sigma=sigma)

    def text_tokenizer(self) -> Tokenizer:
        """The tokenizer, where text is to be read or written; without one, an error that says what is missing."""
        if self.tokenizer is None:
            where = self.folder or "its folder"
            which = (
                "GPT-2's tokenizer.json (or vocab.json and merges.txt)"
                if self.vocab_is_gpt2
                else "its tokenizer.json"
            )
            raise UserError(f"this model has no tokenizer, so it works on token ids only: put {which} into {where}.")
        return self.tokenizer

    @property
    def vocab_is_gpt2(self) -> bool:
        return self.architecture.vocab == GPT2 and self.mask == GPT2 - 1


def load(path: str | Path, *, trainable: bool = False) -> Model:
    """A checkpoint, ours or a published one, from a folder or the hub: checked, mapped into memory, on the CPU.

    It is ready for inference (`freeze`): `trainable=True` leaves gradients on instead.
    """
    folder, hub = find(path)
    config, weights = read_config(folder), folder / FILE
    names = names_in(weights)
    architecture, mask = architecture_of(config, names), mask_of(config)
    check_names(weights, names, architecture, str(config.get("torch_dtype", config.get("dtype", "float32"))))
    note = read_note(folder)
    if note and note["weights"] != fingerprint(weights):
        raise UserError(f"{weights} is not the file that was saved (its sha256 differs from unmask.json's). {AGAIN}")
    tokenizer = read_tokenizer(folder, note, architecture, mask, hub=hub)
    network = read_network(weights, architecture)
    network = network if trainable else network.freeze()
    objective = check_objective(note.get("objective", "ar" if architecture.causal else "mdlm"))
    proof = probe.check(network, note["probe"], mask=mask, objective=objective) if note else None
    made_by = {key: note.get(key) for key in ("step", "ema")}
    settings = note.get("settings", config)
    return Model(network, mask, objective, tokenizer, settings, **made_by, folder=folder, self_test=proof)


def save(
    folder: str | Path,
    network: Transformer,
    *,
    mask: int,
    objective: str = "mdlm",
    tokenizer: Tokenizer | None = None,
    settings: Mapping[str, Any] | None = None,
    step: int | None = None,
    ema: bool = False,
    dtype: str = "float32",
) -> Path:
    """Write a checkpoint of the network as it is; the folder appears when it is complete, or not at all.

    `dtype` is what the file holds; of weights that are rounded, the rounded network is what the self-test records.
    """
    folder = Path(folder)
    check_objective(objective)
    if tokenizer is not None:
        check_tokenizer(tokenizer, network.architecture, mask, folder)
    with appearing(folder) as draft:
        write_network(draft / FILE, network, dtype)
        write_json(draft / "config.json", config_of(network.architecture, mask=mask, dtype=dtype))
        if tokenizer is not None:
            tokenizer.save(draft)
        note = {"objective": objective, "step": step, "ema": ema, "settings": dict(settings or {})}
        kept = network if dtype == "float32" else read_network(draft / FILE, network.architecture)
        write_note(draft, note, kept, mask=mask, tokenizer=tokenizer)
    return folder


def write_note(
    folder: Path, said: Mapping[str, Any], network: Transformer, *, mask: int, tokenizer: Tokenizer | None
) -> None:
    """unmask.json for the files that are already in the folder."""
    proof = {
        "version": __version__,
        "tokenizer": None if tokenizer is None else tokenizer.fingerprint,
        "weights": fingerprint(folder / FILE),
        "probe": probe.record(network, mask=mask, objective=said["objective"]),
    }
    write_json(folder / NOTE, {**said, **proof})


def read_note(folder: Path) -> dict[str, Any]:
    """unmask.json, or nothing for a published checkpoint."""
    path = folder / NOTE
    if not path.is_file():
        return {}
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
        missing = {"version", "weights", "probe", "tokenizer", "objective"} - note.keys()
    except (ValueError, AttributeError):
        raise UserError(f"{path} is damaged: it is not a JSON object. {AGAIN}") from None
    if missing:
        raise UserError(f"{path} is damaged: it has no {', '.join(sorted(missing))}. {AGAIN}")
    return note


def read_tokenizer(
    folder: Path, note: Mapping[str, Any], architecture: Architecture, mask: int, *, hub: bool
) -> Tokenizer | None:
    """The folder's tokenizer, refused if it is not the one the network was trained with."""
    told = note.get("tokenizer")
    if any((folder / name).is_file() for name in TOKENIZER_FILES):
        tokenizer = Tokenizer.load(folder)
    elif told is not None:
        raise UserError(f"{folder} has lost its tokenizer.json: the network was saved with one. {AGAIN}")
    elif hub and architecture.vocab == GPT2:
        tokenizer = Tokenizer.load("hf:gpt2")  # published repositories leave it out
    else:
        return None
    if told is not None and tokenizer.fingerprint != told:
        raise UserError(
            f"the tokenizer in {folder} is not the one this network was saved with (fingerprint "
            f"{tokenizer.fingerprint[:12]}, not {told[:12]}): its ids would mean other words. Put the first one back."
        )
    check_tokenizer(tokenizer, architecture, mask, folder)
    return tokenizer


def check_tokenizer(tokenizer: Tokenizer, architecture: Architecture, mask: int, folder: Path) -> None:
    if tokenizer.mask != mask or tokenizer.size > architecture.vocab:
        raise UserError(
            f"the tokenizer of {folder} has {tokenizer.size} ids and mask {tokenizer.mask}, the network "
            f"{architecture.vocab} ids and mask {mask}: they do not belong together. Use the tokenizer the network "
            "was trained with."
        )


def in_run(folder: Path) -> Path:
    """A training run's folder stands for its best checkpoint, or its last; any other for itself."""
    inside = (folder / name for name in ("best", "last"))
    return next((one for one in inside if (one / "config.json").is_file()), folder)


def find(path: str | Path) -> tuple[Path, bool]:
    """The folder of a checkpoint, and whether it was fetched from the hub."""
    folder, ours = in_run(Path(path)), shipped()
    if str(path) in ours and not (folder / "config.json").is_file():
        return ours[str(path)], False
    if folder.is_dir():
        return folder, False
    if folder.is_file():
        raise UserError(f"{folder} is a file; a checkpoint is a folder. Did you mean {folder.parent}?")
    name = str(path)
    if isinstance(path, Path) or name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise UserError(
            f"there is no folder {path}. Give a checkpoint's folder, a hub name such as kuleshov-group/mdlm-owt, or "
            f"a model that comes with unmask: {', '.join(ours)}."
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=FROM_HUB)), True
    except Exception as error:  # no such repository, no network, no permission: the hub's words say which
        raise UserError(
            f"there is no folder {name}, and the hub did not give it: {str(error).splitlines()[0].rstrip('.')}. "
            "Without a network, put its config.json and model.safetensors (and, for text, a tokenizer.json) into a "
            "folder and give that folder."
        ) from None


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
