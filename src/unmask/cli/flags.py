"""Groups of settings as flags: `--objective.name sedd` adds SEDD's own fields, and so does `--model.name`.

The command line is read by tyro, which knows dataclasses. It sees a component as a subclass that has the name of
the component as one more field and hides the fields that are derived from the data.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from unmask.model.checkpoint import load
from unmask.model.cost import pass_flops
from unmask.model.model import Model
from unmask.processes.device import Device, Dtype
from unmask.processes.threads import Threads, check_threads, use_threads
from unmask.registry import Registry, spell_component
from unmask.sampling.policy import POLICIES, Policy
from unmask.sampling.recipe import Recipe
from unmask.settings import Short, groups_of, help_of

T = TypeVar("T")

Document = Literal["auto", "yes", "no"]
DOCUMENT: dict[Document, bool | None] = {"auto": None, "yes": True, "no": False}

# What several verbs take, declared once.
ModelName = Annotated[
    str,
    tyro.conf.Positional,
    tyro.conf.arg(metavar="MODEL", help="the folder of a checkpoint or of a run, or a name on the hub"),
]
AsJson = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help="print JSON, one object per line")]
ResultFile = Annotated[Path | None, tyro.conf.arg(help="write the result as JSON to a file, for `unmask report`")]
On = Annotated[
    str,
    tyro.conf.arg(
        metavar="CLUSTER",
        help="share the work in a Ray cluster: ray (RAY_ADDRESS, else this machine), ray://HEAD:10001, HOST:6379",
    ),
]

# Every drawing option as a flag without a prefix: --top-p, --pattern.
Drawing = Annotated[Recipe, tyro.conf.arg(name=""), tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff]


@dataclass(frozen=True)
class Place:
    """Where the network runs."""

    device: Device = "auto"  # auto: a GPU if there is one
    dtype: Dtype = "auto"  # of matrix products; auto: bfloat16 on CUDA, else float32
    dialect: str = ""  # the family of a published model whose files do not say it: llama or diffullama
    threads: Threads = "auto"  # on the CPU; auto: one for a few texts of a small network, else one per core

    def __post_init__(self) -> None:
        check_threads(self.threads)

    def load(self, path: str | Path, *, rows: int | None = None) -> Model:
        """A model, and the threads for passes of at most so many rows; None: of many."""
        model = load(path, device=self.device, dtype=self.dtype, dialect=self.dialect)
        use_threads(self.threads, flops=None if rows is None else pass_flops(model.spec) * rows)
        return model


Placing = Annotated[Place, tyro.conf.arg(name=""), tyro.conf.OmitArgPrefixes]


def one_line(registry: Registry[Any]) -> PrimitiveConstructorSpec[Any]:
    """How tyro reads and shows a component that is written as one line, `cosine:eps=0`."""
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="NAME[:FIELD=VALUE,..]",
        instance_from_str=lambda given: registry.make(given[0]),
        is_instance=lambda value: hasattr(value, "registry"),
        str_from_instance=lambda value: [spell_component(value)],
    )


READERS = ConstructorRegistry()


@READERS.primitive_rule
def policy_reader(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """A sampler is typed as one line; in Python it may be a policy."""
    return one_line(POLICIES) if info.type is Policy else None


READERS.__enter__()  # for every command line that is read after this import


def as_flags(group: T) -> T:
    """A group of settings in the form that tyro reads: a component has its name as one more field."""
    kind: Any = type(group)
    hints, texts = get_type_hints(kind, include_extras=True), help_of(kind)
    shown: dict[str, Any] = {}
    for one in fields(kind):
        value, hint = getattr(group, one.name), hints[one.name]
        if one.metadata.get("derived") or one.metadata.get("hidden"):
            shown[one.name] = Annotated[hint, tyro.conf.Suppress]
            continue
        if hasattr(value, "registry") and value.registry.inline:
            hint = Annotated[Any, one_line(value.registry)]
        aliases = [f"--{one.name.replace('_', '-')}"] if Short in get_args(hint) else None
        shown[one.name] = Annotated[hint, tyro.conf.arg(help=texts.get(one.name, ""), aliases=aliases)]
    values = {name: getattr(group, name) for name in shown}
    if hasattr(kind, "registry"):
        names: Any = Literal[tuple(sorted(kind.registry))]
        about = f"which {kind.registry.kind} (help lists them); each has its own fields"
        shown["name"], values["name"] = Annotated[names, tyro.conf.arg(help=about)], kind.name
    body = {name: field(default=value) for name, value in values.items()}
    members = {"__annotations__": shown, "__doc__": kind.__doc__, "shows": kind, **body}
    made: Any = type(kind.__name__, (kind,), members)
    return dataclass(frozen=True)(made)()


def from_flags(group: T) -> T:
    """The group itself, with the values of the flags."""
    kind: Any = getattr(group, "shows", None)
    if kind is None:
        return group
    return kind(**{one.name: getattr(group, one.name) for one in fields(kind) if one.init})


def with_flags(settings: T) -> T:
    """Settings whose groups tyro can read."""
    return in_groups(settings, as_flags)


def without_flags(settings: T) -> T:
    return in_groups(settings, from_flags)


def in_groups(settings: T, change: Callable[[Any], Any]) -> T:
    given: Any = settings
    return replace(given, **{name: change(getattr(given, name)) for name in groups_of(given)})
