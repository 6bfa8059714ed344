"""Describe a model: its network, cost, tokenizer and self-test; without a model, what is installed here.

unmask inspect                                      versions, devices, and what to install for what
unmask inspect stories
unmask inspect kuleshov-group/mdlm-owt
unmask inspect kuleshov-group/mdlm-owt#main
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated

import tyro

from unmask.cli.installation import print_installation
from unmask.hub import origin_of
from unmask.model import cost
from unmask.model.checkpoint import load
from unmask.model.model import Model
from unmask.settings import described


@dataclass(frozen=True)
class Settings:
    model: Annotated[str, tyro.conf.Positional] = ""  # a folder, or a name on the hub: owner/name#REVISION


def facts(model: Model) -> Iterator[tuple[str, str]]:
    a = model.spec
    yield "checkpoint", str(model.folder)
    if (origin := origin_of(model.folder)) is not None:
        yield "from the hub", origin
    yield "objective", ", ".join(f"{name} {value}" for name, value in described(model.objective).items())
    yield "network", ", ".join(f"{name} {value}" for name, value in {"name": a.name, **asdict(a)}.items())  # type: ignore[call-overload]
    yield "mask", str(model.mask)
    yield "parameters", f"{model.num_parameters:,}"
    if broken := [name for name, weights in model.network.named_parameters() if not weights.isfinite().all()]:
        more = f" and {len(broken) - 3:,} more" if len(broken) > 3 else ""
        yield "warning", f"NaN or infinite weights in {', '.join(broken[:3])}{more}: this model cannot be used"
    yield "forward pass", f"{a.flops() / 1e6:,.1f} MFLOP per token, logits at all positions"
    yield "training step", f"{cost.training_flops(a) / 1e6:,.1f} MFLOP per token, half of the tokens hidden"
    yield "memory, inference", f"about {cost.inference_bytes(a) / 1e6:,.0f} MB for one row of {a.length} tokens"
    yield (
        "memory, training",
        f"about {cost.training_bytes(a, batch=1) / 1e6:,.0f} MB for one row of {a.length} tokens",
    )
    tokenizer = model.tokenizer
    if tokenizer is None:
        yield "tokenizer", "none: works on token ids only"
    else:
        yield "tokenizer", f"{tokenizer.size} ids, fingerprint {tokenizer.fingerprint[:12]}"
    if model.step is not None:
        yield "step", f"{model.step:,}" + (" (EMA weights)" if model.ema else "")
    if model.self_test is None:
        yield "self-test", "none recorded (`unmask convert` adds one)"
    else:
        yield "self-test", f"passed: largest difference {model.self_test:.1e}"


def run(settings: Settings) -> None:
    if not settings.model:
        return print_installation()
    rows = list(facts(load(settings.model)))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
