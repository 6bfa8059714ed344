"""A classifier on a model's own trunk: the mean of its hidden states, then one linear layer.

On disk: head.safetensors, and classifier.json with the labels, the sha256 of the model's weights and the fingerprint
of its tokenizer. The trunk is not stored again, so a head is loaded together with its model and no other.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from unmask import __version__
from unmask.errors import UserError
from unmask.files import appearing, write_json
from unmask.model.backbone import Backbone, skeleton
from unmask.model.model import Model
from unmask.model.passes.whole import hidden_states
from unmask.model.weights import weights_fingerprint
from unmask.untrusted import read_object

HEAD, NOTE = "head.safetensors", "classifier.json"


class Classifier(nn.Module):
    """log p(label | x_t), for noisy text too. The trunk is fixed; only the linear layer is trained."""

    def __init__(self, network: Backbone, labels: Sequence[str]) -> None:
        super().__init__()
        if len(set(labels)) < 2 or len(set(labels)) != len(labels):
            raise UserError(f"a classifier needs at least two different labels; saw {', '.join(labels) or 'none'}.")
        self.backbone: Backbone = twin(network)
        self.labels = tuple(labels)
        self.parts = nn.ModuleDict({"head": nn.Linear(network.spec.width, len(labels))})

    @property
    def linear(self) -> nn.Linear:
        found = self.parts["head"]
        assert isinstance(found, nn.Linear)
        return found

    @property
    def table(self) -> Float[Tensor, "v d"]:
        """The embedding of each token."""
        return self.backbone.table()

    def log_probs(
        self,
        embedded: Float[Tensor, "b l d"],
        sigma: Float[Tensor, " b"],
        *,
        lengths: Int[Tensor, " b"] | None = None,
    ) -> Float[Tensor, "b labels"]:
        """log p(label), from embeddings, so that gradients with respect to them exist."""
        return self.of_hidden(hidden_states(self.backbone, embedded, sigma, lengths=lengths), lengths)

    def of_hidden(
        self, hidden: Float[Tensor, "b l d"], lengths: Int[Tensor, " b"] | None = None
    ) -> Float[Tensor, "b labels"]:
        """log p(label) from hidden states: pooled, then the linear layer."""
        return self.linear(self.backbone.pool(hidden, lengths)).log_softmax(-1)

    def number(self, label: str) -> int:
        if label not in self.labels:
            raise UserError(f"the classifier has no label {label!r}. Known: {', '.join(self.labels)}.")
        return self.labels.index(label)


def twin(network: Backbone) -> Backbone:
    """The same weights in the same memory, with separate caches: those of inference mode allow no gradient."""
    other = skeleton(network.spec)
    other.load_state_dict(network.state_dict(), assign=True)
    return other.freeze()


def save_classifier(
    folder: str | Path, classifier: Classifier, model: Model, *, said: Mapping[str, Any] | None = None
) -> Path:
    """Write the head, with the fingerprints of its model and tokenizer."""
    if model.folder is None:
        raise UserError("a classifier is saved with the fingerprint of its model's file: save the model first.")
    folder = Path(folder)
    note = {
        "version": __version__,
        "labels": list(classifier.labels),
        "model": weights_fingerprint(model.folder),
        "tokenizer": None if model.tokenizer is None else model.tokenizer.fingerprint,
        "vocab": model.spec.vocab,
        **(said or {}),
    }
    with appearing(folder) as draft:
        save_file(
            {name: tensor.contiguous() for name, tensor in classifier.linear.state_dict().items()}, draft / HEAD
        )
        write_json(draft / NOTE, note)
    return folder


def load_classifier(folder: str | Path, model: Model) -> Classifier:
    """The classifier in a folder, on the trunk of its model; refuses another vocabulary or another model."""
    folder = Path(folder)
    for name in (NOTE, HEAD):
        if not (folder / name).is_file():
            raise UserError(
                f"{folder} is not a classifier: it has no {name}. Train one with `unmask classify --guide`."
            )
    try:
        note = read_object(folder / NOTE)
        labels, made_for, told = [str(label) for label in note["labels"]], note["model"], note["tokenizer"]
        state = load_file(folder / HEAD)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise UserError(f"the classifier in {folder} cannot be read: {error}. Train it again.") from None
    own = None if model.tokenizer is None else model.tokenizer.fingerprint
    if told != own or note.get("vocab") != model.spec.vocab:
        raise UserError(
            f"the classifier in {folder} was trained on another vocabulary ({note.get('vocab')} ids, tokenizer "
            f"{str(told)[:12]}) than the model's ({model.spec.vocab} ids, tokenizer {str(own)[:12]}). "
            "Train one on this model: `unmask classify --guide`."
        )
    if model.folder is None or made_for != weights_fingerprint(model.folder):
        raise UserError(
            f"the classifier in {folder} was trained on the trunk of another model with this vocabulary: its weights "
            "do not fit this one. Use it with its own model, or train one on this model: `unmask classify --guide`."
        )
    classifier = Classifier(model.network, labels)
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if shapes != {name: tuple(tensor.shape) for name, tensor in classifier.linear.state_dict().items()}:
        raise UserError(f"{folder / HEAD} does not fit {len(labels)} labels and the model's width: {shapes}.")
    classifier.linear.load_state_dict(state)
    return classifier.eval().requires_grad_(False)
