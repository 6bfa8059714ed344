"""A folder has one writer: another one is told who it is, and a dead one holds nothing."""

import os
import re
import signal
import subprocess
import sys

import pytest

from unmask.errors import UserError
from unmask.processes.lock import hold_lock

HOLDER = """
import sys, time
from pathlib import Path
from unmask.processes.lock import hold_lock
with hold_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_process_is_told_who_holds_the_lock_and_a_killed_one_holds_nothing(tmp_path):
    path = tmp_path / "run" / ".lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout.readline() == b"held\n"
            with pytest.raises(UserError) as told, hold_lock(path):
                pass
        finally:
            os.kill(other.pid, signal.SIGKILL)
    assert re.match(rf".*/run is in use: process {other.pid} on \S+, since 20\d\d-\d\d-\d\d ", str(told.value))
    assert path.is_file()
    with hold_lock(path):
        assert str(os.getpid()) in path.read_text()
    assert not path.exists()


def test_a_lock_is_held_once_even_within_a_process_and_free_afterwards(tmp_path):
    path = tmp_path / ".lock"
    for _ in range(2):
        with hold_lock(path), pytest.raises(UserError, match=f"process {os.getpid()} on"), hold_lock(path):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_its_holder_removes_meanwhile_is_not_taken_for_one(tmp_path, monkeypatch):
    path = tmp_path / ".lock"
    real = os.open

    def slow(name, *options):
        """Open the file, which its holder then removes."""
        monkeypatch.undo()
        handle = real(name, *options)
        path.unlink()
        return handle

    monkeypatch.setattr(os, "open", slow)
    with hold_lock(path), pytest.raises(UserError, match="is in use"), hold_lock(path):
        pass


def test_a_folder_that_was_made_for_the_lock_goes_with_it_unless_something_is_in_it(tmp_path):
    with hold_lock(tmp_path / "new" / ".lock"):
        assert (tmp_path / "new").is_dir()
    assert not (tmp_path / "new").exists()
    with hold_lock(tmp_path / "new" / ".lock"):
        (tmp_path / "new" / "work").write_text("done")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["work"]


def test_a_place_that_cannot_be_written_is_an_error_in_plain_words(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "below", "/proc/unmask"):
        with pytest.raises(UserError, match="could not write"), hold_lock(type(tmp_path)(folder) / ".lock"):
            pass
