"""Predictor: a network with a head, which classifies texts or predicts a number of each, and may guide sampling.

A text is cut to a number of tokens and framed (bos text eos; a pair: bos one eos other eos, with two eos between the
texts for RoBERTa), the network reads it, and `pool` makes one vector of its hidden states. For DNA the vector may be
the mean of both strands'.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.diffusion.objective import Nats
from unmask.errors import UserError
from unmask.model import checkpoint
from unmask.model.answer import Answer, Prediction
from unmask.model.backbone import Backbone, skeleton
from unmask.model.denoiser import Denoiser
from unmask.model.head_files import StoredHead, stored_guide, stored_head, write_head
from unmask.model.learner import Learner
from unmask.model.model import Model
from unmask.model.passes.whole import hidden_states
from unmask.model.reading import LONGEST, Encoded, Reading, Text, TextBatch, Trained, shorten
from unmask.settings import describe_settings
from unmask.text.tokens.bases import complement


class Predictor(Learner):
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
        pooler = reading is not None and reading.pool == "first"
        super().__init__(model.network, answer.parts(model.spec.width, pooler=pooler))
        self.model, self.answer, self.tokenizer = model, answer, model.text_tokenizer()
        self.dropout = dropout
        self.partners = complement(self.tokenizer)  # of DNA: the id of each id's complement
        self.asked_length = 0 if reading is None else reading.length
        self.reading = self.settled(reading or Reading())
        self.trained = replace(trained or Trained(), separators=self.separators(trained or Trained()))

    @property
    def longest(self) -> int:
        """The most tokens that may be read: those of a table of positions, or some thousands."""
        spec, causal = self.model.spec, self.model.spec.causal and self.reading.frame == "no"
        return max(spec.length, LONGEST) if spec.limit is None else spec.limit - causal

    @property
    def marks_around(self) -> int:
        """Tokens around and between texts that count as part of their length."""
        return self.around(bool(self.trained.pairs))

    def around(self, pairs: bool) -> int:
        return (self.reading.frame == "yes") * sum(map(len, self.marks)) + pairs * self.trained.separators

    def length_for(self, tokens: int) -> int:
        """The length at which texts of so many tokens are read whole, up to four times that of the pre-training; if
        a length was given, that one."""
        if self.asked_length:
            return self.asked_length
        whole = min(tokens + self.marks_around, 4 * self.model.spec.length, self.longest)
        return max(self.reading.length, whole)

    @property
    def head(self) -> nn.Module:
        return self.parts["head"]

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
        rows, lengths = self.encode_whole(texts)
        return rows, sum(length > one.size for one, length in zip(rows, lengths, strict=True))

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
        room = self.reading.length - self.around(bool(pairs))
        if room < 1:
            raise UserError(f"a length of {self.reading.length} leaves no room for text: give a larger --length.")
        for number, one in enumerate(whole, 1):
            if not one.size and self.reading.frame == "no":
                raise UserError(f"text {number} is empty: it has no tokens. Remove it from the data.")
        return [shorten(one, room) for one in whole], [one.size for one in whole]

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

    def batch(self, rows: Sequence[Encoded], other: Sequence[bool] = ()) -> TextBatch:
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
        return TextBatch(tokens, None if padded else lengths, segments if pairs else None)

    def line(self, row: Encoded, flip: bool) -> tuple[list[int], int]:
        """The ids of a row with its frame, and where the second text begins."""
        first, second = row
        if flip:
            assert self.partners is not None
            first = self.partners[first[::-1]].tolist()
        return self.model.layout.pair(first, second, separators=self.trained.separators, around=self.marks)

    def vectors(self, batch: TextBatch, sigma: Float[Tensor, " b"] | None = None) -> Float[Tensor, "b d"]:
        """One vector for each row; `sigma`: the noise level of each, of clean text 0."""
        tokens, lengths, segments = batch
        if self.model.spec.shown_sigma and sigma is None:
            sigma = torch.zeros(len(tokens), device=tokens.device)
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

    def judge(self, *strands: TextBatch, sigma: Float[Tensor, " b"] | None = None) -> Float[Tensor, "b k"]:
        """The outputs of rows: logits of the labels, or numbers in units of their spread; the mean of the strands."""
        vectors = [self.vectors(one, sigma) for one in strands]
        mean = vectors[0] if len(vectors) == 1 else (vectors[0] + vectors[1]) / 2
        return self.head(F.dropout(mean, self.dropout, self.training)).float()

    def forward(
        self,
        strands: Sequence[TextBatch],
        targets: Float[Tensor, " b"],
        sigma: Float[Tensor, " b"] | None = None,
    ) -> tuple[Nats, None]:
        """The loss of rows, for the training loop."""
        losses = self.answer.losses(self.judge(*strands, sigma=sigma), targets)[:, None]
        return Nats(losses, losses), None

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
        """log p(label | x_t) from embeddings, so that gradients with respect to them exist: for guidance."""
        hidden = hidden_states(self.backbone, embedded, sigma, lengths=lengths)
        return self.head(self.backbone.pool(hidden, lengths)).log_softmax(-1)

    def stored(self) -> StoredHead:
        """The head, and a new pooler, as they are written."""
        tensors = {
            name.removeprefix("head."): tensor.detach().cpu().contiguous()
            for name, tensor in self.parts.state_dict().items()
        }
        return StoredHead(self.answer, self.reading, self.trained, tensors)

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
                outputs = self.judge(*(one.to(self.backbone.device) for one in strands)).cpu()
            yield some, outputs

    def answers(self, rows: Sequence[Encoded], *, batch: int = 64) -> Float[Tensor, "n k"]:
        """The probabilities of the labels of every row, or its number."""
        whole = torch.zeros(len(rows), self.answer.outputs, dtype=torch.float64)
        for some, outputs in self.outputs(rows, batch=batch):
            whole[some] = outputs.double()
        return self.answer.values(whole)

    def predict(self, texts: Sequence[Text], *, batch: int = 64) -> list[Prediction]:
        rows, _ = self.encode(texts)
        return [self.answer.prediction(one) for one in self.answers(rows, batch=batch).tolist()]

    @classmethod
    def load(cls, path: str | Path, *, device: str = "cpu", dtype: str = "auto") -> "Predictor":
        """What `unmask classify` wrote: its folder, or the folder of one of its models."""
        return of_model(checkpoint.load(path, device=device, dtype=dtype, headed=False))


def of_model(model: Model) -> Predictor:
    """The predictor of a checkpoint that has a head."""
    return with_head(model, stored_head(model.folder, model.spec.width))


def load_guide(folder: str | Path, model: Model) -> Predictor:
    """The classifier in a folder, on the trunk of its model; refuses another vocabulary or another model."""
    return with_head(replace(model, network=twin(model.network)), stored_guide(Path(folder), model))


def with_head(model: Model, head: StoredHead) -> Predictor:
    predictor = Predictor(model, head.answer, head.reading, trained=head.trained)
    names = predictor.parts.state_dict().keys()
    predictor.parts.load_state_dict({name: head.tensors[name.removeprefix("head.")] for name in names})
    predictor.to(model.device)
    return predictor.eval().requires_grad_(False)


def twin(network: Backbone) -> Backbone:
    """The same weights in the same memory, with separate caches: those of inference mode allow no gradient."""
    other = skeleton(network.spec)
    other.load_state_dict(network.state_dict(), assign=True)
    return other.freeze()


def write_predictor(folder: Path, predictor: Predictor, note: Mapping[str, Any]) -> None:
    """Write the files of a predictor into a folder that is not yet visible; `note` is added to its own."""
    model = predictor.model
    whole = Denoiser(predictor.backbone, model.objective, parts=model.parts, state=model.state)
    known = {"objective": describe_settings(model.objective), "step": model.step, "ema": False}
    known |= {"settings": dict(model.settings)}
    checkpoint.write(folder, whole, known, mask=model.mask, tokenizer=predictor.tokenizer, new_head=model.new_head)
    write_head(folder, predictor.stored(), note)
