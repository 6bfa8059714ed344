"""Sizes in a config.json, held against the header of the weights before anything is built.

A config.json of a few bytes can describe a network of any size. Here the numbers of every spec are bounded, and a
skeleton is built only as long as it has no more modules and parameters than the tensors in the files account for.
A backbone needs no code for this.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from unmask.errors import UserError
from unmask.model.backbone import Spec
from unmask.model.weights import Tensors

LARGEST = 1 << 24  # ids, positions or features
WHOLE = 1 << 31  # any other whole number of a spec
SPARE, PER_TENSOR = 100, 16  # modules and parameters that a skeleton may have: SPARE + PER_TENSOR for every tensor


def check_sizes(spec: Spec) -> None:
    """Refuse numbers that no network has."""
    for one in fields(spec):
        value, most = getattr(spec, one.name), LARGEST if one.name in ("vocab", "length", "width") else WHOLE
        if isinstance(value, int) and not -most <= value <= most:
            raise UserError(f"config.json describes a {spec.name} with {one.name} = {value}: more than {most}.")


@contextmanager
def bounded_by(tensors: Tensors, spec: Spec) -> Iterator[None]:
    """Inside, this thread can build no more modules and parameters than belong to the tensors of a file."""
    left, here = SPARE + PER_TENSOR * len(tensors), threading.get_ident()

    def count(*_: Any) -> None:
        nonlocal left
        if threading.get_ident() == here:
            left -= 1
        if left < 0:
            raise UserError(
                f"config.json describes a {spec.name} with more layers than the {len(tensors)} tensors of the "
                "weights: they do not belong together. Copy both again from where they came from."
            )

    hooks = [register_module_module_registration_hook(count), register_module_parameter_registration_hook(count)]
    try:
        yield
    except (RuntimeError, OverflowError, MemoryError) as error:
        reason = str(error).split("\n")[0][:200]
        raise UserError(f"config.json describes a {spec.name} that cannot be built: {reason}.") from None
    finally:
        for hook in hooks:
            hook.remove()
