"""`FLAG help`: the names that a flag takes, a line each, from where they are registered."""

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import pairwise, takewhile
from typing import Any

from unmask.cli.help import LEFT
from unmask.cli.stored_help import has_extensions, is_known, read_stored
from unmask.registry import Registry, own_fields, spell_value

NAMES = {  # a flag, of any verb or of the one before it, and where its names are: a registry, a mapping, a function
    "--sampler": "unmask.sampling.policy:POLICIES",
    "--samplers": "unmask.sampling.policy:POLICIES",
    "--cache": "unmask.sampling.stale:CACHES",
    "--caches": "unmask.sampling.stale:CACHES",
    "--objective.name": "unmask.diffusion.objective:OBJECTIVES",
    "--objective.schedule": "unmask.diffusion.schedule:SCHEDULES",
    "--objective.times": "unmask.diffusion.times:TIMES",
    "--model.name": "unmask.model.backbone:BACKBONES",
    "--optim.name": "unmask.training.optim:OPTIMIZERS",
    "--optimizer": "unmask.training.optim:OPTIMIZERS",
    "--pack": "unmask.text.layout:LAYOUTS",
    "--template": "unmask.text.corpus.chat_template:NAMED",
    "--documents": "unmask.text.corpus.documents:UNITS",
    "prepare --tokenizer": "unmask.text.tokens.vocabulary:KINDS",
    "train --tokenizer": "unmask.text.tokens.vocabulary:KINDS",
    "--data": "unmask.text.corpus.named:NAMED",
    "--plan": "unmask.training.machines:DEVICES",
    "--dialect": "unmask.model.format:FORMATS",
    "convert --to": "unmask.model.format:written_formats",
    "--estimator": "unmask.evaluation.likelihood.estimators:estimator_names",
    "--policy": "unmask.evaluation.likelihood.estimators:POLICIES",
    "--detokenize": "unmask.text.corpus.detokenize:DETOKENIZERS",
    "--suite": "unmask.evaluation.likelihood.zero_shot:SETS",
    "--definition": "unmask.evaluation.quality.perplexity:MEANS",
    "--judge": "unmask.evaluation.quality.judges:JUDGES",
    "--protocol": "unmask.training.protocols:PROTOCOLS",
    "--metrics": "unmask.training.scores:SCORES",
}


def listed_names(verb: str, rest: Sequence[str]) -> str | None:
    """The names that a command line asks for, after the help of their flag; None: it asks for none."""
    words = [part for word in rest for part in (word.split("=", 1) if word.startswith("--") else [word])]
    for typed, value in pairwise(words):
        flag = typed.replace("_", "-")
        if (
            value == "help"
            and flag.startswith("--")
            and (is_known(flag, read_stored()[verb]["flags"]) or has_extensions())
        ):
            option = option_of(verb, flag)
            if names := names_of(verb, flag) or dict.fromkeys(choices(option), ""):
                width = max(map(len, names))
                return "\n".join([option, *(f"  {name:<{width}}  {about}".rstrip() for name, about in names.items())])
    return None


def option_of(verb: str, flag: str) -> str:
    """A flag with its help in one line, as the help of the verb has it."""
    lines = read_stored()[verb]["help"].split("\n")
    for number, line in enumerate(lines):
        if flag in re.findall(r"--[\w.-]+", line.split("  ")[1] if line.startswith("  ") else ""):
            more = takewhile(lambda line: line.startswith(" " * LEFT), lines[number + 1 :])
            return re.sub(" {2,}", "  ", " ".join([line.strip(), *map(str.strip, more)]))
    return flag


def choices(option: str) -> list[str]:
    """The values in braces of a flag's help; none: it takes others."""
    braces = re.search(r"^\S.*? \{(\S+)\}", option.split("  ")[0])
    return braces[1].split(",") if braces else []


def names_of(verb: str, flag: str) -> dict[str, str]:
    """Every name that a flag takes, with a line about it; none: no names are registered for it."""
    bare = flag.replace("--text.", "--")
    place = NAMES.get(f"{verb} {bare}") or NAMES.get(bare)
    if place is None:
        return {}
    module, _, variable = place.partition(":")
    known = getattr(import_module(module), variable)
    known = known() if callable(known) else known
    if isinstance(known, Registry):
        return {name: about_member(known, name) for name in sorted(known)}
    return {name: about_value(value) for name, value in known.items()}


def about_member(registry: Registry[Any], name: str) -> str:
    """A line about a component, with the fields that can be set in the same word."""
    entry = registry.entry(name)
    fields = ", ".join(own_fields(entry.kind)) if registry.inline else ""
    return (entry.about or first_line(entry.kind)) + (f" ({fields})" if fields else "")


def about_value(value: Any) -> str:
    """A line about a value that has a name: itself, its title, its settings, or what its function does."""
    if isinstance(value, str):
        return value
    if title := getattr(value, "title", None):
        return title
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {spell_value(one)}" for name, one in value.items()) or "the defaults"
    return first_line(value)


def first_line(value: Any) -> str:
    return (value.__doc__ or "").split("\n")[0].rstrip(".")
