"""Measure a model on text: rows and an estimator in, a number with its error bars and record out."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch

from unmask.errors import UserError
from unmask.evaluation.likelihood import error_bars, estimators, pairs
from unmask.evaluation.likelihood.estimators import Estimator
from unmask.evaluation.likelihood.passes import Tally, evaluate, on_cluster, summary
from unmask.evaluation.record import record
from unmask.model.denoiser import NetworkView
from unmask.model.model import Model
from unmask.model.room import check_room
from unmask.processes.cluster import Cluster
from unmask.processes.team import Team
from unmask.text.corpus.tokenized import TokenizedText
from unmask.text.corpus.turns import Turn
from unmask.text.layout import cut
from unmask.text.row import Role, Row
from unmask.text.stretch import Document, tokens_fingerprint

T = TypeVar("T")
UNITS = {
    "nats": "all scored text",
    "nats_per_token": "per token of the model's tokenizer",
    "perplexity": "per token of the model's tokenizer",
    "perplexity_per_word": "per word of the text, between white space",
    "bits_per_byte": "per byte of the text in UTF-8",
}
LOGITS = 1 << 29  # numbers of a row's logits, at most: 2 GB
PASSES = 4  # the default, if neither passes nor precision nor seconds are given


@dataclass(frozen=True)
class How:
    """How the text is scored."""

    estimator: str = "auto"  # count, time, steps, order, weighted, duel, pseudo; block, exact-bound, likelihood
    pack: str = "auto"  # rows: stream, wrap (as the paper), rows (a document each), windows; auto: as trained
    length: int = 0  # tokens per row; 0: the model's length, or as many as have 2 GB of logits
    stride: int = 0  # tokens from one row to the next; the overlap is context; 0: no overlap
    separate: bool = True  # put an eos after each document
    rows: int = 0  # rows to score, spread evenly over the data; 0: all
    passes: int = 0  # passes over each row; 0: 4, or as many as --precision or --seconds need
    precision: float = 0.0  # stop when the Monte Carlo error, in nats per token, is below this; 0: off
    seconds: float = 0.0  # stop after this many seconds, with the result so far; 0: off
    seed: int = 0  # random seed
    batch_tokens: int = 8192  # tokens per forward pass
    steps: int = 0  # time steps T of the estimators steps and d3pm; 0: as in training, else 1000
    policy: str = "confidence"  # duel: order of positions: confidence, margin, entropy, left
    reveal: int = 1  # duel: tokens revealed per forward pass

    def __post_init__(self) -> None:
        for name in ("length", "stride", "rows", "passes", "precision", "seconds", "steps"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"--{name} must be 0 or more and finite, not {getattr(self, name)}.")


@dataclass(frozen=True)
class Measurement:
    """A measurement to run: a model, rows of text and an estimator."""

    model: Model
    passages: Sequence[Row]
    estimator: Estimator
    how: How  # with every `auto` and 0 resolved
    data: Mapping[str, Any]  # for the record
    by_document: bool = True  # each row belongs to one document


def measurement_of(model: Model, data: TokenizedText, how: How) -> Measurement:
    """The rows of some documents, and the estimator, for a model."""
    how, estimator = settle_measurement(model, how)
    layout, stride = model.layout.evaluated(how.pack), how.stride or None
    passages, dropped = cut(data.documents, layout, length=how.length, stride=stride, separate=how.separate)
    # A memory goes from row to row: the first rows then, not some of all.
    chosen = passages[: how.rows or None] if model.spec.carries else spread_evenly(passages, how.rows)
    about = {
        "name": data.name,
        "sha256": data.sha256,
        "split": data.split,
        "documents": len(data.documents),
        "bytes_are": data.bytes_are,
        "rows": len(chosen),
        "rows_left_out": len(passages) - len(chosen),
        "tokens_dropped": dropped,
        "replaced": dict(data.replaced),
    }
    return Measurement(model, chosen, estimator, how, about, layout.apart)


def answers(
    model: Model, entries: Sequence[tuple[str | Sequence[Turn], str]], how: How, *, data: Mapping[str, Any]
) -> Measurement:
    """Answers to prompts, of one turn or several, one row each: the prompt is given, the answer is scored."""
    how, estimator = settle_measurement(model, how)
    tokenizer, passages = model.text_tokenizer(), list[Row]()
    for number, (prompt, answer) in enumerate(entries):
        before = given_ids(model, prompt)
        (ids,) = tokenizer.encode_batch([answer])
        document = Document.of(answer, ids)
        if model.layout.leaves_out(before, document, length=how.length):
            continue
        row = model.layout.exchange(before, document, length=how.length, number=number)
        if len(ids) and row.scored > 0 and (row.frozen[0] or not model.objective.leads):
            passages.append(row)
    if not passages:
        raise UserError(f"{data['name']} holds no answers to score.")
    chosen = spread_evenly(passages, how.rows)
    about = {"sha256": tokens_fingerprint(passages), "rows": len(chosen), "rows_left_out": len(entries) - len(chosen)}
    return Measurement(model, chosen, estimator, replace(how, pack="rows"), {**data, **about})


def given_ids(model: Model, given: str | Sequence[Turn]) -> list[int]:
    """What is given before an answer: a text, or messages; a model without turns reads them as one text."""
    layout, tokenizer = model.layout, model.text_tokenizer()
    if isinstance(given, str):
        return layout.asked(layout.question(tokenizer, given))
    if layout.answers:
        return layout.conversation(tokenizer, given)
    return [int(id) for ids in tokenizer.encode_batch([turn.text for turn in given]) for id in layout.asked(ids)]


def of_pairs(model: Model, entries: Sequence[Mapping[str, Any]], how: How, *, data: Mapping[str, Any]) -> Measurement:
    """The sentences of minimal pairs, good and bad in turn; masked models are scored by pseudo-likelihood."""
    if how.estimator == "auto" and model.objective.facts.masked_lm:
        how = replace(how, estimator="pseudo")
    how, estimator = settle_measurement(model, how)
    passages = pairs.sentence_rows(entries, model)
    about = {"sha256": tokens_fingerprint(passages), "pairs": len(entries)}
    return Measurement(model, passages, estimator, replace(how, pack="rows"), {**data, **about})


def settle_measurement(model: Model, how: How) -> tuple[How, Estimator]:
    """Replace every `auto` and 0 by its value for this model."""
    steps = how.steps or model.objective.steps or 1000
    name = how.estimator
    if name == "auto":  # what bounds −log p: a masked language model's own loss does not
        name = model.objective.bounded().estimator
    estimator = estimators.estimator(
        name,
        objective=model.objective,
        steps=how.steps,
        policy=how.policy,
        reveal=how.reveal,
        budget=how.batch_tokens,
        parts=model.parts,
        state=model.state,
    )
    length = how.length or min(model.spec.length, max(2, LOGITS // model.spec.vocab))
    rows = max(1, how.batch_tokens // length)
    check_room(model.objective, rows=rows, vocab=model.spec.vocab, less="--batch-tokens")
    pack = model.layout.evaluated(how.pack).word
    passes = how.passes
    if not estimator.chance:
        passes = 1
    elif not (passes or how.precision or how.seconds):
        passes = PASSES
    how = replace(how, estimator=estimator.name, pack=pack, length=length, steps=steps, passes=passes)
    return how, estimator


def spread_evenly(things: Sequence[T], number: int) -> Sequence[T]:
    """`number` of the things, evenly spread; 0: all."""
    if not number or number >= len(things):
        return things
    return [things[i * len(things) // number] for i in range(number)]


def run_measurement(work: Measurement, team: Team | None = None, cluster: Cluster | None = None) -> Iterator[Tally]:
    """Score rows until the precision, the time or the number of passes is reached; yields after every batch.

    The processes of a team must stop together, so a team checks the time only after a complete pass.
    """
    how, began = work.how, time.perf_counter()
    for tally in evaluate(
        NetworkView(work.model.network),
        work.passages,
        work.estimator,
        mask=work.model.mask,
        seed=how.seed,
        budget=how.batch_tokens,
        device=work.model.device,
        team=team,
        remote=None if cluster is None else on_cluster(cluster),
    ):
        yield tally
        late = bool(how.seconds) and time.perf_counter() - began >= how.seconds
        if team is not None and team.world > 1:
            late = tally.complete and bool(how.seconds) and bool(team.sum(torch.tensor(float(late))) > 0)
        if late:
            return
        if tally.complete and how.passes and tally.whole >= how.passes:
            return
        # Two passes at least: one alone cannot separate Monte Carlo error from the differences between rows.
        if tally.complete and how.precision and tally.whole > 1 and summary(tally).standard_error <= how.precision:
            return


def result(work: Measurement, tally: Tally, *, seconds: float, **more: Any) -> dict[str, Any]:
    """The result as an object: the numbers, their error bars and the record."""
    likelihood = summary(tally, by_document=work.by_document)
    number = {
        **asdict(likelihood),
        "perplexity": likelihood.perplexity,
        "perplexity_interval": likelihood.perplexity_interval,
        "nats": likelihood.nats,
        "perplexity_per_word": likelihood.perplexity_per_word,
        "bits_per_byte": likelihood.bits_per_byte,
        "units": UNITS,
        "seconds": round(seconds, 3),
    }
    about = record(work.model, seed=work.how.seed, settings=settings_of(work.how), data=dict(work.data))
    about["passes"] = likelihood.passes
    return finite({**more, **number, "record": about})


def settings_of(how: How) -> dict[str, Any]:
    return {name: value for name, value in asdict(how).items() if name != "seed"}


def finite(content: Any) -> Any:
    """JSON has no infinity: an error bar that cannot be estimated becomes null."""
    if isinstance(content, Mapping):
        return {key: finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def by_row(tally: Tally, *, tokens: bool = False, by_document: bool = False) -> Iterator[dict[str, Any]]:
    """The nats of each row, or of each document, averaged over its passes; `tokens` adds the nats of each token."""
    nats = np.stack(tally.nats)
    held: dict[int, dict[str, Any]] = {}
    for number, passage in enumerate(tally.passages):
        seen = ~np.isnan(nats[:, number])
        if not seen.any():
            continue
        paid = nats[seen, number]
        total = error_bars.log_mean(paid[:, None])[0] if tally.estimator.weighted else paid.mean()
        key = passage.document if by_document else number
        line = held.setdefault(
            key,
            {
                "document": passage.document,
                "nats": 0.0,
                "tokens": 0,
                "words": 0.0,
                "bytes": 0.0,
                "passes": int(seen.sum()),
            },
        )
        line["nats"] += float(total)
        line["tokens"] += passage.scored
        line["words"] += passage.words
        line["bytes"] += passage.bytes
        if tokens and not tally.estimator.weighted:
            counted = passage.roles == Role.FREE
            each = tally.each[number][counted] / seen.sum()
            each[-1] += tally.each[number][passage.roles == Role.END].sum() / seen.sum()  # part of the document's end
            line.setdefault("ids", []).extend(passage.tokens[counted].tolist())
            line.setdefault("token_nats", []).extend(each.tolist())
    yield from held.values()
