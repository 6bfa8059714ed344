"""Sampling: our samplers against the reference's cached one, against the limit, and against each other.

    python bench/sampling.py                        all three tables, both sizes, batches 1 and 32
    python bench/sampling.py --only small --batches 1 --rival-steps 20 --samples 2     a quick look
    python bench/sampling.py --model runs/mine --judge runs/judge                      with texts of a trained model

1. The rival is the reference's `ddpm_cache` with T = 1000: head, parameterization and noise for every position in
   every step, on the same network and weights. It and ours are run in turns, a piece of each at a time, so that a
   busy moment hits both alike. Of the rival's 1000 steps the first `--rival-steps` are run and their time scaled: a
   step costs the same, and asks the network with the same chance, at any time.
2. The limit is the trunk alone, asked for the same rows of the same canvases, timed beside each step.
3. Calls and time of every sampler at several budgets; with a trained model also the entropy of its texts, and their
   perplexity under a judge (an autoregressive checkpoint with the same tokenizer).
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import tyro
from torch import Tensor

from unmask.errors import UserError, unknown
from unmask.model.backbones.transformer import Architecture, Transformer
from unmask.model.checkpoint import load
from unmask.model.model import Model
from unmask.model.passes.whole import hidden_states, logits_at
from unmask.sampling.masked import ask, begin, fill
from unmask.sampling.policies.planned import Ancestral, FirstHitting
from unmask.sampling.policy import Policy, policy_of
from unmask.sampling.process import Step
from unmask.text.prompt.canvas import blank

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the reference's samplers, step by step, are there
from reference import samplers as literal

SIZES = {
    "small": Architecture(vocab=4096, length=128, width=256, blocks=6, heads=4, cond=128),
    "long": Architecture(vocab=8192, length=256, width=256, blocks=4, heads=4, cond=128),
}
T = 1000
FREE = ["first-hitting", "threshold", "certificate", "entropy-bound"]  # find their number of calls by themselves
BUDGETED = ["ancestral", "groups", "confidence", "margin", "entropy", "draw-then-keep", "klass"]


@dataclass(frozen=True)
class Settings:
    only: str = ""
    """One of the sizes: small (256 x 6, length 128, vocabulary 4096) or long (256 x 4, 256, 8192). Default: both."""
    batches: tuple[int, ...] = (1, 32)
    """Rows sampled at once."""
    rival_steps: int = 100
    """Steps of the rival that are really run; 1000: all of them."""
    samples: int = 8
    """Rows for the table of all samplers; 0: leave that table out."""
    budgets: tuple[int, ...] = (8, 32, 128)
    """Numbers of steps in that table."""
    model: str = ""
    """A trained checkpoint for the table of all samplers; without one, random weights and no quality."""
    judge: str = ""
    """An autoregressive checkpoint with the same tokenizer, to judge the model's texts."""


def random_network(a: Architecture) -> Transformer:
    """A network with random weights that are not zero: time does not depend on what it says."""
    torch.manual_seed(0)
    net = Transformer(a)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(0, 0.05)
    return net.freeze()


def everywhere(net: Transformer) -> literal.Network:
    """The network as the rival asks it: hidden states and logits of all positions."""
    return lambda x, sigma, rows: net.head(hidden_states(net, x, sigma)).flatten(0, 1)


def rival(net: Transformer, batch: int) -> Iterator[Tensor]:
    """The reference's cached sampler, with the noise it draws in every step."""
    a = net.spec
    generator = torch.Generator().manual_seed(0)
    noise = (torch.rand(batch, a.length, a.vocab, generator=generator) for _ in range(T))
    x = torch.full((batch, a.length), a.vocab - 1)
    return literal.cached(everywhere(net), x, steps=T, mask=a.vocab - 1, uniforms=noise)


@torch.inference_mode()
def turns(steps: Iterator[Step] | Iterator[Tensor], most: int) -> Iterator[float]:
    """The seconds of each of a loop's first turns."""
    for _ in range(most):
        start = time.perf_counter()
        if next(steps, None) is None:
            return
        yield time.perf_counter() - start


def interleaved(loops: dict[str, tuple[Iterator[float], int]]) -> dict[str, list[float]]:
    """Run loops side by side, each at such a pace that all end together: {name: (turns, about how many)}."""
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    running = set(loops)
    while running:
        name = min(running, key=lambda name: len(seconds[name]) / loops[name][1])
        turn = next(loops[name][0], None)
        if turn is None:
            running.remove(name)
        else:
            seconds[name].append(turn)
    return seconds


def against_rival(net: Transformer, batch: int, rival_steps: int) -> None:
    a = net.spec
    canvas = blank(batch, a.length, mask=a.vocab - 1)
    ours: dict[str, Policy] = {"first-hitting": FirstHitting(), f"ancestral T={T}": Ancestral(T)}
    loops = {
        name: (turns(fill(partial(logits_at, net), canvas, policy), T), a.length) for name, policy in ours.items()
    }
    loops["rival"] = (turns(rival(net, batch), rival_steps), rival_steps)
    seconds = interleaved(loops)
    whole = sum(seconds["rival"]) * T / rival_steps
    ran = "all steps" if rival_steps == T else f"{rival_steps} of {T} steps run"
    print(f"| {batch} | reference, cached, T={T} | {ran} | {whole:.2f} | grid-{T} | 1.0 |")
    for name, policy in ours.items():
        spent = sum(seconds[name])
        print(f"| {batch} | {name} | {len(seconds[name])} | {spent:.2f} | {policy.law} | {whole / spent:.1f} |")


def against_limit(net: Transformer, batch: int) -> None:
    """Beside each step the trunk alone, for the same question; the first calls warm up and do not count."""
    a = net.spec
    canvas, policy, warm = blank(batch, a.length, mask=a.vocab - 1), FirstHitting(), 3
    steps, trunk, whole = fill(partial(logits_at, net), canvas, policy), 0.0, 0.0
    for call in range(a.length):
        # Planned anew for the canvas as it stands, first-hitting asks for the very position that is next.
        question = ask(begin(canvas, policy))
        assert question is not None
        middle = time.perf_counter()
        with torch.inference_mode():
            hidden_states(net, question.tokens, question.sigma, rows=question.rows)
        start = time.perf_counter()
        canvas = next(steps).canvas
        end = time.perf_counter()
        if call >= warm:
            trunk, whole = trunk + start - middle, whole + end - start
    ms = 1e3 / (a.length - warm)
    print(f"| {batch} | {a.length} | {whole * ms:.2f} | {trunk * ms:.2f} | {whole / trunk:.3f} |")


def entropy(tokens: Tensor) -> float:
    """The mean over rows of the entropy of their tokens, in nats: low where a text repeats itself."""
    rows = [row.unique(return_counts=True)[1].double() / len(row) for row in tokens]
    return sum(float(-(p * p.log()).sum()) for p in rows) / len(rows)


def perplexity(judge: Model, tokens: Tensor) -> float:
    """Of the texts under the judge, the first token of each given."""
    log_p = torch.cat([judge.log_probs(row[None])[:, :-1] for row in tokens])
    return float((-log_p.gather(-1, tokens[:, 1:, None])).mean().exp())


def everything(net: Transformer, mask: int, judge: Model | None, settings: Settings) -> None:
    """Every sampler at several budgets."""
    print("\n| sampler | steps | calls | seconds | tokens/s | entropy | judge ppl | law |\n" + "|---" * 8 + "|")
    wanted: list[tuple[str, int | None]] = [(name, None) for name in FREE]
    wanted += [(name, steps) for name in BUDGETED for steps in settings.budgets]
    canvas = blank(settings.samples, net.spec.length, mask=mask)
    for name, steps in wanted:
        policy = policy_of(name, steps=steps)
        start = time.perf_counter()
        *_, end = fill(partial(logits_at, net), canvas, policy)
        spent = time.perf_counter() - start
        spread = f"{entropy(end.canvas.tokens):.3f}" if settings.model else "-"
        judged = f"{perplexity(judge, end.canvas.tokens):.1f}" if judge else "-"
        row = (name, steps or "-", end.call, f"{spent:.2f}", f"{canvas.tokens.numel() / spent:.0f}", spread, judged)
        print("|", " | ".join(map(str, row)), "|", policy.law, "|")


def subject(settings: Settings) -> tuple[Transformer, int, Model | None]:
    """The network and mask for the table of all samplers, and the judge."""
    if not settings.model:
        a = SIZES[settings.only or "small"]
        return random_network(a), a.vocab - 1, None
    model = load(settings.model)
    judge = load(settings.judge) if settings.judge else None
    if judge and judge.text_tokenizer().fingerprint != model.text_tokenizer().fingerprint:
        raise UserError("the judge reads other tokens than the model writes; train it with the model's tokenizer.")
    return model.network, model.mask, judge


def main(settings: Settings) -> None:
    if settings.only and settings.only not in SIZES:
        raise unknown("size", settings.only, SIZES)
    if settings.judge and not settings.model:
        raise UserError("a judge needs a trained model to judge: give --model.")
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    for name, a in SIZES.items():
        if settings.only and name != settings.only:
            continue
        net = random_network(a)
        print(f"\n{name}: {a.width} x {a.blocks}, length {a.length}, vocabulary {a.vocab}\n")
        print("| batch | sampler | calls | seconds | law | times faster |\n" + "|---" * 6 + "|")
        for batch in settings.batches:
            against_rival(net, batch, min(settings.rival_steps, T))
        print("\n| batch | calls | ms a call | ms of trunk | ratio |\n" + "|---" * 5 + "|")
        for batch in settings.batches:
            against_limit(net, batch)
    if settings.samples:
        everything(*subject(settings), settings)


if __name__ == "__main__":
    try:
        main(tyro.cli(Settings, description=__doc__))
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
