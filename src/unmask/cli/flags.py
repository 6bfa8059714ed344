"""Components of a registry as flags: `--objective.name sedd` adds SEDD's own fields, and so does `--model.name`.

The command line is read by tyro, which knows dataclasses. It sees a component as a subclass that has the name of
the component as one more field and hides the fields that are derived from the data.
"""

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from unmask.model.checkpoint import load
from unmask.model.model import Model
from unmask.processes.device import Device, Dtype
from unmask.registry import Registry, spelled
from unmask.sampling.policy import POLICIES, Policy
from unmask.sampling.recipe import Recipe
from unmask.settings import help_of

T = TypeVar("T")

Document = Literal["auto", "yes", "no"]
DOCUMENT: dict[Document, bool | None] = {"auto": None, "yes": True, "no": False}

# Every drawing option as a flag without a prefix: --top-p, --pattern.
Drawing = Annotated[Recipe, tyro.conf.arg(name=""), tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff]


@dataclass(frozen=True)
class Place:
    """Where the network runs."""

    device: Device = "auto"  # auto: a GPU if there is one
    dtype: Dtype = "auto"  # of matrix products; auto: bfloat16 on CUDA, else float32

    def load(self, path: str | Path) -> Model:
        return load(path, device=self.device, dtype=self.dtype)


Placing = Annotated[Place, tyro.conf.arg(name=""), tyro.conf.OmitArgPrefixes]


def one_line(registry: Registry[Any]) -> PrimitiveConstructorSpec[Any]:
    """How tyro reads and shows a component that is written as one line, `cosine:eps=0`."""
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="NAME[:FIELD=VALUE,..]",
        instance_from_str=lambda given: registry.make(given[0]),
        is_instance=lambda value: hasattr(value, "registry"),
        str_from_instance=lambda value: [spelled(value)],
    )


READERS = ConstructorRegistry()


@READERS.primitive_rule
def policy_reader(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """A sampler is typed as one line; in Python it may be a policy."""
    return one_line(POLICIES) if info.type is Policy else None


READERS.__enter__()  # for every command line that is read after this import


def flagged(component: T) -> T:
    """The component in the form that tyro reads."""
    kind: Any = type(component)
    registry, hints, texts = kind.registry, get_type_hints(kind), help_of(kind)
    shown: dict[str, Any] = {}
    for one in fields(kind):
        value, hint = getattr(component, one.name), hints[one.name]
        if one.metadata.get("derived"):
            shown[one.name] = Annotated[hint, tyro.conf.Suppress]
            continue
        if hasattr(value, "registry") and value.registry.inline:
            hint = Annotated[Any, one_line(value.registry)]
        shown[one.name] = Annotated[hint, tyro.conf.arg(help=texts.get(one.name, ""))]
    values = {name: getattr(component, name) for name in shown}
    names: Any = Literal[tuple(sorted(registry))]
    shown["name"] = Annotated[names, tyro.conf.arg(help=f"which {registry.kind}; each has its own fields")]
    body = {name: field(default=value) for name, value in {**values, "name": kind.name}.items()}
    members = {"__annotations__": shown, "__doc__": kind.__doc__, "shows": kind, **body}
    made: Any = type(kind.__name__, (kind,), members)
    return dataclass(frozen=True)(made)()


def unflagged(component: T) -> T:
    """The component itself, with the values of the flags."""
    kind: Any = type(component).shows  # type: ignore[attr-defined]
    return kind(**{one.name: getattr(component, one.name) for one in fields(kind) if one.init})


def with_flags(settings: T, *names: str) -> T:
    """Settings whose components of these names tyro can read."""
    return replace(settings, **{name: flagged(getattr(settings, name)) for name in names})  # type: ignore[type-var]


def without_flags(settings: T, *names: str) -> T:
    return replace(settings, **{name: unflagged(getattr(settings, name)) for name in names})  # type: ignore[type-var]
