"""The files of a head: its weights in head.safetensors, and beside them what it answers and how it reads texts.

    runs/mood/seed-1/model/
      config.json, model.safetensors, tokenizer.json, unmask.json   the network, a checkpoint like any other
      head.safetensors                                              the layer from a text's vector to its answer
      classify.json                                                 the labels, in order, and how texts are read;
                                                                    whether they were pairs, and in which columns

A head that guides sampling stands alone: classifier.json has its labels, the sha256 of its model's weights and the
fingerprint of its tokenizer, so that it is loaded together with its model and no other.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmask import __version__
from unmask.errors import UserError
from unmask.files import fingerprint, write_json
from unmask.model.answer import Answer
from unmask.model.model import Model
from unmask.model.reading import Reading, Trained
from unmask.model.weights import weights_fingerprint
from unmask.settings import merge_settings
from unmask.untrusted import read_object

HEAD, NOTE, GUIDE = "head.safetensors", "classify.json", "classifier.json"


@dataclass(frozen=True)
class StoredHead:
    """A head as it is on disk."""

    answer: Answer
    reading: Reading
    trained: Trained
    tensors: Mapping[str, Tensor]  # weight and bias of the head; those of a pooler with `pooler.` before them


def is_predictor(folder: Path | None) -> bool:
    return folder is not None and (folder / NOTE).is_file()


def write_head(folder: Path, head: StoredHead, note: Mapping[str, Any]) -> None:
    """Write a head beside its network; `note` is added to what is said of it."""
    save_file(dict(head.tensors), folder / HEAD)
    about = {"version": __version__, "answer": {**asdict(head.answer), "labels": list(head.answer.labels)}}
    sums = {"head": fingerprint(folder / HEAD), "reading": asdict(head.reading), "texts": asdict(head.trained)}
    write_json(folder / NOTE, {**about, **sums, **note})


def write_guide(folder: Path, head: StoredHead, model: Model, note: Mapping[str, Any]) -> None:
    """Write a head without its network, with the fingerprints of its model and tokenizer."""
    if model.folder is None:
        raise UserError("a classifier is saved with the fingerprint of its model's file: save the model first.")
    save_file(dict(head.tensors), folder / HEAD)
    made_for = {"model": weights_fingerprint(model.folder), "tokenizer": model.text_tokenizer().fingerprint}
    about = {"version": __version__, "labels": list(head.answer.labels), **made_for, "vocab": model.spec.vocab}
    write_json(folder / GUIDE, {**about, **note})


def trained_in(note: Mapping[str, Any]) -> Trained:
    """The texts of a training, in classify.json. Older files do not record them: then pairs were read with one token
    between the texts."""
    return merge_settings(Trained(), note["texts"], "texts") if "texts" in note else Trained(separators=1)


@contextmanager
def reading_head(folder: Path, remedy: str) -> Iterator[None]:
    """What is wrong with the files of a head is told."""
    try:
        yield
    except UserError:
        raise
    except (OSError, KeyError, TypeError, ValueError, AttributeError, SafetensorError) as error:
        raise UserError(f"the classifier in {folder} cannot be read: {error!r}. {remedy}") from None


def stored_head(folder: Path | None, width: int) -> StoredHead:
    """The head beside a network of this width."""
    if folder is None or not is_predictor(folder):
        raise UserError(f"{folder or 'the model'} is not fine-tuned for classification: it has no {NOTE}. Tune it "
                        "with `unmask classify`.")  # fmt: skip
    note = read_object(folder / NOTE)
    with reading_head(folder, "Tune it again."):
        stated = dict(note["answer"])
        answer = Answer(tuple(str(one) for one in stated["labels"]), float(stated["center"]), float(stated["spread"]))
        reading, trained = merge_settings(Reading(), note["reading"], "reading"), trained_in(note)
        if fingerprint(folder / HEAD) != note["head"]:
            raise UserError(f"{folder / HEAD} is not the file that was saved (its sha256 differs). Copy it again.")
        return check_head(folder, StoredHead(answer, reading, trained, load_file(folder / HEAD)), width)


def check_head(folder: Path, head: StoredHead, width: int) -> StoredHead:
    """The head, if its weights fit its answers and the network; refused before memory for a head is taken."""
    outputs, pooler = head.answer.outputs, {"pooler.weight": (width, width), "pooler.bias": (width,)}
    wanted = {"weight": (outputs, width), "bias": (outputs,)} | (pooler if head.reading.pool == "first" else {})
    if {name: tuple(tensor.shape) for name, tensor in head.tensors.items()} != wanted:
        raise UserError(f"{folder / HEAD} does not fit {outputs} outputs and the network's width.")
    return head


def stored_guide(folder: Path, model: Model) -> StoredHead:
    """The head in a folder that `unmask classify --guide` wrote, if it was trained on this model."""
    folder = next((one for one in (folder / "best", folder) if (one / GUIDE).is_file()), folder)
    for name in (GUIDE, HEAD):
        if not (folder / name).is_file():
            raise UserError(
                f"{folder} is not a classifier: it has no {name}. Train one with `unmask classify --guide`."
            )
    with reading_head(folder, "Train it again."):
        note = read_object(folder / GUIDE)
        answer, made_for, tokenizer = Answer(tuple(map(str, note["labels"]))), note["model"], note["tokenizer"]
        tensors = load_file(folder / HEAD)
    own = None if model.tokenizer is None else model.tokenizer.fingerprint
    if tokenizer != own or note.get("vocab") != model.spec.vocab:
        raise UserError(
            f"the classifier in {folder} was trained on another vocabulary ({note.get('vocab')} ids, tokenizer "
            f"{str(tokenizer)[:12]}) than the model's ({model.spec.vocab} ids, tokenizer {str(own)[:12]}). "
            "Train one on this model: `unmask classify --guide`."
        )
    if model.folder is None or made_for != weights_fingerprint(model.folder):
        raise UserError(
            f"the classifier in {folder} was trained on the trunk of another model with this vocabulary: its weights "
            "do not fit this one. Use it with its own model, or train one on this model: `unmask classify --guide`."
        )
    return check_head(folder, StoredHead(answer, guide_reading(model), Trained(False), tensors), model.spec.width)


def guide_reading(model: Model) -> Reading:
    """How a classifier that guides sampling reads: the bare text, as samples are."""
    return Reading(model.spec.length, "auto", "one", "no")
