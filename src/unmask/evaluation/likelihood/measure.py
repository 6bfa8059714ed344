"""A measurement: a model, some text and how to look at it, to a number with its record."""

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
from unmask.evaluation.likelihood.passes import Tally, evaluate, summary
from unmask.evaluation.record import record
from unmask.model.model import Model
from unmask.processes.team import Team
from unmask.text.corpus.passages import Cut, Passage, cut, fingerprint, given_and_answer
from unmask.text.corpus.rows import WAYS
from unmask.text.corpus.tokenized import Data

T = TypeVar("T")
PASSES = 4  # where neither passes nor precision nor seconds are asked for


@dataclass(frozen=True)
class How:
    """How to look at the text."""

    estimator: str = "auto"
    """count, time, steps, order, weighted, duel, pseudo (mdlm); d3pm; sedd; ar. auto: the best for the model."""
    pack: str = "auto"
    """Rows: stream, wrap (as in the paper), rows (one document each). auto: as the model was trained."""
    length: int = 0
    """Tokens in a row; 0: the model's."""
    stride: int = 0
    """Tokens from one row to the next; the overlap is context. 0: no overlap."""
    separate: bool = True
    """An eos after each document."""
    rows: int = 0
    """Rows to look at, spread evenly over the data; 0: all."""
    passes: int = 0
    """Passes over each row; 0: 4, or as many as --precision or --seconds need."""
    precision: float = 0.0
    """Stop when the standard error of chance, in nats per token, is below this."""
    seconds: float = 0.0
    """Stop after this time; what is done by then counts."""
    seed: int = 0
    batch_tokens: int = 8192
    """Tokens in a forward pass."""
    steps: int = 0
    """T, for the estimators steps and d3pm; 0: that of the training, or 1000."""
    policy: str = "confidence"
    """duel: where the sampler looks next: confidence, margin, entropy, left."""
    reveal: int = 1
    """duel: tokens revealed at a time."""

    def __post_init__(self) -> None:
        for name in ("length", "stride", "rows", "passes", "precision", "seconds", "steps"):
            if getattr(self, name) < 0:
                raise UserError(f"--{name} must be 0 or more, not {getattr(self, name)}.")


@dataclass(frozen=True)
class Work:
    """What is to be looked at, and with what."""

    model: Model
    passages: Sequence[Passage]
    estimator: Estimator
    how: How  # with nothing left to `auto`
    data: Mapping[str, Any]  # for the record


def prepared(model: Model, data: Data, how: How) -> Work:
    """The rows of some documents, and the estimator, for a model."""
    how, one = settled(model, how)
    tokenizer = model.text_tokenizer()
    shape = Cut(
        way=how.pack,
        length=how.length,
        stride=how.stride or None,
        separate=how.separate,
        bos=tokenizer.bos,
        eos=tokenizer.eos,
        causal=model.objective.facts.causal,
    )
    passages, dropped = cut(data.documents, shape)
    kept = spread(passages, how.rows)
    told = {
        "name": data.name,
        "sha256": data.sha256,
        "split": data.split,
        "documents": len(data.documents),
        "bytes_are": data.bytes_are,
        "rows": len(kept),
        "rows_left_out": len(passages) - len(kept),
        "tokens_dropped": dropped,
    }
    return Work(model, kept, one, how, told)


def answers(model: Model, entries: Sequence[tuple[str, str]], how: How, *, data: Mapping[str, Any]) -> Work:
    """Answers to prompts, one row each: the prompt is given, the answer is scored."""
    how, one = settled(model, how)
    tokenizer, lead = model.text_tokenizer(), lead_of(model)
    passages = []
    for number, (prompt, answer) in enumerate(entries):
        before, ids = tokenizer.encode_batch([prompt, answer])
        if len(ids) and (lead is not None or len(before) or not model.objective.facts.causal):
            passages.append(given_and_answer(before, ids, size=len(answer.encode()), number=number, lead=lead))
    if not passages:
        raise UserError(f"{data['name']} holds no answers to score.")
    kept = spread(passages, how.rows)
    about = {"sha256": fingerprint(passages), "rows": len(kept), "rows_left_out": len(entries) - len(kept)}
    return Work(model, kept, one, replace(how, pack="rows"), {**data, **about})


def of_pairs(model: Model, entries: Sequence[Mapping[str, Any]], how: How, *, data: Mapping[str, Any]) -> Work:
    """The sentences of minimal pairs, good and bad in turn; masked models are asked for the pseudo-likelihood."""
    if how.estimator == "auto" and can_leave_one_out(model):
        how = replace(how, estimator="pseudo")
    how, one = settled(model, how)
    passages = pairs.passages(entries, model.text_tokenizer(), lead=lead_of(model))
    about = {"sha256": fingerprint(passages), "pairs": len(entries)}
    return Work(model, passages, one, replace(how, pack="rows"), {**data, **about})


def lead_of(model: Model) -> int | None:
    """What a causal network is shown before the first token: bos, or eos where there is none."""
    tokenizer = model.text_tokenizer()
    return None if not model.objective.facts.causal else tokenizer.eos if tokenizer.bos is None else tokenizer.bos


def settled(model: Model, how: How) -> tuple[How, Estimator]:
    """Every `auto` and 0 replaced by what it stands for with this model."""
    steps = how.steps or model.objective.grid or 1000
    one = estimators.estimator(
        how.estimator,
        objective=model.objective,
        steps=how.steps,
        policy=how.policy,
        reveal=how.reveal,
        budget=how.batch_tokens,
        parts=model.parts,
        state=model.state,
    )
    length = how.length or model.spec.length
    pack = pack_of(model) if how.pack == "auto" else how.pack
    passes = how.passes
    if not one.chance:
        passes = 1
    elif not (passes or how.precision or how.seconds):
        passes = PASSES
    return replace(how, estimator=one.name, pack=pack, length=length, steps=steps, passes=passes), one


def pack_of(model: Model) -> str:
    """How the model's own rows were made; of a published model: as in the paper."""
    if model.packing in WAYS:
        return str(model.packing)
    marks = model.tokenizer is not None and None not in (model.tokenizer.bos, model.tokenizer.eos)
    return "wrap" if "model_type" in model.settings and marks else "stream"


def can_leave_one_out(model: Model) -> bool:
    """Whether the model predicts a token from all others, so that pairs are ranked by the pseudo-likelihood."""
    return model.objective.facts.infills and model.objective.facts.conditionals


def spread(things: Sequence[T], number: int) -> Sequence[T]:
    """So many of the things, evenly spread; 0: all."""
    if not number or number >= len(things):
        return things
    return [things[i * len(things) // number] for i in range(number)]


def measured(work: Work, team: Team | None = None) -> Iterator[Tally]:
    """Look until it is precise enough, or the time or the passes are used; yields after every batch.

    A team stops together, so it looks at the time only when a pass is complete.
    """
    how, began = work.how, time.perf_counter()
    for tally in evaluate(
        work.model.network.logits,
        work.passages,
        work.estimator,
        mask=work.model.mask,
        seed=how.seed,
        budget=how.batch_tokens,
        device=work.model.device,
        team=team,
    ):
        yield tally
        late = bool(how.seconds) and time.perf_counter() - began >= how.seconds
        if team is not None and team.world > 1:
            late = tally.complete and bool(how.seconds) and bool(team.sum(torch.tensor(float(late))) > 0)
        if late:
            return
        if tally.complete and how.passes and tally.whole >= how.passes:
            return
        # Two passes at least: one alone cannot tell chance from the difference between rows.
        if tally.complete and how.precision and tally.whole > 1 and summary(tally).standard_error <= how.precision:
            return


def result(work: Work, tally: Tally, *, seconds: float, **more: Any) -> dict[str, Any]:
    """The number as an object: what it is, its error bars, and its record."""
    likelihood = summary(tally, by_document=work.how.pack == "rows")
    number = {
        **asdict(likelihood),
        "perplexity": likelihood.perplexity,
        "perplexity_interval": likelihood.perplexity_interval,
        "bits_per_byte": likelihood.bits_per_byte,
        "seconds": round(seconds, 3),
    }
    kept = record(work.model, seed=work.how.seed, settings=settings_of(work.how), data=dict(work.data))
    kept["passes"] = likelihood.passes
    return finite({**more, **number, "record": kept})


def settings_of(how: How) -> dict[str, Any]:
    return {name: value for name, value in asdict(how).items() if name != "seed"}


def finite(content: Any) -> Any:
    """JSON knows no infinity: an error bar that cannot be had is null."""
    if isinstance(content, Mapping):
        return {key: finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def by_row(tally: Tally, *, tokens: bool = False, by_document: bool = False) -> Iterator[dict[str, Any]]:
    """What each row, or each document, paid, as an average over its passes; `tokens` adds the nats of each token."""
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
            key, {"document": passage.document, "nats": 0.0, "tokens": 0, "bytes": 0.0, "passes": int(seen.sum())}
        )
        line["nats"] += float(total)
        line["tokens"] += passage.scored
        line["bytes"] += passage.bytes
        if tokens and not tally.estimator.weighted:
            each = tally.each[number][passage.given :] / seen.sum()
            line.setdefault("ids", []).extend(passage.tokens[passage.given :].tolist())
            line.setdefault("token_nats", []).extend(each.tolist())
    yield from held.values()
