"""Train a small classifier on a model's trunk, to guide sampling with `unmask sample --classifier`.

    unmask classifier runs/stories reviews.jsonl --out runs/mood
    unmask sample runs/stories --classifier runs/mood --towards happy

DATA is .jsonl, .csv or .tsv with a text and a label in every record. The model itself does not change.
"""

import sys
from dataclasses import asdict, dataclass
from dataclasses import field as made
from pathlib import Path
from typing import Annotated

import tyro

from unmask.cli.flags import Place, Placing
from unmask.errors import UserError
from unmask.model.checkpoint import Model
from unmask.model.classifier import Classifier, save_classifier
from unmask.text.corpus.records import labelled
from unmask.training.classifier import Head, held_out_accuracy, train_head

NOISE = (0.0, 0.5, 0.9)  # shares of hidden tokens at which the accuracy on held-out texts is measured


@dataclass(frozen=True)
class Settings:
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]  # a checkpoint's folder, or hub name
    data: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]  # labelled texts
    out: Path  # folder to write
    field: Annotated[str, tyro.conf.arg(aliases=["--text"])] = "text"  # field or column of the text
    label: str = "label"  # field or column of the label
    held_out: float = 0.1  # share of the texts held out to measure the accuracy
    head: Annotated[Head, tyro.conf.arg(name="")] = made(default_factory=Head)
    place: Placing = made(default_factory=Place)

    def __post_init__(self) -> None:
        if not 0 < self.held_out < 1:
            raise UserError(f"--held-out must lie within (0, 1); saw {self.held_out}.")


def run(settings: Settings) -> None:
    pairs = labelled(settings.data, text=settings.field, label=settings.label)
    names = sorted({name for _, name in pairs})
    model = settings.place.load(settings.model)
    if model.objective.facts.causal:
        raise UserError("a classifier guides a diffusion model; this one is autoregressive.")
    classifier = Classifier(model.network, names)
    texts, labels = encoded(model, pairs, names)
    held = set(range(0, len(texts), max(2, round(1 / settings.held_out))))
    train = [i for i in range(len(texts)) if i not in held]
    if not train:
        raise UserError(f"{settings.data} holds {len(texts)} text: too few to train on some and hold out others.")
    losses = []
    learning = train_head(
        classifier, [texts[i] for i in train], [labels[i] for i in train], mask=model.mask, how=settings.head
    )
    for step, loss in enumerate(learning, 1):
        losses.append(loss)
        if step % max(1, settings.head.steps // 5) == 0:
            recent = losses[-max(1, settings.head.steps // 5) :]
            print(f"step {step}: {sum(recent) / len(recent):.3f} nats per label", file=sys.stderr)
    some = sorted(held)
    right = {
        f"{t:g}": held_out_accuracy(
            classifier, [texts[i] for i in some], [labels[i] for i in some], mask=model.mask, t=t
        )
        for t in NOISE
    }
    facts = {"head": asdict(settings.head), "texts": len(train), "held_out": len(some), "accuracy_when_hidden": right}
    save_classifier(settings.out, classifier, model, said=facts)
    shares = ", ".join(f"{share:.0%} with {float(t):.0%} hidden" for t, share in right.items())
    print(f"{settings.out}: {', '.join(names)}; accuracy on {len(some)} held-out texts: {shares}")


def encoded(model: Model, pairs: list[tuple[str, str]], names: list[str]) -> tuple[list[list[int]], list[int]]:
    """Tokens, cut to the training length, and the numbers of the labels; texts without a token are left out."""
    all_ids = model.text_tokenizer().encode_batch([text for text, _ in pairs])
    kept = [(ids, name) for ids, (_, name) in zip(all_ids, pairs, strict=True) if len(ids)]
    return [ids[: model.spec.length].tolist() for ids, _ in kept], [names.index(name) for _, name in kept]
