"""Protocols: published ways to fine-tune and to split, as defaults that other settings are laid over."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from unmask.errors import unknown
from unmask.registry import own_fields
from unmask.settings import groups_of, merge_settings
from unmask.text.corpus.benchmarks import Benchmark, benchmark_of

T = TypeVar("T")


GENES = {"seeds": 5, "dropout": 0.0, "strands": "published"}
RATES = {"batch": 256, "lr": 1e-3, "schedule": "cosine", "warmup": 0.01, "floor": 0.1, "weight_decay": 0.1}
CADUCEUS = GENES | RATES | {"held_out": 0.1, "epochs": 10.0}
MDLM = GENES | {"folds": 5, "steps": 16_000, "pool": "mean", "eval_every": 500}
GLUE = {"epochs": 3.0, "batch": 16, "lr": 2e-5, "schedule": "linear", "warmup": 0.0, "weight_decay": 0.0}
# A head alone, on noisy text: --guide.
GUIDE = {"steps": 500, "lr": 1e-2, "warmup": 0.0, "clip": 0.0, "dropout": 0.0, "eval_every": 100, "keep": "last"}
# The settings of published ways to fine-tune, by the names of their flags.
PROTOCOLS: dict[str, Mapping[str, Any]] = {
    "plain": {},  # the defaults of unmask
    # Genomic Benchmarks as the Caduceus paper: five random 90/10 splits, 10 epochs, the best epoch is tested
    "caduceus": CADUCEUS,
    "hyenadna": CADUCEUS | {"lr": 6e-4},  # the learning rate that the Caduceus paper has for HyenaDNA
    # Genomic Benchmarks as the MDLM paper: cross-validation with five folds, 16,000 steps, mean pooling
    "mdlm": MDLM,
    # GLUE as the MDLM paper: 3 epochs of run_glue with batches of 16, the last epoch, scored on the dev set
    "glue": GLUE | {"length": 128, "keep": "last"},
}


def protocol_of(name: str, data: str) -> str:
    """The protocol by its name; auto: that of the benchmark, if the data is one."""
    if name == "auto":
        benchmark = named_benchmark(data)
        return "plain" if benchmark is None else benchmark.protocol
    if name not in PROTOCOLS:
        raise unknown("protocol", name, PROTOCOLS)
    return name


def named_benchmark(data: str) -> Benchmark | None:
    """The benchmark that the data is, unless there is a file of that name."""
    return None if Path(data).exists() else benchmark_of(data)


def usual_settings(name: str, data: str, *, guide: bool = False) -> Mapping[str, Any]:
    """The settings of a protocol, with the published length of the benchmark, if the data is one that has it."""
    if guide:
        return GUIDE
    settings, benchmark = PROTOCOLS[protocol_of(name, data)], named_benchmark(data)
    return (
        {"length": benchmark.length, **settings}
        if settings and benchmark is not None and benchmark.length
        else settings
    )


def with_flat(settings: T, values: Mapping[str, Any]) -> T:
    """The settings with some values replaced; those of a table inside by their own names: lr for tune.lr."""
    nested: dict[str, Any] = {}
    own = set(own_fields(type(settings)))
    tables = groups_of(settings)
    inside = {name: table for table in tables for name in own_fields(type(getattr(settings, table)))}
    for name, value in values.items():
        value = list(value) if isinstance(value, tuple) else value
        if name in own and name not in tables:
            nested[name] = value
        elif name in inside:
            nested.setdefault(inside[name], {})[name] = value
        else:
            raise unknown("setting", name, {*own, *inside} - set(tables))
    return merge_settings(settings, nested)
