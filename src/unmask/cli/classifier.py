"""A small classifier on a model's frozen trunk, to guide sampling: `unmask classify MODEL DATA --guide`."""

import sys
from dataclasses import asdict
from pathlib import Path

from unmask.errors import UserError
from unmask.model.checkpoint import Model
from unmask.model.classifier import Classifier, save_classifier
from unmask.text.corpus.records import labelled
from unmask.training.classifier import Head, held_out_accuracy, train_head
from unmask.untrusted import printable

NOISE = (0.0, 0.5, 0.9)  # shares of hidden tokens at which the accuracy on held-out texts is measured
EVERY = 10  # one of so many texts is held out


def train_guide(model: Model, data: Path, out: Path, *, text: str, label: str, head: Head) -> None:
    """Train the classifier on noisy texts and write its folder; the model itself does not change."""
    pairs = labelled(data, text=text, label=label)
    names = sorted({name for _, name in pairs})
    if model.objective.facts.causal:
        raise UserError("a classifier guides a diffusion model; this one is autoregressive.")
    classifier = Classifier(model.network, names)
    texts, labels = encoded(model, pairs, names)
    held = set(range(0, len(texts), EVERY))
    train = [i for i in range(len(texts)) if i not in held]
    if not train:
        raise UserError(f"{data} holds {len(texts)} text: too few to train on some and hold out others.")
    losses = []
    learning = train_head(
        classifier, [texts[i] for i in train], [labels[i] for i in train], mask=model.mask, how=head
    )
    for step, loss in enumerate(learning, 1):
        losses.append(loss)
        if step % max(1, head.steps // 5) == 0:
            recent = losses[-max(1, head.steps // 5) :]
            print(f"step {step}: {sum(recent) / len(recent):.3f} nats per label", file=sys.stderr)
    some = sorted(held)
    right = {
        f"{t:g}": held_out_accuracy(
            classifier, [texts[i] for i in some], [labels[i] for i in some], mask=model.mask, t=t
        )
        for t in NOISE
    }
    facts = {"head": asdict(head), "texts": len(train), "held_out": len(some), "accuracy_when_hidden": right}
    save_classifier(out, classifier, model, said=facts)
    shares = ", ".join(f"{share:.0%} with {float(t):.0%} hidden" for t, share in right.items())
    print(f"{out}: {printable(', '.join(names))}; accuracy on {len(some)} held-out texts: {shares}")


def encoded(model: Model, pairs: list[tuple[str, str]], names: list[str]) -> tuple[list[list[int]], list[int]]:
    """Tokens, cut to the training length, and the numbers of the labels; texts without a token are left out."""
    all_ids = model.text_tokenizer().encode_batch([text for text, _ in pairs])
    kept = [(ids, name) for ids, (_, name) in zip(all_ids, pairs, strict=True) if len(ids)]
    return [ids[: model.spec.length].tolist() for ids, _ in kept], [names.index(name) for _, name in kept]
