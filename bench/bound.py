"""Rows needed for the same standard error: the default estimator against the reference's.

    python bench/bound.py                                 trains a small model on made-up text first (about a minute)
    python bench/bound.py --model runs/mine --data text/  on a model and a text of yours

An evaluation of some rows is repeated with other seeds; the variance of its result says how many rows (one forward
pass each) an estimator needs for a standard error of 0.01 nats a token. Nothing else is assumed. The reference looks
at each row at one time, spread over batches of 16 rows.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import tyro

from unmask.diffusion.clean import CleanRows
from unmask.diffusion.mdlm import MDLM
from unmask.diffusion.times import Count, away_from_zero, stratified_times
from unmask.evaluation.likelihood.estimators import estimator
from unmask.evaluation.likelihood.measure import spread_evenly
from unmask.evaluation.likelihood.passes import evaluate
from unmask.model.backbones.transformer import Architecture, Transformer
from unmask.model.checkpoint import load
from unmask.random import Noise
from unmask.text.corpus.tokenized import read_documents
from unmask.text.layout import Marks, cut, layout_of
from unmask.text.row import Row
from unmask.text.stretch import Document
from unmask.text.tokens.vocabulary import build_tokenizer

AIM = 0.01  # nats a token
BATCH = 16  # rows over which the reference spreads its times


@dataclass(frozen=True)
class Settings:
    model: str = ""
    """A checkpoint; without one a small model is trained."""
    data: str = ""
    """Text for the model."""
    rows: int = 64
    """Rows in an evaluation."""
    repeats: int = 200
    """Evaluations of each estimator."""
    seconds: float = 60.0
    """Training time of the small model."""


def sentence(source: random.Random) -> str:
    """A sentence of a small grammar in which words agree over a distance."""
    plural = source.random() < 0.5
    noun = source.choice(["cat", "dog", "bird", "child", "teacher", "river"])
    verb = source.choice(["see", "find", "like", "know", "help"])
    other = source.choice(["stone", "tree", "house", "letter", "song"])
    where = source.choice(["near the lake", "in the garden", "under the old bridge", "after the long winter"])
    end = "" if plural else "s"
    return f"{'those' if plural else 'that'} {noun}{'s' if plural else ''} {where} {verb}{end} the {other}. "


def small_model(seconds: float) -> tuple[Transformer, int, list[Row]]:
    """A network trained on made-up sentences for some time, its mask, and rows it has not seen."""
    source = random.Random(0)
    text = "".join(sentence(source) for _ in range(20_000))
    tokenizer = build_tokenizer("character", [text])
    ids = np.array(tokenizer.encode(text), np.int64)
    learn, held = torch.from_numpy(ids[: -len(ids) // 10]), ids[-len(ids) // 10 :]
    torch.manual_seed(0)
    network = Transformer(Architecture(vocab=tokenizer.size, length=128, width=96, blocks=3, heads=4))
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3)
    began, step = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        start = torch.randint(len(learn) - 128, (16,))
        x0 = learn[start[:, None] + torch.arange(128)]
        noise = Noise(stratified_times(torch.rand(16)), torch.rand(16, 128))
        nats = MDLM(times=Count()).nats(network, CleanRows(x0, noise=noise, mask=tokenizer.mask)).loss
        optimizer.zero_grad()
        nats.mean().backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        step += 1
    print(f"trained {step} steps in {seconds:.0f} s: the last batch pays {nats.mean().item():.3f} nats a token")
    passages, _ = cut([Document(held, len(held))], layout_of("stream", Marks()), length=128)
    return network.freeze(), tokenizer.mask, passages


def reference(network: Transformer, passages: Sequence[Row], mask: int, seed: int) -> float:
    """One evaluation as the reference does it: t spread over batches of 16 rows, t ≥ 0.001, weight 1/t."""
    return by_time(network, passages, mask, seed, stratified_times)


def by_time(
    network: Transformer,
    passages: Sequence[Row],
    mask: int,
    seed: int,
    times: Callable[[torch.Tensor], torch.Tensor],
) -> float:
    generator, total = torch.Generator().manual_seed(seed), 0.0
    x = torch.from_numpy(np.stack([passage.tokens for passage in passages])).long()
    for x0 in x.split(BATCH):
        t = away_from_zero(times(torch.rand(len(x0), generator=generator, dtype=torch.float64)))
        u = torch.rand(x0.shape, generator=generator, dtype=torch.float64)
        total += float(MDLM().nats(network, CleanRows(x0, noise=Noise(t, u), mask=mask)).bound.sum())
    return total / x.numel()


def ours(name: str) -> Callable[[Transformer, Sequence[Row], int, int], float]:
    def run(network: Transformer, passages: Sequence[Row], mask: int, seed: int) -> float:
        for tally in evaluate(network, passages, estimator(name), mask=mask, seed=seed):
            if tally.complete:
                break
        return float(tally.nats[0].sum() / sum(passage.scored for passage in passages))

    return run


ESTIMATORS = {
    "t, independent": lambda *given: by_time(*given, lambda u: u),
    "t, spread over 16 rows (the reference)": reference,
    "t, spread over all rows": ours("time"),
    "number of masks, spread over all rows (default)": ours("count"),
}


@torch.no_grad()
def main(settings: Settings) -> None:
    if settings.model:
        model = load(settings.model)
        network, mask = model.network, model.mask
        data = read_documents(settings.data, model.text_tokenizer())
        passages, _ = cut(
            data.documents, layout_of("stream", Marks(eos=model.text_tokenizer().eos)), length=model.spec.length
        )
    else:
        with torch.enable_grad():
            network, mask, passages = small_model(settings.seconds)
    whole = [passage for passage in passages if len(passage.tokens) == len(passages[0].tokens)]
    rows = spread_evenly(whole, settings.rows)
    print(f"{settings.repeats} evaluations of {len(rows)} rows of {len(rows[0].tokens)} tokens")
    variance = {}
    print(f"{'estimator':<48} {'mean':>8} {'deviation':>10} {'rows for ±' + str(AIM):>14}")
    for name, run in ESTIMATORS.items():
        numbers = np.array([run(network, rows, mask, seed) for seed in range(settings.repeats)])
        variance[name] = numbers.var(ddof=1)
        need = variance[name] * len(rows) / AIM**2
        print(f"{name:<48} {numbers.mean():8.4f} {numbers.std(ddof=1):10.4f} {need:14,.0f}")
    theirs, default = (variance[name] for name in list(ESTIMATORS)[1::2])
    around = np.exp(1.96 * np.sqrt(4 / (settings.repeats - 1)))  # of a ratio of two variances, about
    ratio = theirs / default
    print(
        f"the default needs {ratio:.2f} times fewer rows than the reference "
        f"(95 %: {ratio / around:.2f} to {ratio * around:.2f})"
    )


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
