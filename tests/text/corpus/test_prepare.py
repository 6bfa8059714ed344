"""Shards: the same whatever the workers, the parts and the interruptions; and never something else's."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from unmask.errors import UserError
from unmask.files import is_draft
from unmask.text.corpus import shards
from unmask.text.corpus.corpus import Corpus
from unmask.text.corpus.documents import FileLayout
from unmask.text.corpus.manifest import merge
from unmask.text.corpus.prepare import prepare
from unmask.text.corpus.shards import Division
from unmask.text.corpus.sources import gather
from unmask.text.corpus.tokenized import read_documents
from unmask.text.tokens import vocabulary
from unmask.text.tokens.tokenizer import NoToken

BYTE = vocabulary.byte()
SMALL = Division(valid=0.2, characters=300)  # many shards out of little text


def write_data(folder: Path, *, files: int = 3, stories: int = 40) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for file in range(files):
        texts = [f"Story {file}.{i}: " + "la " * (i * 7 % 23) for i in range(stories)]
        (folder / f"{file}.txt").write_text("<|endoftext|>".join(texts))
    return folder


def run(data, out, *, tokenizer=BYTE, layout=None, division=SMALL, **options) -> Path:
    with gather(data) as sources:
        for _ in prepare(sources, tokenizer, out, layout=layout, division=division, **options):
            pass
    return out


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def data(tmp_path):
    return write_data(tmp_path / "data")


def test_every_document_is_there_once_with_its_tokens(data, tmp_path):
    out = run(data, tmp_path / "out")
    found = []
    for split in ("train", "valid"):
        corpus = Corpus.open(out, split)
        found += [BYTE.decode(corpus.document(i)) for i in range(corpus.documents)]
    wanted = [text.strip() for path in data.iterdir() for text in path.read_text().split("<|endoftext|>")]
    assert sorted(found) == sorted(wanted)


@pytest.mark.slow
def test_the_result_does_not_depend_on_the_number_of_workers(data, tmp_path):
    one = content(run(data, tmp_path / "one", workers=1))
    assert content(run(data, tmp_path / "three", workers=3)) == one
    assert sum(name.endswith(".bin") for name in one) > 10


@pytest.mark.parametrize("files", [1, 12])
def test_parts_made_apart_merge_into_the_result_of_one_job(files, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "BUNDLE", 1)
    data = write_data(tmp_path / "data", files=files)
    whole = content(run(data, tmp_path / "whole"))
    parts = [run(data, tmp_path / f"part{i}", part=(i, 3)) for i in (1, 2, 3)]
    sizes = [len(list(part.rglob("*.bin"))) for part in parts]
    assert min(sizes) > 0
    merge(parts, tmp_path / "merged")
    assert content(tmp_path / "merged") == whole
    for i in (1, 2, 3):
        run(data, tmp_path / "shared", part=(i, 3))
    merge([tmp_path / "shared"], tmp_path / "shared")
    assert content(tmp_path / "shared") == whole


def test_parts_that_do_not_add_up_are_refused(data, tmp_path):
    parts = [run(data, tmp_path / f"part{i}", part=(i, 3)) for i in (1, 2, 3)]
    with pytest.raises(UserError, match="3/3 missing"):
        merge(parts[:2], tmp_path / "merged")
    with pytest.raises(UserError, match="no parts to merge"):
        merge([tmp_path], tmp_path / "merged")
    other = run(data, tmp_path / "other", part=(3, 3), tokenizer=vocabulary.bpe(["a b"], 259))
    with pytest.raises(UserError, match="part 3/3 belongs to another job: its tokenizer"):
        merge([*parts[:2], other], tmp_path / "merged")
    (data / "0.txt").write_text("changed meanwhile")
    other = run(data, tmp_path / "later", part=(3, 3))
    with pytest.raises(UserError, match=r"part 3/3 read a different 0\.txt"):
        merge([*parts[:2], other], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_a_damaged_shard_is_not_merged(data, tmp_path):
    parts = [run(data, tmp_path / f"part{i}", part=(i, 2)) for i in (1, 2)]
    victim = next(parts[1].rglob("*.bin"))
    victim.write_bytes(bytes(victim.stat().st_size))
    with pytest.raises(UserError, match=rf"{victim.name} is damaged"):
        merge(parts, tmp_path / "merged")
    assert not (tmp_path / "merged" / "manifest.json").exists()


@pytest.mark.parametrize("stop", [0, 1, 5])
def test_an_interrupted_run_is_completed_without_doing_its_work_again(stop, data, tmp_path, monkeypatch):
    whole = content(run(data, tmp_path / "whole"))
    out = tmp_path / "out"
    with gather(data) as sources:
        started = prepare(sources, BYTE, out, division=SMALL)
        for _ in range(stop + 1):
            next(started)
        started.close()
    with pytest.raises(UserError, match="preparation is not finished"):
        Corpus.open(out)
    kept = {path: path.stat().st_mtime_ns for path in out.rglob("*.bin")}
    assert kept
    (out / "shards" / ".train-000000-000001.bin.draft-123").write_bytes(b"half a shard")
    run(data, out)
    assert content(out) == whole
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


@pytest.mark.slow
def test_a_run_killed_at_any_moment_leaves_no_workers_and_is_completed(tmp_path):
    data = write_data(tmp_path / "data", files=4, stories=600)
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from unmask.text.tokens import vocabulary\n"
        "from unmask.text.corpus.prepare import prepare\n"
        "from unmask.text.corpus.shards import Division\n"
        "from unmask.text.corpus.sources import gather\n"
        "if __name__ == '__main__':\n"
        "    with gather(sys.argv[1]) as sources:\n"
        "        division = Division(valid=0.2, characters=3000)\n"
        "        for step in prepare(sources, vocabulary.byte(), sys.argv[2], division=division, workers=2):\n"
        "            print(step, flush=True)\n"
    )
    out = tmp_path / "out"
    line = [sys.executable, str(script), str(data), str(out)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, start_new_session=True) as killed:
        for _ in range(3):
            assert killed.stdout.readline()
        os.kill(killed.pid, signal.SIGKILL)
    while alive(killed.pid):
        time.sleep(0.1)
    assert not (out / "manifest.json").exists()
    division = Division(valid=0.2, characters=3000)
    whole = run(data, tmp_path / "whole", division=division)
    assert content(run(data, out, division=division)) == content(whole)


def alive(group: int) -> bool:
    """Whether any process of a process group still runs."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_finished_folder_is_left_as_it_is(data, tmp_path):
    out = run(data, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    run(data, out)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


@pytest.mark.parametrize("finished", [True, False])
def test_a_changed_tokenizer_source_or_layout_is_noticed_and_nothing_is_overwritten(finished, data, tmp_path):
    out = tmp_path / "out"
    with gather(data) as sources:
        started = prepare(sources, BYTE, out, division=SMALL)
        next(started)
        if finished:
            list(started)
    before = content(out)
    changes = {
        "it has another tokenizer": {"tokenizer": vocabulary.bpe(["a b"], 259)},
        "its layout is": {"layout": FileLayout("line")},
        "its division is": {"division": Division(valid=0.3, characters=300)},
    }
    for message, change in changes.items():
        with pytest.raises(UserError, match=message):
            run(data, out, **change)
    (data / "new.txt").write_text("more")
    with pytest.raises(UserError, match=r"it was made without new\.txt"):
        run(data, out)
    (data / "new.txt").unlink()
    old = (data / "0.txt").read_text()
    (data / "0.txt").write_text("less")
    with pytest.raises(UserError, match=r"0\.txt has changed since"):
        run(data, out)
    (data / "0.txt").write_text(old)
    (data / "1.txt").rename(tmp_path / "1.txt")
    with pytest.raises(UserError, match=r"made with 1\.txt, which is gone"):
        run(data, out)
    assert content(out) == before


def test_a_folder_with_other_things_in_it_is_refused(data, tmp_path):
    with pytest.raises(UserError, match=r"contains other files \(0\.txt"):
        run(data, data)
    with pytest.raises(UserError, match="is a file"):
        run(data, data / "0.txt")


def test_documents_of_no_text_are_left_out_and_sources_of_no_text_refused(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\n\ntwo\n")
    corpus = Corpus.open(run(tmp_path / "a.txt", tmp_path / "out", layout=FileLayout("line"), division=Division(0)))
    assert corpus.documents == 2
    (tmp_path / "b.txt").write_text("\n\n\n")
    with pytest.raises(UserError, match="fewer than two tokens"):
        run(tmp_path / "b.txt", tmp_path / "none", layout=FileLayout("line"))


def test_equal_documents_fall_on_the_same_side_and_the_share_is_kept(tmp_path):
    lines = [f"line {i % 500}" for i in range(1500)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    out = run(tmp_path / "a.txt", tmp_path / "out", layout=FileLayout("line"), division=Division(0.2, seed=3))
    sides = [{tuple(corpus.document(i)) for i in range(corpus.documents)} for corpus in both(out)]
    assert not sides[0] & sides[1]
    assert 60 < len(sides[1]) < 140
    other = run(tmp_path / "a.txt", tmp_path / "other", layout=FileLayout("line"), division=Division(0.2, seed=4))
    assert {tuple(both(other)[1].document(i)) for i in range(50)} != sides[1]


def both(out: Path) -> list[Corpus]:
    return [Corpus.open(out, "train"), Corpus.open(out, "valid")]


def test_files_named_for_a_split_make_that_split_and_no_other(tmp_path):
    for name in ("train", "valid", "test"):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / f"{name}.txt").write_text(f"{name} text")
    out = run(tmp_path / "data", tmp_path / "out")
    for name in ("train", "valid", "test"):
        assert BYTE.decode(Corpus.open(out, name).document(0)) == f"{name} text"
        assert Corpus.open(out, name).documents == 1


@pytest.mark.parametrize("characters", [1, 40, 64, 100_000])
def test_a_document_longer_than_a_shard_goes_on_in_the_next(characters, tmp_path, monkeypatch):
    monkeypatch.setattr("unmask.text.corpus.documents.PIECE", 32)
    text = "words and words " * 30
    (tmp_path / "a.txt").write_text(text + "<|endoftext|>short<|endoftext|>" + "x" * 64)
    division = Division(0, characters=characters)
    corpus = Corpus.open(run(tmp_path / "a.txt", tmp_path / "out", division=division))
    assert [BYTE.decode(corpus.document(i)) for i in range(3)] == [text.strip(), "short", "x" * 64]
    assert corpus.documents == 3
    assert corpus.tokens == len(text.strip()) + 5 + 64 + 3


def test_a_document_whose_last_piece_is_empty_still_ends(tmp_path, monkeypatch):
    monkeypatch.setattr("unmask.text.corpus.documents.PIECE", 32)
    (tmp_path / "a.fa").write_text(">one\n" + "A" * 32 + "\n>two\nCG\n")
    out = run(tmp_path / "a.fa", tmp_path / "out", tokenizer=vocabulary.dna(), division=Division(0, characters=1))
    corpus = Corpus.open(out)
    assert [len(corpus.document(i)) for i in range(corpus.documents)] == [32, 2]


def test_progress_counts_a_document_when_its_last_piece_is_done(tmp_path, monkeypatch):
    monkeypatch.setattr("unmask.text.corpus.documents.PIECE", 32)
    (tmp_path / "a.txt").write_text("a" * 100)
    with gather(tmp_path / "a.txt") as sources:
        steps = list(prepare(sources, BYTE, tmp_path / "out", division=Division(0, characters=1)))
    assert steps[0].line == f"{steps[0].tokens} tokens"  # not "0 documents"
    assert steps[-1].line == "101 tokens, 1 document"


def test_ids_above_65535_are_kept_in_four_bytes(tmp_path):
    letters = [chr(code) for code in range(0x10000, 0x10000 + 66_000)]
    tokenizer = vocabulary.character(letters)
    (tmp_path / "a.txt").write_text(letters[-1] * 3)
    corpus = Corpus.open(run(tmp_path / "a.txt", tmp_path / "out", tokenizer=tokenizer, division=Division(0)))
    assert corpus.dtype == "uint32"
    assert corpus.document(0).tolist() == [65_999] * 3
    assert shards.token_type(1 << 16) == np.dtype("<u2")


def test_an_error_in_the_text_reaches_the_caller_and_leaves_nothing_half_done(tmp_path):
    (tmp_path / "a.txt").write_text("fine\n" * 100 + "ß")
    with pytest.raises(UserError, match="no token for 'ß'"):
        run(tmp_path / "a.txt", tmp_path / "out", tokenizer=vocabulary.character(["fine\n"]))
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_letter_without_a_token_is_named_with_its_place(tmp_path):
    (tmp_path / "a.fa").write_text(">one\nACGT\nACGT\n>two of them\nACGT\nAC-GT\n")
    told = r"a\.fa, sequence 'two', letter 7: the tokenizer has no token for '-'.*character.*byte or bpe"
    with pytest.raises(UserError, match=told):
        run(tmp_path / "a.fa", tmp_path / "out", tokenizer=vocabulary.dna())
    (tmp_path / "b.txt").write_text("ACGT\nACGTE\n")
    told = r"b\.txt, document 2, letter 5: the tokenizer has no token for 'E'.*protein \(letters A to Z\)"
    with pytest.raises(UserError, match=told):
        run(tmp_path / "b.txt", tmp_path / "more", tokenizer=vocabulary.dna(), layout=FileLayout("line"))
    with pytest.raises(UserError, match=told):
        read_documents(tmp_path / "b.txt", vocabulary.dna(), layout=FileLayout("line"))
    assert str(pickle.loads(pickle.dumps(NoToken("E", "here")))).startswith("here: the tokenizer has no token")


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("bad", [">a\nACGT--ACGT\n", ">a\nACGT\n>b"])
def test_text_that_cannot_be_prepared_leaves_nothing_and_the_corrected_file_is_accepted(bad, workers, tmp_path):
    path, out = tmp_path / "a.fa", tmp_path / "out"
    path.write_text(bad)
    with pytest.raises(UserError, match=r"no token for '-'|ends after the name"):
        run(path, out, tokenizer=vocabulary.dna(), division=Division(0), workers=workers)
    assert not out.exists()
    path.write_text(">a\nACGTACGT\n")
    run(path, out, tokenizer=vocabulary.dna(), division=Division(0), workers=workers)
    assert Corpus.open(out).tokens == 9


def test_an_error_after_finished_shards_keeps_them_for_the_same_job_and_yields_to_another(tmp_path):
    path, out, small = tmp_path / "a.fa", tmp_path / "out", Division(0, characters=50)
    good = "".join(f">{i}\n{'ACGT' * 12}{'ACGT'[i % 4]}C\n" for i in range(5))
    path.write_text(good + ">last\nAC--GT\n")
    for _ in range(2):
        with pytest.raises(UserError, match="no token for '-'"):
            run(path, out, tokenizer=vocabulary.dna(), division=small)
        shards = {one: one.stat().st_mtime_ns for one in out.rglob("*.bin")}
        assert len(shards) == 5
    assert {one: one.stat().st_mtime_ns for one in shards} == shards  # the second run has not written them again
    assert "no token for '-'" in json.loads((out / "part-1-of-1.json").read_text())["failed"]
    path.write_text("".join(f">{i}\n{'TTTT' * 12}AC\n" for i in range(5)))
    run(path, out, tokenizer=vocabulary.dna(), division=small)
    assert content(out) == content(run(path, tmp_path / "whole", tokenizer=vocabulary.dna(), division=small))


def test_sources_without_text_leave_nothing_that_refuses_the_corrected_ones(tmp_path):
    path, out = tmp_path / "a.txt", tmp_path / "out"
    path.write_text("\n\n\n")
    with pytest.raises(UserError, match="fewer than two tokens"):
        run(path, out, layout=FileLayout("line"))
    path.write_text("some text\n")
    assert Corpus.open(run(path, out, layout=FileLayout("line"), division=Division(0))).documents == 1


def test_a_part_that_failed_before_its_first_shard_can_be_begun_anew(tmp_path):
    path, out = tmp_path / "a.fa", tmp_path / "out"
    path.write_text(">a\nAC-GT\n")
    with pytest.raises(UserError, match="no token for '-'"):
        run(path, out, tokenizer=vocabulary.dna(), part=(1, 2))
    path.write_text(">a\nACGT\n")
    run(path, out, tokenizer=vocabulary.dna(), part=(1, 2))
    assert (out / "part-1-of-2.json").is_file()


def test_other_prepared_data_is_replaced_only_if_asked_for(data, tmp_path):
    out = run(data, tmp_path / "out")
    (data / "0.txt").write_text("changed meanwhile")
    with pytest.raises(UserError, match=r"0\.txt has changed since"):
        run(data, out)
    run(data, out, replace=True)
    assert content(out) == content(run(data, tmp_path / "whole"))


def test_a_full_disk_is_an_error_that_keeps_what_is_finished(data, tmp_path, monkeypatch):
    calls = iter(range(100))

    def fsync(_: int) -> None:
        if next(calls) > 16:
            raise OSError(28, "No space left on device")

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(UserError, match="No space left on device"):
            run(data, out)
    assert list(out.rglob("*.bin"))
    assert not [path for path in out.rglob(".*") if is_draft(path)]
    assert content(run(data, out)) == content(run(data, tmp_path / "whole"))


@pytest.mark.parametrize("options", [{"part": (0, 2)}, {"part": (3, 2)}, {"workers": 0}, {"workers": 10**12}])
def test_impossible_parts_and_workers_are_refused(options, data, tmp_path):
    with pytest.raises(UserError, match=r"got|must lie between"):
        run(data, tmp_path / "out", **options)
    with pytest.raises(UserError, match="must be in"):
        Division(valid=1.0)


def test_the_manifest_says_what_was_made_of_what(data, tmp_path):
    out = run(data, tmp_path / "out")
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["tokenizer"]["fingerprint"] == BYTE.fingerprint
    assert [source["name"] for source in manifest["sources"]] == ["0.txt", "1.txt", "2.txt"]
    for split, totals in manifest["splits"].items():
        mine = [shard for shard in manifest["shards"] if shard["split"] == split]
        assert totals["tokens"] == sum(shard["tokens"] for shard in mine)
    assert sum(totals["documents"] for totals in manifest["splits"].values()) == 120


def test_many_small_files_share_shards(tmp_path):
    data = write_data(tmp_path / "data", files=50, stories=1)
    out = run(data, tmp_path / "out", division=Division(0))
    assert len(list(out.rglob("*.bin"))) == 1
