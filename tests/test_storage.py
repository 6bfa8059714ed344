"""Files by address: read in ranges, cached within a limit, written as a whole, refused with a clear word."""

import builtins
import os
from pathlib import Path

import fsspec
import numpy as np
import pytest
from fsspec.registry import _registry

import stores
from unmask import storage
from unmask.cli.main import main
from unmask.errors import UserError
from unmask.text.corpus.corpus import Corpus, splits, verify
from unmask.text.corpus.manifest import prepared_folder


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A corpus of several shards, a few kB each."""
    place = tmp_path_factory.mktemp("prepared")
    (place / "text.txt").write_text("\n\n".join(f"{i} a cab had a bad bead." * 30 for i in range(40)))
    words = ("prepare", place / "text.txt", "--out", place / "data", "--tokenizer", "byte", "--characters", 9000)
    assert main([str(word) for word in (*words, "--documents", "paragraph", "--workers", 1, "--valid", 0.2)]) == 0
    return place / "data"


def put(folder, address):
    for path in folder.rglob("*"):
        if path.is_file():
            storage.upload(path, f"{address}/{path.relative_to(folder).as_posix()}")


def blocks(tmp_path):
    return list((tmp_path / "cache" / "blocks").glob("*"))


def test_a_corpus_elsewhere_is_read_as_one_here_and_only_where_it_is_read(bucket, prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "BLOCK", 512)
    put(prepared, f"{bucket}/data")
    folder = prepared_folder(f"{bucket}/data")
    assert not (folder / "shards").exists()
    here, there = Corpus.open(prepared), Corpus.open(folder)
    assert len(there.shards) > 2
    assert there.document(7).tolist() == here.document(7).tolist()
    assert len(blocks(tmp_path)) < 10  # of 100: of its end, of its tokens
    assert there.read(3, here.tokens - 3).tolist() == here.read(3, here.tokens - 3).tolist()
    assert there.lengths().tolist() == here.lengths().tolist()
    assert there.read(0, 0).tolist() == []
    assert [part.tokens for part in splits(folder)] == [part.tokens for part in splits(prepared)]


def test_the_cache_keeps_its_limit_and_what_was_used_last(bucket, prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "BLOCK", 512)
    monkeypatch.setenv("UNMASK_CACHE_GB", str(3 * 512 / 1e9))
    put(prepared, f"{bucket}/data")
    here, there = Corpus.open(prepared), Corpus.open(prepared_folder(f"{bucket}/data"))
    for start in range(0, here.tokens - 400, 400):
        assert there.read(start, start + 400).tolist() == here.read(start, start + 400).tolist()
        assert sum(path.stat().st_size for path in blocks(tmp_path)) <= 3 * 512
    os.environ["UNMASK_CACHE_GB"] = "much"
    with pytest.raises(UserError, match="UNMASK_CACHE_GB is a number of GB, such as 20; saw 'much'"):
        storage.cache_limit()


def test_a_shard_that_is_short_missing_or_damaged_is_refused(bucket, prepared):
    put(prepared, f"{bucket}/data")
    shard = f"{bucket}/data/shards/{Corpus.open(prepared).shards[0].name}"
    content = storage.read_remote(shard)
    storage.write_remote(shard, content[:-1])
    with pytest.raises(
        UserError, match=f"{shard} has {len(content) - 1} bytes where the manifest says {len(content)}"
    ):
        Corpus.open(prepared_folder(f"{bucket}/data"))
    storage.write_remote(shard, content[:-1] + bytes([content[-1] ^ 1]))
    folder = prepared_folder(f"{bucket}/data")
    Corpus.open(folder)  # the content is compared when this is asked for
    with pytest.raises(UserError, match=f"{shard} is damaged"):
        verify(folder)
    storage.remove_remote(shard)
    with pytest.raises(UserError, match=f"{shard} is missing"):
        Corpus.open(prepared_folder(f"{bucket}/data"))


def test_what_is_downloaded_is_downloaded_once_and_again_when_it_changed(bucket):
    storage.write_remote(f"{bucket}/texts/a.txt", b"one")
    storage.write_remote(f"{bucket}/texts/deep/b.bin", b"two")
    first = storage.fetch_files(f"{bucket}/texts", lambda name: name.endswith(".txt"))
    assert [path.name for path in first.iterdir()] == ["a.txt"]
    stamp = (first / "a.txt").stat().st_mtime_ns
    again = storage.fetch_files(f"{bucket}/texts", lambda name: name.endswith(".txt"))
    assert (again, (again / "a.txt").stat().st_mtime_ns) == (first, stamp)
    storage.write_remote(f"{bucket}/texts/a.txt", b"other")
    assert (storage.fetch_files(f"{bucket}/texts") / "a.txt").read_text() == "other"
    assert storage.fetch_files(f"{bucket}/texts/deep/b.bin").read_text() == "two"
    assert (first / "a.txt").read_text() == "one"  # whoever reads it goes on


def test_what_is_not_there_is_said(bucket):
    with pytest.raises(UserError, match=f"there is nothing at {bucket}/nothing"):
        storage.fetch_files(f"{bucket}/nothing")
    with pytest.raises(UserError, match=f"there is nothing at {bucket}/nothing"):
        storage.read_remote(f"{bucket}/nothing")
    with pytest.raises(UserError, match="cannot reach what://is/this: Protocol not known: what"):
        storage.listing("what://is/this")
    assert prepared_folder(f"{bucket}/nothing") is None


@pytest.mark.cluster
def test_a_bucket_that_is_not_there_is_said(s3):
    for work in (lambda: storage.listing("s3://no-bucket/a"), lambda: storage.write_remote("s3://no-bucket/a", b"")):
        with pytest.raises(
            UserError, match="there is nothing at s3://no-bucket/a: The specified bucket does not exist"
        ):
            work()


def test_a_package_that_is_missing_is_said(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith(("s3fs", "gcsfs")):
            raise ImportError(f"No module named {name!r}")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(_registry, "s3", raising=False)  # known from other tests
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)
    with pytest.raises(
        UserError, match=r"s3://a/b needs a package that is missing: .*pip install 'unmask\[remote\]'"
    ):
        storage.listing("s3://a/b")
    with pytest.raises(UserError, match=r"gs://a/b needs a package that is missing: .*gcsfs"):
        storage.listing("gs://a/b")


def test_a_name_that_leads_out_of_the_folder_is_refused(bucket, monkeypatch):
    system = fsspec.core.url_to_fs(bucket)[0]
    path = f"{system._strip_protocol(bucket)}/../evil"
    monkeypatch.setattr(type(system), "find", lambda *_, **__: {path: {"type": "file", "size": 1}})
    with pytest.raises(UserError, match="has a file with the name"):
        storage.fetch_files(bucket)


def test_file_addresses_are_paths(tmp_path):
    assert storage.without_scheme(f"file://{tmp_path}") == str(tmp_path)
    assert not storage.is_remote(f"file://{tmp_path}")
    assert not storage.is_remote("hf:gpt2")
    assert not storage.is_remote(Path("s3://a"))
    assert storage.is_remote("hf://datasets/a/b")


def test_remote_numbers_are_slices_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path))
    numbers = np.arange(500, dtype="<u2")
    bucket = stores.new_bucket(stores.MEMORY)
    storage.write_remote(f"{bucket}/a", numbers.tobytes())
    origin = storage.Origin(tmp_path, bucket, {"a": numbers.nbytes})
    monkeypatch.setattr(storage, "BLOCK", 64)
    whole = storage.RemoteArray(origin, "a", 0, numbers.nbytes, np.dtype(np.uint8))[10:].view("<u2")
    for first, last in ((0, 3), (31, 33), (20, 200), (400, 10_000), (7, 7), (9, 2), (None, None)):
        assert np.asarray(whole[first:last]).tolist() == numbers[5:][first:last].tolist()
