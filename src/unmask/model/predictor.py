"""Predictor: a network that was fine-tuned to classify texts, or to predict a number of each.

    runs/mood/seed-1/model/
      config.json, model.safetensors, tokenizer.json, unmask.json   the network, a checkpoint like any other
      head.safetensors                                              the layer from a text's vector to its answer
      classify.json                                                 the labels, in order, and how texts are read;
                                                                    whether they were pairs, and in which columns

A text is cut to a number of tokens and framed (bos text eos; a pair: bos one eos other eos, with two eos between the
texts for RoBERTa), the network reads it, and `pool` makes one vector of its hidden states. For DNA the vector may be
the mean of both strands'.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from unmask import __version__
from unmask.errors import UserError
from unmask.files import fingerprint, write_json
from unmask.model import checkpoint
from unmask.model.backbone import Backbone
from unmask.model.denoiser import Denoiser
from unmask.model.model import Model
from unmask.model.passes.whole import hidden_states
from unmask.settings import described, merged
from unmask.text.corpus.examples import Columns
from unmask.text.tokens.bases import complement
from unmask.untrusted import read_object

HEAD, NOTE = "head.safetensors", "classify.json"
SPREAD = 0.02  # standard deviation of a new head's weights
LONGEST = 1 << 14  # tokens of a text, unless the network was trained on longer ones

Text = str | tuple[str, str]  # a text, or a pair of texts


@dataclass(frozen=True)
class Reading:
    """How a text is read."""

    length: int = 0  # most tokens of a text with its frame, or of a pair; longer ones are cut; 0: the model's
    pool: Literal["auto", "mean", "last", "padded", "first"] = (
        "auto"  # one vector of a text: mean, last token, mean with padding on the left, first token of an encoder
        # through a new pooler; auto: the network's own
    )
    strands: Literal["auto", "one", "augment", "augment-one", "both", "published"] = (
        "auto"  # of DNA: one; both averaged; augment: a random one in training, both in answers; augment-one: one
    )
    frame: Literal["auto", "yes", "no"] = "auto"  # bos and eos around a text; auto: yes, but not for DNA

    def __post_init__(self) -> None:
        if self.length < 0:
            raise UserError(f"length must be 0 (the model's) or more tokens; saw {self.length}.")


@dataclass(frozen=True)
class Trained:
    """The texts of its training."""

    pairs: bool | None = None  # whether they were pairs; None: not recorded
    columns: Columns = field(default_factory=Columns)  # where they were in the data
    separators: int = 0  # tokens between the texts of a pair; 0: those of the network

    def __post_init__(self) -> None:
        if not 0 <= self.separators <= 4:
            raise UserError(f"between the texts of a pair are 1 to 4 separators; saw {self.separators}.")


@dataclass(frozen=True)
class Answer:
    """What is predicted: one of some labels, or a number."""

    labels: tuple[str, ...] = ()  # in order; none: a number
    center: float = 0.0  # mean of the numbers in training
    spread: float = 1.0  # their standard deviation

    def __post_init__(self) -> None:
        if len(set(self.labels)) < len(self.labels):
            raise UserError("labels must differ from each other.")
        if not 0 < self.spread < np.inf or not np.isfinite(self.center):
            raise UserError(f"the numbers' mean and spread must be finite; saw {self.center} and {self.spread}.")

    @property
    def outputs(self) -> int:
        return len(self.labels) or 1

    @property
    def kind(self) -> str:
        return "numbers" if not self.labels else "two classes" if len(self.labels) == 2 else "several classes"

    def target(self, label: str, where: str = "") -> float:
        """A label as its number in the list of labels, or as the number that it is."""
        if not self.labels:
            return number_of(label, where)
        if label not in self.labels:
            place = f"{where}: " if where else ""
            raise UserError(f"{place}the label {label!r} was not in the training data: {', '.join(self.labels)}.")
        return self.labels.index(label)


def number_of(label: str, where: str) -> float:
    try:
        value = float(label)
        if not np.isfinite(value):
            raise ValueError
        return value
    except ValueError:
        raise UserError(f"{where}: the label {label!r} is not a number; leave out --number for classes.") from None


class Encoded(NamedTuple):
    """A text, or a pair of texts, as ids."""

    first: list[int]
    second: list[int] | None = None

    @property
    def size(self) -> int:
        return len(self.first) + len(self.second or ())


class Batch(NamedTuple):
    """Rows for the network."""

    tokens: Int[Tensor, "b l"]
    lengths: Int[Tensor, " b"] | None  # None: padding is read like text
    segments: Int[Tensor, "b l"] | None = None  # 0 at the first text of a pair, 1 at the second

    def to(self, device: torch.device) -> "Batch":
        return Batch(*(None if one is None else one.to(device) for one in self))  # type: ignore[arg-type]


class Prediction(NamedTuple):
    """The answer to a text."""

    label: str | None  # the most likely label; None: a number is predicted
    probabilities: dict[str, float]  # of every label
    number: float | None = None


class Predictor(nn.Module):
    """A network with a head. `predict` answers texts."""

    def __init__(
        self,
        model: Model,
        answer: Answer,
        reading: Reading | None = None,
        *,
        dropout: float = 0.0,
        trained: Trained | None = None,
    ) -> None:
        super().__init__()
        self.model, self.answer, self.tokenizer = model, answer, model.text_tokenizer()
        self.backbone: Backbone = model.network
        self.parts = nn.ModuleDict({"head": nn.Linear(model.spec.width, answer.outputs)})
        self.dropout = dropout
        self.partners = complement(self.tokenizer)  # of DNA: the id of each id's complement
        self.asked_length = 0 if reading is None else reading.length
        self.reading = self.settled(reading or Reading())
        self.trained = replace(trained or Trained(), separators=self.separators(trained or Trained()))
        renew(self.head)
        if self.reading.pool == "first":  # made after the head, which is the same with every pooling
            self.parts["pooler"] = renew(nn.Linear(model.spec.width, model.spec.width))

    @property
    def longest(self) -> int:
        """The most tokens that may be read: those of a table of positions, or some thousands."""
        spec, causal = self.model.spec, self.model.spec.causal and self.reading.frame == "no"
        return max(spec.length, LONGEST) if spec.limit is None else spec.limit - causal

    @property
    def marks_around(self) -> int:
        """Tokens around and between texts that count as part of their length."""
        framed = (self.reading.frame == "yes") * sum(map(len, self.marks))
        return framed + bool(self.trained.pairs) * self.trained.separators

    def length_for(self, tokens: int) -> int:
        """The length at which texts of so many tokens are read whole, up to four times that of the pre-training; if
        a length was given, that one."""
        if self.asked_length:
            return self.asked_length
        whole = min(tokens + self.marks_around, 4 * self.model.spec.length, self.longest)
        return max(self.reading.length, whole)

    @property
    def head(self) -> nn.Linear:
        found = self.parts["head"]
        assert isinstance(found, nn.Linear)
        return found

    def separators(self, trained: Trained) -> int:
        """Tokens between the texts of a pair: as in its training, else as the encoder's tokenizer puts them."""
        inputs = self.model.spec.inputs
        usual = 1 if inputs is None else self.tokenizer.separators or inputs.separators
        return trained.separators or usual

    def settled(self, asked: Reading) -> Reading:
        """The settings with every `auto` replaced, except for the network's own pooling."""
        spec, dna = self.model.spec, self.partners is not None
        strands, frame = asked.strands, asked.frame
        if strands in ("auto", "published"):
            if not dna or getattr(spec, "equivariant", False):
                strands = "one"
            else:
                strands = "augment-one" if strands == "published" and not spec.conjoins else "augment"
        if strands != "one" and not dna:
            raise UserError("only DNA has two strands: the tokenizer has no letters A, C, G and T of its own.")
        if frame == "auto":
            frame = "no" if dna else "yes"
        if asked.pool == "padded" and self.tokenizer.pad is None:
            raise UserError("the tokenizer has no padding token, so it cannot be read like text: choose --pool mean.")
        if asked.pool == "first" and not spec.framed:
            raise UserError(
                f"--pool first reads the token before a text, which encoders such as BERT are trained with; "
                f"this network is a {spec.name}: choose --pool mean or --pool last."
            )
        length = asked.length or spec.length
        if length > max(LONGEST, spec.length):
            raise UserError(
                f"length must be at most {max(LONGEST, spec.length):,} tokens for this network; saw {length}."
            )
        if spec.limit is not None:  # of a table of positions no more is read than it has
            length = min(length, spec.limit - (spec.causal and frame == "no"))
        return Reading(length, asked.pool, strands, frame)

    @cached_property
    def marks(self) -> tuple[list[int], list[int]]:
        """What is put before a text and after it. A causal network sees the last token only from the one after it."""
        tokenizer, framed = self.tokenizer, self.reading.frame == "yes"
        before = [tokenizer.bos] if framed and tokenizer.bos is not None else []
        after = [tokenizer.eos] if framed and tokenizer.eos is not None else []
        if self.model.spec.causal and not after:
            after = [tokenizer.mask if tokenizer.eos is None else tokenizer.eos]
        return before, after

    def encode(self, texts: Sequence[Text]) -> tuple[list[Encoded], int]:
        """Texts as ids, cut to the length, and how many were cut."""
        kept, lengths = self.encode_whole(texts)
        return kept, sum(length > one.size for one, length in zip(kept, lengths, strict=True))

    def encode_whole(self, texts: Sequence[Text]) -> tuple[list[Encoded], list[int]]:
        """Texts as ids, cut to the length (of a pair the longer text first), and how many ids each had before."""
        pairs = [text for text in texts if not isinstance(text, str)]
        if pairs and len(pairs) < len(texts):
            raise UserError("some texts are pairs and some are not: classify them apart.")
        self.check_pairs(bool(pairs))
        if pairs and self.tokenizer.eos is None:
            raise UserError("pairs of texts need a token between them, and the tokenizer has no eos.")
        flat = [part for pair in pairs for part in pair] if pairs else [one for one in texts if isinstance(one, str)]
        ids = [one.tolist() for one in self.tokenizer.encode_batch(flat)]
        whole = [Encoded(*ids[i : i + 2]) for i in range(0, len(ids), 2)] if pairs else [Encoded(one) for one in ids]
        framed = (self.reading.frame == "yes") * sum(map(len, self.marks))
        room = self.reading.length - framed - bool(pairs) * self.trained.separators
        if room < 1:
            raise UserError(f"a length of {self.reading.length} leaves no room for text: give a larger --length.")
        for number, one in enumerate(whole, 1):
            if not one.size and self.reading.frame == "no":
                raise UserError(f"text {number} is empty: it has no tokens. Remove it from the data.")
        return [shortened(one, room) for one in whole], [one.size for one in whole]

    def check_pairs(self, pairs: bool) -> None:
        """Refuse single texts where it was trained on pairs, and pairs where it was not."""
        if self.trained.pairs is None or self.trained.pairs == pairs:
            return
        if pairs:
            raise UserError("this classifier was trained on single texts, and these are pairs: give one text each.")
        name = self.trained.columns.pair or "COLUMN"
        raise UserError(
            f"this classifier was trained on pairs of texts, and these are single texts: give two texts each, in a "
            f"file with --pair {name!r}."
        )

    def batch(self, rows: Sequence[Encoded], other: Sequence[bool] = ()) -> Batch:
        """Rows padded to the longest; `other`: which of them are read on the other strand."""
        lines = [self.line(row, flip) for row, flip in zip(rows, other or [False] * len(rows), strict=True)]
        lengths = torch.tensor([len(tokens) for tokens, _ in lines])
        padded, pad = self.reading.pool == "padded", self.tokenizer.pad
        beyond = len(self.marks[1]) if self.reading.frame == "no" else 0  # a causal network's last token
        width = self.reading.length + beyond if padded else int(lengths.max())
        tokens = torch.full((len(lines), width), self.tokenizer.mask if pad is None else pad)
        segments = torch.zeros_like(tokens)
        for row, (ids, second) in enumerate(lines):
            start = width - len(ids) if padded else 0
            tokens[row, start : start + len(ids)] = torch.tensor(ids)
            segments[row, start + second : start + len(ids)] = 1
        pairs = any(row.second is not None for row in rows)
        return Batch(tokens, None if padded else lengths, segments if pairs else None)

    def line(self, row: Encoded, flip: bool) -> tuple[list[int], int]:
        """The ids of a row with its frame, and where the second text begins."""
        first, second = row
        if flip:
            assert self.partners is not None
            first = self.partners[first[::-1]].tolist()
        return self.model.layout.pair(first, second, separators=self.trained.separators, around=self.marks)

    def vectors(self, batch: Batch) -> Float[Tensor, "b d"]:
        """One vector for each row."""
        tokens, lengths, segments = batch
        sigma = torch.zeros(len(tokens), device=tokens.device) if self.model.spec.shown_sigma else None
        hidden = hidden_states(self.backbone, tokens, sigma, lengths=lengths, segments=segments)
        if self.reading.pool == "auto":
            return self.backbone.pool(hidden, lengths)
        if self.reading.pool == "first":
            return torch.tanh(self.parts["pooler"](hidden[:, 0]))
        if self.reading.pool == "last":
            last = hidden.shape[1] - 1 if lengths is None else lengths - 1
            one = hidden[torch.arange(len(hidden), device=hidden.device), last]
        else:
            one = Backbone.pool(self.backbone, hidden, lengths)
        return self.backbone.pool(one[:, None])

    def forward(self, *strands: Batch) -> Float[Tensor, "b k"]:
        """The outputs of rows: logits of the labels, or numbers in units of their spread; the mean of the strands."""
        vectors = [self.vectors(one) for one in strands]
        mean = vectors[0] if len(vectors) == 1 else (vectors[0] + vectors[1]) / 2
        return self.head(F.dropout(mean, self.dropout, self.training)).float()

    def loss(self, outputs: Float[Tensor, "b k"], targets: Float[Tensor, " b"]) -> Float[Tensor, ""]:
        """Summed over the rows: nats of the labels, or squared errors in units of the spread."""
        if self.answer.labels:
            return F.cross_entropy(outputs, targets.long(), reduction="sum")
        return F.mse_loss(outputs[:, 0], (targets - self.answer.center) / self.answer.spread, reduction="sum")

    def learned(self) -> dict[str, Tensor]:
        """The tensors of the head, and of a new pooler, by their names in the file."""
        return {name.removeprefix("head."): tensor for name, tensor in self.parts.state_dict().items()}

    def outputs(
        self, rows: Sequence[Encoded], *, batch: int = 64
    ) -> Iterator[tuple[list[int], Float[Tensor, "b k"]]]:
        """The outputs of some rows at a time, with their numbers.

        Rows of equal length are read together, in an order that depends on them alone: what a text gets does not
        depend on where in the data it is.
        """
        order = sorted(range(len(rows)), key=lambda i: (rows[i].size, rows[i].first, rows[i].second or []))
        both = self.reading.strands in ("augment", "both")
        self.eval()
        for low in range(0, len(order), batch):
            some = order[low : low + batch]
            picked = [rows[i] for i in some]
            strands = [self.batch(picked), *([self.batch(picked, [True] * len(picked))] if both else [])]
            with torch.no_grad():
                found = self(*(one.to(self.backbone.device) for one in strands)).cpu()
            yield some, found

    def answers(self, rows: Sequence[Encoded], *, batch: int = 64) -> Float[Tensor, "n k"]:
        """The probabilities of the labels of every row, or its number."""
        found = torch.zeros(len(rows), self.answer.outputs, dtype=torch.float64)
        for some, outputs in self.outputs(rows, batch=batch):
            found[some] = outputs.double()
        return found.softmax(-1) if self.answer.labels else found * self.answer.spread + self.answer.center

    def predict(self, texts: Sequence[Text], *, batch: int = 64) -> list[Prediction]:
        """The answer to each text, or to each pair of texts."""
        rows, _ = self.encode(texts)
        return [self.prediction(one) for one in self.answers(rows, batch=batch).tolist()]

    def prediction(self, values: Sequence[float]) -> Prediction:
        labels = self.answer.labels
        if not labels:
            return Prediction(None, {}, values[0])
        return Prediction(labels[int(np.argmax(values))], dict(zip(labels, values, strict=True)))

    @classmethod
    def load(cls, path: str | Path, *, device: str = "cpu", dtype: str = "auto") -> "Predictor":
        """What `unmask classify` wrote: its folder, or the folder of one of its models."""
        return of_model(checkpoint.load(path, device=device, dtype=dtype, headed=False))


def renew(layer: nn.Linear) -> nn.Linear:
    """Initial weights."""
    nn.init.normal_(layer.weight, std=SPREAD)
    nn.init.zeros_(layer.bias)
    return layer


def shortened(row: Encoded, room: int) -> Encoded:
    """A row of at most `room` ids; of two texts the longer one is cut first, the second of two equally long ones."""
    first, second = row
    if second is None:
        return Encoded(first[:room])
    one, other = len(first), len(second)
    while one + other > room:
        one, other = (one - 1, other) if one > other else (one, other - 1)
    return Encoded(first[:one], second[:other])


def is_predictor(folder: Path | None) -> bool:
    return folder is not None and (folder / NOTE).is_file()


def write_predictor(folder: Path, predictor: Predictor, said: Mapping[str, Any]) -> None:
    """Write the files of a predictor into a folder that is not yet visible; `said` is added to its note."""
    model = predictor.model
    whole = Denoiser(predictor.backbone, model.objective, parts=model.parts, state=model.state)
    note = {
        "objective": described(model.objective),
        "step": model.step,
        "ema": False,
        "settings": dict(model.settings),
    }
    checkpoint.write(folder, whole, note, mask=model.mask, tokenizer=predictor.tokenizer, new_head=model.new_head)
    head = {name: tensor.detach().cpu().contiguous() for name, tensor in predictor.learned().items()}
    save_file(head, folder / HEAD)
    answer = {**asdict(predictor.answer), "labels": list(predictor.answer.labels)}
    sums = {"head": fingerprint(folder / HEAD), "reading": asdict(predictor.reading)}
    texts = asdict(predictor.trained)
    write_json(folder / NOTE, {"version": __version__, "answer": answer, **sums, "texts": texts, **said})


def trained_in(note: Mapping[str, Any]) -> Trained:
    """The texts of a training, in classify.json. Older files do not record them: then pairs were read with one token
    between the texts."""
    return merged(Trained(), note["texts"], "texts") if "texts" in note else Trained(separators=1)


def of_model(model: Model) -> Predictor:
    """The predictor of a checkpoint that has a head."""
    folder = model.folder
    if folder is None or not is_predictor(folder):
        raise UserError(f"{folder or 'the model'} is not fine-tuned for classification: it has no {NOTE}. Tune it "
                        "with `unmask classify`.")  # fmt: skip
    note = read_object(folder / NOTE)
    try:
        said = dict(note["answer"])
        answer = Answer(tuple(str(one) for one in said["labels"]), float(said["center"]), float(said["spread"]))
        reading = merged(Reading(), note["reading"], "reading")
        trained = trained_in(note)
        if fingerprint(folder / HEAD) != note["head"]:
            raise UserError(f"{folder / HEAD} is not the file that was saved (its sha256 differs). Copy it again.")
        state = load_file(folder / HEAD)
        if tuple(state["weight"].shape) != (answer.outputs, model.spec.width):  # before memory for a head is taken
            raise UserError(f"{folder / HEAD} does not fit {answer.outputs} outputs and the network's width.")
    except (OSError, KeyError, TypeError, ValueError, AttributeError, SafetensorError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"the classifier in {folder} cannot be read: {error!r}. Tune it again.") from None
    predictor = Predictor(model, answer, reading, trained=trained)
    shapes = {name: tuple(tensor.shape) for name, tensor in predictor.learned().items()}
    if {name: tuple(tensor.shape) for name, tensor in state.items()} != shapes:
        raise UserError(f"{folder / HEAD} does not fit {answer.outputs} outputs and the network's width.")
    names = predictor.parts.state_dict().keys()
    predictor.parts.load_state_dict({name: state[name.removeprefix("head.")] for name in names})
    predictor.to(model.device)
    return predictor.eval().requires_grad_(False)
