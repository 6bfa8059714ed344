"""Numbers on the command line: a mistake is answered in words."""

from typing import Any

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

KINDS: dict[Any, tuple[str, str]] = {int: ("INT", "a whole number"), float: ("FLOAT", "a number")}


def read_number(kind: Any, written: str) -> Any:
    try:
        return kind(written)
    except ValueError:
        raise ValueError(f"{written!r} is not {KINDS[kind][1]}.") from None


def numbers() -> ConstructorRegistry:
    """How tyro reads whole numbers and numbers."""
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        if info.type not in KINDS:
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar=KINDS[info.type][0],
            instance_from_str=lambda given: read_number(info.type, given[0]),
            is_instance=lambda value: isinstance(value, int | float if info.type is float else int),
            str_from_instance=lambda value: [str(value)],
        )

    return registry
