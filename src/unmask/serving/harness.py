"""A model for lm-evaluation-harness 0.4, registered as `unmask`.

    python -m unmask.serving.harness run --model unmask --model_args pretrained=runs/mine,passes=32 --tasks lambada

is the harness's own command line with this model added. For a masked model the reported number is a lower bound on
the log-likelihood, averaged over `passes` forward passes; for an autoregressive one it is the log-likelihood itself.
"""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from unmask.errors import UserError, install
from unmask.evaluation.likelihood import error_bars, measure
from unmask.evaluation.likelihood.estimators import level
from unmask.evaluation.likelihood.measure import How
from unmask.evaluation.likelihood.passes import Tally, evaluate
from unmask.model.checkpoint import load
from unmask.model.denoiser import NetworkView
from unmask.model.model import Model
from unmask.model.passes.whole import logits_at
from unmask.sampling.recipe import Recipe
from unmask.sampling.tasks.continuation import Sample, generate
from unmask.text.row import Row
from unmask.text.stretch import Document

try:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ImportError as error:
    needed = f"the harness needs lm-eval ({error}). Run: {install('eval')}"
    if __name__ == "__main__":
        print(f"unmask: {needed}", file=sys.stderr)
        sys.exit(2)
    raise UserError(needed) from None

TOKENS = 256  # generated where a task sets no number


@register_model("unmask")
class Harness(LM):
    """Answers the harness's three kinds of requests."""

    def __init__(
        self,
        pretrained: str,
        *,
        estimator: str = "auto",
        passes: int = 16,
        sampler: str | None = None,
        steps: int | None = None,
        seed: int = 0,
        batch_tokens: int = 8192,
        batch_size: int | str | None = None,  # the harness passes these two to every model
        max_batch_size: int | None = None,
        device: str | None = None,
        dialect: str = "",
    ) -> None:
        super().__init__()
        self.model = load(str(pretrained), dialect=dialect)
        self.tokenizer = self.model.text_tokenizer()
        if device and (torch.cuda.is_available() or not device.startswith("cuda")):  # its default is cuda
            self.model.network.to(device)
        wanted = How(estimator=estimator, passes=int(passes), seed=int(seed), batch_tokens=int(batch_tokens))
        self.how, self.estimator = measure.settle_measurement(self.model, wanted)
        self.recipe = Recipe(sampler=sampler, steps=steps, seed=int(seed), batch=1)

    @property
    def tokenizer_name(self) -> str:
        return self.tokenizer.fingerprint

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """log p(continuation | context), and whether greedy decoding from left to right gives the continuation."""
        passages = [self.row(*request.args) for request in requests]
        paid = iter(self.nats([passage for passage in passages if passage.scored]))
        answers = []
        for request, passage in zip(requests, passages, strict=True):
            answer = (-next(paid), greedy(self.model, passage)) if passage.scored else (0.0, True)
            self.cache_hook.add_partial("loglikelihood", request.args, answer)
            answers.append(answer)
        return answers

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """log p of whole texts; a text longer than the model's length is cut into adjacent pieces."""
        owners, passages = [], []
        for number, request in enumerate(requests):
            rows = self.text_rows(*request.args)
            owners += [number] * len(rows)
            passages += rows
        totals = np.bincount(np.array(owners, int), self.nats(passages), len(requests))
        answers = [-float(total) for total in totals]
        for request, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, answer)
        return answers

    def text_rows(self, text: str) -> list[Row]:
        """The rows of a whole text, as `evaluate` has them."""
        document = Document.of(text, np.array(self.tokenizer.encode(text), np.int64))
        return self.model.layout.text(document, length=self.model.spec.length)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The continuation of each context, up to the first of its stop texts."""
        texts = []
        for request in requests:
            context, options = request.args
            answer = self.continued(context, dict(options))
            self.cache_hook.add_partial("generate_until", request.args, answer)
            texts.append(answer)
        return texts

    def row(self, context: str, continuation: str) -> Row:
        """A continuation and as much of its context as the model can see."""
        # A space between the two belongs to the continuation, because tokens begin with a space.
        stripped = context.rstrip()
        continuation, context = context[len(stripped) :] + continuation, stripped
        before, ids = self.tokenizer.encode_batch([context, continuation])
        layout, length = self.model.layout, self.model.spec.length
        room = length - len(ids) - layout.extra
        if room < 0:
            raise UserError(f"a continuation has {len(ids)} tokens, and the model can see {length} at once.")
        before = before[len(before) - min(len(before), room) :]
        return layout.exchange(before, Document.of(continuation, ids), length=length)

    def nats(self, passages: Sequence[Row]) -> np.ndarray:
        """−log p of each passage in nats, the mean over the passes."""
        if not passages:
            return np.zeros(0)
        tally: Tally | None = None
        for tally in evaluate(
            NetworkView(self.model.network),
            passages,
            self.estimator,
            mask=self.model.mask,
            seed=self.how.seed,
            budget=self.how.batch_tokens,
            device=self.model.device,
        ):
            if tally.whole >= self.how.passes:
                break
        assert tally is not None
        nats = np.stack(tally.nats)
        return error_bars.log_mean(nats) if self.estimator.weighted else nats.mean(0)

    def continued(self, context: str, options: dict[str, Any]) -> str:
        """The model's continuation of a context."""
        stops = options.get("until") or []
        stops = [stops] if isinstance(stops, str) else list(stops)
        wanted = int(options.get("max_gen_toks", TOKENS))
        temperature = float(options.get("temperature", 0.0)) if options.get("do_sample") else 0.0
        layout, most = self.model.layout, self.model.spec.length
        document = layout.closed and layout.documents
        marks = layout.opening(document=document)
        wanted = min(wanted, most - len(layout.closing()) - 1)
        ids = self.tokenizer.encode(context)
        ids = ids[max(0, len(marks) + len(layout.closing()) + len(ids) + wanted - most) :]
        given = len(marks) + len(ids)
        recipe = self.recipe.changed(temperature=temperature)
        end = stops[0] if len(stops) == 1 else None
        whole = given + wanted + len(layout.closing())
        events = generate(self.model, recipe, length=whole, prompt=ids, until=end, document=document)
        sample = next(event for event in events if isinstance(event, Sample))
        drawn = sample.tokens[:-1] if sample.tokens[-1] in self.model.ends else sample.tokens
        text = self.tokenizer.decode(drawn)[len(self.tokenizer.decode(drawn[:given])) :]
        ends = [text.index(stop) for stop in stops if stop and stop in text]
        return text[: min(ends, default=len(text))]


@torch.no_grad()
def greedy(model: Model, passage: Row) -> bool:
    """Whether greedy decoding from left to right gives the passage's own token at every position."""
    x = torch.from_numpy(np.asarray(passage.tokens, np.int64))[None]
    x = x.to(model.device)
    free = np.flatnonzero(~passage.frozen).tolist()
    if model.objective.facts.causal:
        rows = torch.tensor(free, device=x.device)
        return bool((_best(model, x, x, torch.zeros(1), rows) == x[0, rows]).all())
    for at in free:
        x_t = x.clone()
        x_t[:, [place for place in free if place >= at]] = model.mask
        share = torch.tensor([(x.shape[1] - at) / (len(free) + 1)])
        if not bool(_best(model, x, x_t, level(share), torch.tensor([at], device=x.device)) == x[0, at]):
            return False
    return True


def _best(model: Model, x: torch.Tensor, x_t: torch.Tensor, sigma: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    logits = logits_at(model.network, x_t, sigma.to(x_t.device), rows, **model.objective.context(x))
    return logits.index_fill(1, torch.tensor([model.mask], device=x_t.device), -torch.inf).argmax(1)


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
