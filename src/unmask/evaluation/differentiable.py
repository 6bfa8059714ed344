"""log p of texts as a tensor with gradients: for preferences, rewards and losses of your own.

    model.network.requires_grad_(True)
    (better.value - worse.value).mean().backward()

For a model whose number is random (masked diffusion) the value is a lower bound on log p, and an unbiased estimate of
that bound: so is its gradient. Passes of one text have stratified noise. Equal arguments give equal noise: call twice
with one seed, for a model and its reference or for two answers of one length, and most of the noise cancels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from unmask.diffusion.clean import CleanRows
from unmask.errors import UserError
from unmask.evaluation.likelihood import draws
from unmask.evaluation.likelihood.estimators import Estimator
from unmask.evaluation.likelihood.measure import How, given_ids, settle_measurement
from unmask.evaluation.likelihood.passes import batches
from unmask.model.checkpoint import load
from unmask.model.denoiser import NetworkView
from unmask.model.model import Model
from unmask.random import Noise
from unmask.text.row import Row
from unmask.text.stretch import Document
from unmask.text.tokens.tokenizer import encode_given


@dataclass(frozen=True)
class LogLikelihood:
    """log p of some texts, or a lower bound on it."""

    value: Float[Tensor, " n"]  # nats; differentiable
    standard_error: Float[Tensor, " n"]  # Monte Carlo, in nats; 0: exact; infinite: of a single pass
    tokens: Float[Tensor, " n"]  # that were scored, the end of an answer included
    passes: int
    means: str


def log_likelihood(
    model: Model | str,
    texts: Sequence[str],
    *,
    given: Sequence[str] | None = None,
    passes: int = 4,
    estimator: str = "auto",
    seed: int = 0,
) -> LogLikelihood:
    """log p of each text, or of each answer to what is `given`, with gradients to the model's weights.

    model      gradients reach the weights that ask for them: model.network.requires_grad_(True), or an adapter
    given      a text before each of the texts, which is read and not scored
    passes     forward passes per text; an exact number takes one
    estimator  as for `unmask evaluate`: auto, count, time, order, weighted, duel, ...

    >>> unmask.log_likelihood("stories", ["The cat sat.", "Cat the sat."], passes=8).value
    """
    if isinstance(texts, str) or isinstance(given, str):
        raise UserError("give a list of texts: log_likelihood(model, [text], given=[prompt]).")
    if not texts or (given is not None and len(given) != len(texts)):
        raise UserError(f"give texts, each with its prompt; saw {len(texts)} texts and {len(given or ())} prompts.")
    if passes < 1:
        raise UserError(f"a likelihood needs at least one pass; saw {passes}.")
    model = model if isinstance(model, Model) else load(model)
    how, chosen = settle_measurement(model, How(estimator=estimator, passes=passes, seed=seed))
    rows = [scored_row(model, text, None if given is None else given[i], i) for i, text in enumerate(texts)]
    copies = how.passes if chosen.chance else 1
    columns: dict[int, Tensor] = {}
    for numbers, nats in score_batches(model, rows, chosen, copies, how):
        columns |= dict(zip(numbers, nats.sum(1), strict=True))
    paid = torch.stack([columns[number] for number in range(len(columns))]).view(len(rows), copies)
    tokens = torch.tensor([float(row.scored) for row in rows], device=paid.device)
    return LogLikelihood(combine_passes(paid, chosen), error_of(paid.detach(), chosen), tokens, copies, chosen.means)


def scored_row(model: Model, text: str, before: str | None, number: int) -> Row:
    """A text as `score` has it, or an answer to a prompt as `evaluate` has it."""
    tokenizer, layout, length = model.text_tokenizer(), model.layout, model.spec.length
    if before is not None:
        (ids,) = tokenizer.encode_batch([text])
        row = layout.exchange(given_ids(model, before), Document.of(text, ids), length=length, number=number)
        if row.scored and (row.frozen[0] or not model.objective.leads):
            return row
        raise UserError(f"text {number + 1} has no token that is scored: {text!r:.60}.")
    ids = np.array(encode_given(tokenizer, text), np.int64)
    document = Document(ids, len(text.encode("utf-8", "replace")))
    written = layout.text(document, length=max(length, len(ids) + layout.extra)) if len(ids) else []
    if not written:
        raise UserError(f"text {number + 1} has no token that is scored: {text!r:.60}.")
    return written[0]


def score_batches(
    model: Model, rows: Sequence[Row], estimator: Estimator, copies: int, how: How
) -> Iterator[tuple[list[int], Float[Tensor, "k l"]]]:
    """Nats of every token of each text in each pass, in batches; the number is that of text · copies + pass."""
    repeated = [row for row in rows for _ in range(copies)]
    times = np.concatenate([draws.when(how.seed, copies, number) for number in range(len(rows))])
    for some in batches(repeated, budget=how.batch_tokens, seed=how.seed):
        u = [draws.uniforms(how.seed, number, 0, len(repeated[number].tokens)) for number in some]
        noise = Noise(torch.from_numpy(times[some]), torch.from_numpy(np.stack(u)))
        tokens, frozen = (
            np.stack(part) for part in zip(*((repeated[i].tokens, repeated[i].frozen) for i in some), strict=True)
        )
        clean = CleanRows(
            torch.from_numpy(tokens.astype(np.int64)), noise, mask=model.mask, frozen=torch.from_numpy(frozen)
        )
        yield some, estimator.nats(NetworkView(model.network), clean.to(torch.device(model.device)))


def combine_passes(nats: Float[Tensor, "n k"], estimator: Estimator) -> Float[Tensor, " n"]:
    """log p: the mean over the passes, or for random orders the logarithm of the mean probability."""
    if estimator.weighted:
        return (-nats).logsumexp(1) - float(np.log(nats.shape[1]))
    return -nats.mean(1)


def error_of(nats: Float[Tensor, "n k"], estimator: Estimator) -> Float[Tensor, " n"]:
    """The standard error of `combined` over independent passes, for a logarithm of a mean to first order."""
    copies = nats.shape[1]
    if not estimator.chance:
        return torch.zeros_like(nats[:, 0])
    if copies == 1:
        return torch.full_like(nats[:, 0], torch.inf)
    if estimator.weighted:
        share = (-nats).softmax(1) * copies  # each pass's probability, relative to their mean
        return share.std(1) / copies**0.5
    return nats.std(1) / copies**0.5
