"""What a name on the command line may be: `--sampler help` lists every sampler with a line each."""

from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import pairwise

from unmask.registry import Registry, own_fields

REGISTRIES = {  # the last words of a flag, and where its names are registered
    "sampler": "unmask.sampling.policy:POLICIES",
    "samplers": "unmask.sampling.policy:POLICIES",
    "objective.name": "unmask.diffusion.objective:OBJECTIVES",
    "model.name": "unmask.model.backbone:BACKBONES",
    "optim.name": "unmask.training.optim:OPTIMIZERS",
    "pack": "unmask.text.layout:LAYOUTS",
    "schedule": "unmask.diffusion.schedule:SCHEDULES",
    "times": "unmask.diffusion.times:TIMES",
}


def asked_list(arguments: Sequence[str]) -> str | None:
    """The list that a command line asks for; None: it asks for none."""
    for flag, value in pairwise(arguments):
        name = next((name for name in REGISTRIES if flag.endswith((f"-{name}", f".{name}"))), None)
        if value == "help" and flag.startswith("--") and name is not None:
            module, _, variable = REGISTRIES[name].partition(":")
            return "\n".join(members(getattr(import_module(module), variable), flag))
    return None


def members(registry: Registry[object], flag: str) -> Iterator[str]:
    """Every member with a line about it and the fields that can be set, in the order of the alphabet."""
    yield f"{flag} NAME" + ("[:FIELD=VALUE,..]" if registry.inline else "") + f": the {registry.kind}"
    entries = [registry.entry(name) for name in sorted(registry)]
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        about = entry.about or (entry.kind.__doc__ or "").split("\n")[0].rstrip(".")
        fields = ", ".join(own_fields(entry.kind)) if registry.inline else ""
        yield f"  {entry.name:<{width}}  {about}" + (f" ({fields})" if fields else "")
