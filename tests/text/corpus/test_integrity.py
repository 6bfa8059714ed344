"""A shard that is not what was written is noticed, and a shard that was read once is not read again."""

import os
import shutil

import pytest

from unmask.errors import UserError
from unmask.text.corpus import integrity
from unmask.text.corpus.corpus import Corpus, verify
from unmask.text.corpus.documents import FileLayout
from unmask.text.corpus.prepare import prepare
from unmask.text.corpus.shards import Division
from unmask.text.corpus.sources import gather
from unmask.text.tokens import vocabulary


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(f"line {i}" for i in range(60)))
    with gather(tmp_path / "a.txt") as sources:
        list(
            prepare(
                sources, vocabulary.byte(), tmp_path / "out", layout=FileLayout("line"), division=Division(0, 0, 99)
            )
        )
    return tmp_path / "out"


@pytest.fixture
def read(monkeypatch) -> list[str]:
    """The names of the files whose content is read."""
    names: list[str] = []

    def noted(path):
        names.append(path.name)
        return real(path)

    real = integrity.fingerprint
    monkeypatch.setattr(integrity, "fingerprint", noted)
    return names


def flip(path, *, quietly: bool = False) -> None:
    """Flip a bit in the middle of a file; quietly: as a disk does it, without a trace in the file's times."""
    before, data = path.stat(), bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    if quietly:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_flipped_bit_is_noticed_before_and_after_the_first_opening(folder):
    path = sorted((folder / "shards").iterdir())[2]
    for _ in range(2):
        flip(path)
        with pytest.raises(UserError, match=rf"{path.name} is damaged: its sha256 differs"):
            Corpus.open(folder)
        flip(path)
        Corpus.open(folder)


def test_shards_are_read_once_and_again_when_they_were_changed_or_copied(folder, tmp_path, read):
    Corpus.open(folder)
    names = sorted(path.name for path in (folder / "shards").iterdir())
    assert sorted(read) == names
    read.clear()
    Corpus.open(folder)
    assert read == []
    os.utime(folder / "shards" / names[1])
    Corpus.open(folder)
    assert read == [names[1]]
    read.clear()
    shutil.copytree(folder, tmp_path / "copy")  # with its stamp, and with the times of the files
    Corpus.open(tmp_path / "copy")
    assert sorted(read) == names


def test_a_folder_that_was_prepared_again_is_not_read_from_the_old_files(folder, tmp_path):
    before = Corpus.open(folder).read(0, 20).tolist()
    shutil.rmtree(folder)
    (tmp_path / "a.txt").write_text("\n".join(f"LINE {i}" for i in range(60)))
    with gather(tmp_path / "a.txt") as sources:
        list(prepare(sources, vocabulary.byte(), folder, layout=FileLayout("line"), division=Division(0, 0, 99)))
    assert Corpus.open(folder).read(0, 20).tolist() != before


def test_verify_reads_every_shard_whatever_the_stamp_says(folder, read):
    Corpus.open(folder)
    read.clear()
    verify(folder)
    assert len(read) == len(list((folder / "shards").iterdir()))


def test_damage_that_leaves_no_trace_in_the_times_is_found_by_verify(folder):
    Corpus.open(folder)
    path = next((folder / "shards").iterdir())
    flip(path, quietly=True)
    with pytest.raises(UserError, match="is damaged"):
        verify(folder)


@pytest.mark.parametrize("stamp", [b"", b"{", b"[1]", b"\xff", b'{"train-000000-000000.bin": 7}', b"[" * 100_000])
def test_a_stamp_that_is_not_ours_only_costs_time(folder, stamp, read):
    (folder / integrity.STAMP).write_bytes(stamp)
    Corpus.open(folder)
    assert len(read) == len(list((folder / "shards").iterdir()))


def test_the_draft_of_a_stamp_that_a_kill_left_is_removed_with_the_next_stamp(folder):
    draft = folder / f".{integrity.STAMP}.draft-12345"
    draft.write_text("{")
    verify(folder)
    assert (folder / integrity.STAMP).is_file()
    assert not draft.exists()
