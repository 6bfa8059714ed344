"""Files of others: read within bounds, or refused in words."""

import os

import pytest

from unmask.errors import UserError
from unmask.settings import read_toml
from unmask.studies.study import read_study
from unmask.training.settings import Train
from unmask.untrusted import read_toml_table

HOSTILE = {
    "deep": ("title = " + "[" * 2000 + "]" * 2000, "nested more than"),
    "deep tables": ("\n".join(f"[{'.'.join('a' * n)}]" for n in range(1, 100)), "nested more than"),
    "digits": ("steps = " + "9" * 6000, "is not TOML"),
    "bits": ("steps = 0x" + "f" * 6000, "out of range"),
    "dots": (".".join(["a"] * 100_000) + " = 1", "dots"),
    "bytes": ("# " + "x" * (1 << 20), "larger than 1 MB"),
    "control": ('title = "\\u001b]0;owned\\u0007"', "control character"),
    "control in a name": ('"a\\u001b[2J" = 1', "control character"),
    "encoding": (b"title = '\xff'", "not UTF-8"),
}


@pytest.mark.parametrize("read", [lambda path: read_toml(path, Train()), read_study, read_toml_table])
@pytest.mark.parametrize("name", [*HOSTILE, "fifo", "device"])
def test_hostile_toml_is_refused_in_words(tmp_path, name, read):
    path = tmp_path / "file.toml"
    content, message = HOSTILE.get(name, ("", "not a regular file"))
    if name == "fifo":
        os.mkfifo(path)
    elif name == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message):
        read(path)


def test_dots_within_quotes_are_text(tmp_path):
    (tmp_path / "file.toml").write_text(f'about = "{"." * 5000}"\n')
    assert read_toml_table(tmp_path / "file.toml") == {"about": "." * 5000}
