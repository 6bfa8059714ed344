"""The type checker that every test runs under: beartype, with `0` allowed where a float is asked for.

A function is checked in its first CALLS calls of every test. A check takes several times as long as a step of a small
network, and what a sampler passes in its thousandth step has the types and shapes of the steps before. The check is
built when a function is first called: most tests call few of the functions that they import.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype

CALLS = 20
strict = beartype(conf=BeartypeConf(is_pep484_tower=True))
trusted: list[Any] = []  # functions that were called often enough in this test
tests = 0  # how many have begun


def checked(stub: Callable[..., Any]) -> Callable[..., Any]:
    """What jaxtyping calls before and after a function, as beartype checks it; after CALLS calls no more."""
    check: Callable[..., Any] | None = None
    left, of = 0, -1

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal check, left, of
        if of != tests:
            left, of = CALLS, tests
        left -= 1
        if left == 0:
            trust(stub)
        check = check or strict(stub)
        return check(*args, **kwargs)

    return counted


def trust(stub: Callable[..., Any]) -> None:
    """Tell jaxtyping to call the function of this name as it is; one within another function stays checked."""
    found: Any = sys.modules.get(stub.__module__)
    for name in stub.__qualname__.split("."):
        found = inspect.getattr_static(found, name, None)
    found = getattr(found, "fget", None) or getattr(found, "__func__", None) or found
    if inspect.isfunction(found):
        function = inspect.unwrap(found)
        function.__no_type_check__ = True  # which jaxtyping reads in every call
        trusted.append(function)


def begin_test() -> None:
    """Every function is checked again."""
    global tests
    tests += 1
    while trusted:
        trusted.pop().__no_type_check__ = False
