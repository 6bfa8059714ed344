"""Read files that others wrote: regular files within a size limit, and JSON and TOML of bounded depth and numbers.

Every reader of JSON or TOML from a checkpoint, a run, a study or a corpus goes through this file, so that a FIFO, a
device, a file nested 100,000 levels deep or a number of 5,000 digits ends in a `UserError` and neither hangs nor
fills the memory.
"""

import json
import math
import os
import re
import stat
import tomllib
from collections.abc import Iterable
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

from unmask.errors import UserError

MEGABYTE = 1 << 20
BYTES = 16 * MEGABYTE  # of a JSON file
DEPTH = 64  # lists and objects within each other
CONTAINERS = 4_000_000  # lists and objects of a text; an empty list takes 3 bytes there and 64 in memory
LARGEST = 1 << 63  # whole numbers lie below it
DOTS = 200  # in one line of TOML, outside of quotes
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and ends of lines
QUOTED = re.compile(r"""\"[^"\n]*\"|'[^'\n]*'""")


def printable(text: str) -> str:
    """The text with a dot for every control character, which a terminal would interpret."""
    return "".join(letter if letter in "\n\t" or letter.isprintable() else "·" for letter in text)


def open_regular(path: Path) -> BufferedReader:
    """A regular file, open for reading; a folder, a device or a FIFO is refused, and never waited for."""
    try:
        # Without O_NONBLOCK, opening a FIFO waits for a writer.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}.") from None
    except ValueError as error:  # a zero byte in the name
        raise UserError(f"cannot read {str(path)!r}: {error}.") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise UserError(f"cannot read {path}: it is not a regular file.")
    return os.fdopen(handle, "rb")


def read_bytes(path: Path, *, limit: int = BYTES) -> bytes:
    """The content of a regular file of at most `limit` bytes."""
    with open_regular(path) as file:
        try:
            data = file.read(limit + 1)
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}.") from None
    if len(data) > limit:
        raise UserError(f"{path} is larger than {limit // MEGABYTE} MB, the most that is read of such a file.")
    return data


def read_text(path: Path, *, limit: int = BYTES) -> str:
    """The text of a regular file of at most `limit` bytes."""
    try:
        return read_bytes(path, limit=limit).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8: {error}.") from None


def read_object(path: Path, *, limit: int = BYTES, strict: bool = True) -> dict[str, Any]:
    """The content of a JSON file that must hold an object; `strict`: see `parse_json`."""
    content = parse_json(read_text(path, limit=limit), str(path), strict=strict)
    if not isinstance(content, dict):
        raise UserError(f"{path} should hold a JSON object, not a {type(content).__name__}.")
    return content


def parse_json(text: str, where: str, *, strict: bool = True) -> Any:
    """The value of a JSON text; `where` names it in errors.

    Strictly, NaN, infinite and huge numbers and half of a surrogate pair are refused wherever they are.
    """
    containers = text.count("[") + text.count("{")
    if containers > CONTAINERS:
        raise UserError(f"{where} has more than {CONTAINERS:,} lists and objects.")
    try:
        value = DECODER.decode(text) if strict else json.loads(text)
        if containers > DEPTH and is_deeper(value, DEPTH):
            raise RecursionError
        if strict and ("\\ud" in text or "\\uD" in text):
            # Half of a surrogate pair is the only character that JSON can write and UTF-8 cannot.
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise UserError(f"{where} is nested more than {DEPTH} levels deep.") from None
    except UnicodeEncodeError:
        raise UserError(f"{where} holds half of a surrogate pair (\\ud800 to \\udfff), which is not text.") from None
    except ValueError as error:
        raise UserError(f"{where} is not JSON: {error}.") from None
    return value


def read_toml_table(path: str | Path) -> dict[str, Any]:
    text = read_text(Path(path), limit=MEGABYTE)
    if any(QUOTED.sub("", line).count(".") > DOTS for line in text.splitlines()):
        raise UserError(f"{path} has a line with more than {DOTS} dots: no key is that deep.")  # they take n² time
    try:
        content = tomllib.loads(text)
        if is_deeper(content, DEPTH):
            raise RecursionError
        check_values(content)
    except RecursionError:
        raise UserError(f"{path} is nested more than {DEPTH} levels deep.") from None
    except ValueError as error:  # also a whole number of more than 4,300 digits
        raise UserError(f"{path} is not TOML: {str(error).partition('; use sys')[0]}.") from None
    return content


def check_values(value: Any) -> None:
    """Refuse whole numbers of more than 64 bits and texts that steer a terminal, at any depth."""
    if isinstance(value, dict | list):
        for inner in [*value, *value.values()] if isinstance(value, dict) else value:
            check_values(inner)
    elif isinstance(value, str) and CONTROL.search(value):
        raise ValueError(f"the text {value[:40]!r} has a control character")
    elif isinstance(value, int) and not -LARGEST <= value < LARGEST:
        raise ValueError(f"a whole number of {value.bit_length()} bits is out of range")


def check_links(folder: Path, patterns: Iterable[str]) -> Path:
    """The folder; refused if one of its files is a link to somewhere else.

    A link may lead to another place in the folder, and, in the hub's cache, to the blobs of its repository.
    """
    home = folder.resolve()
    allowed = [home, *([home.parent.parent / "blobs"] if home.parent.name == "snapshots" else [])]
    for path in (path for pattern in patterns for path in folder.glob(pattern)):
        try:
            target = path.resolve() if path.is_symlink() else home
        except (OSError, RuntimeError):  # a loop of links, by version of Python
            raise UserError(f"{path} is a link that leads back to itself.") from None
        if not any(target.is_relative_to(place) for place in allowed):
            raise UserError(f"{path} is a link to {target}, outside its folder: if you trust it, copy it.")
    return folder


def is_deeper(value: Any, levels: int) -> bool:
    """Whether lists and objects are nested more than `levels` deep."""
    layer = [value]
    for _ in range(levels + 1):
        layer = [
            inner
            for outer in layer
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not layer:
            return False
    return True


def whole_number(text: str) -> int:
    if len(text) > 20 or not -LARGEST < int(text) < LARGEST:
        raise ValueError(
            f"the number {text[:24]}... is out of range" if len(text) > 24 else f"{text} is out of range"
        )
    return int(text)


def finite_number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:24]} is out of range")
    return number


def refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


DECODER = json.JSONDecoder(parse_int=whole_number, parse_float=finite_number, parse_constant=refuse_constant)
