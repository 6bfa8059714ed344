"""The description of a folder of shards: the job that made it, its parts, and the manifest they merge into.

A job is described in part-i-of-n.json before it starts; when it ends, its shards are listed there too. If it fails
with an error, the error is there: the same job goes on where it stopped, and another one may replace it.
manifest.json is written last, from all parts: its presence means that the data is complete.
"""

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from unmask import storage
from unmask.errors import UserError
from unmask.files import clear_drafts, is_draft, write_whole, writing
from unmask.processes.lock import hold_lock
from unmask.text.corpus.documents import FileLayout
from unmask.text.corpus.integrity import STAMP
from unmask.text.corpus.named import corpus_name, home
from unmask.text.corpus.shards import FORMAT, SHARDS, Division, Shard, token_type
from unmask.text.corpus.sources import Source
from unmask.text.tokens.tokenizer import Tokenizer
from unmask.untrusted import MEGABYTE, read_object

MANIFEST = "manifest.json"
MERGING = ".merge.lock"
FAILED = "failed"  # in the description of a part: the error with which it ended
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
OURS = {SHARDS, MANIFEST, STAMP, MERGING, storage.ORIGIN, *TOKENIZER}
Part = tuple[int, int]  # (i, n) is the i-th of n, counted from 1


def prepared_folder(where: str | Path) -> Path | None:
    """The folder at a place, or of a corpus's name below the data root, if `unmask prepare` wrote it.

    Of one at an address its small files: a corpus reads the others from there.
    """
    if storage.is_remote(where):
        return storage.fetched_with_origin(str(where), (MANIFEST, *TOKENIZER))
    where = storage.without_scheme(str(where))
    name = None if Path(where).exists() else corpus_name(str(where))
    folder = Path(where) if name is None else home(name)
    return folder if (folder / MANIFEST).is_file() else None


def describe(
    sources: Sequence[Source], tokenizer: Tokenizer, layout: FileLayout, division: Division
) -> dict[str, Any]:
    """The description of a job: everything that determines its result."""
    special = {role: getattr(tokenizer, role) for role in ("mask", "pad", "bos", "eos")}
    return {
        "format": FORMAT,
        "tokenizer": {"fingerprint": tokenizer.fingerprint, "size": tokenizer.size, **special},
        "dtype": token_type(tokenizer.size).name,
        "layout": described_layout(layout),
        "division": asdict(division),
        "sources": [described_source(source) for source in sources],
    }


def described_source(source: Source) -> dict[str, Any]:
    mix = {"mix": source.mix} if source.mix else {}
    return {"name": source.name, "bytes": source.bytes, "sha256": source.sha256(), **mix}


def described_layout(layout: FileLayout) -> dict[str, Any]:
    """The layout in a manifest; pairs and regions of sequences only if there are any, these by their file's name."""
    pairs = ("given", "answer") * (not layout.pairs) + ("template",) * (not layout.template)
    regions = ("intervals", "stretch", "window") * (not layout.intervals)
    values = {key: value for key, value in asdict(layout).items() if key not in (*pairs, *regions)}
    if layout.chat is not None:
        values["template"] = layout.chat.text
    return {**values, "intervals": Path(layout.intervals).name} if layout.intervals else values


def is_finished(out: Path, job: dict[str, Any], part: Part, *, replace: bool = False) -> bool:
    """Whether a folder holds the shards of this job already; an error if it holds anything else.

    The data of another job that failed are no error, nor those of any other job with `replace`.
    """
    with writing(out):
        if out.exists() and not out.is_dir():
            raise UserError(f"{out} is a file; --out must be a folder")
        there = {path for path in out.iterdir() if not is_draft(path)} if out.exists() else set()
    strange = sorted({path.name for path in there if not path.name.lstrip(".").startswith("part-")} - OURS)
    if strange:
        raise UserError(f"{out} contains other files ({', '.join(strange[:3])}). Give --out a new folder.")
    for path, same_scope in ((part_file(out, part), True), (out / MANIFEST, part == (1, 1))):
        if path.exists():
            before = read_manifest(path)
            reasons = changes(before, job, same_scope=same_scope)
            if reasons and not replace and FAILED not in before:
                why = "; ".join(reasons[:4])
                raise UserError(f"{out} holds data that was prepared differently: {why}. Give another --out.")
            return not reasons and "shards" in before
    return False


def discard_other(out: Path, job: dict[str, Any]) -> None:
    """Remove the data of another job, which `is_finished` has allowed to replace; those of this one stay."""
    for path in (part_file(out, (1, 1)), out / MANIFEST):
        if path.exists() and changes(read_manifest(path), job, same_scope=True):
            discard(out)
            return


def discard(out: Path) -> None:
    """Remove prepared data; the description of unfinished shards goes last: no other job takes them for its own."""
    with writing(out):
        for name in (MANIFEST, STAMP):
            (out / name).unlink(missing_ok=True)
        if (out / SHARDS).exists():
            shutil.rmtree(out / SHARDS)
        part_file(out, (1, 1)).unlink(missing_ok=True)


def note_failure(out: Path, job: dict[str, Any], part: Part, error: UserError) -> bool:
    """Forget a job that failed before it finished a shard; else write down why it failed. Whether it was forgotten.

    The finished shards of one of several parts are kept without a note: other parts may be in the folder.
    """
    if (out / MANIFEST).is_file():
        return False
    finished, alone = any((out / SHARDS).glob("*.json")), part[1] == 1
    if finished and alone:
        write_manifest(part_file(out, part), {**job, "part": part, FAILED: str(error)})
    elif alone:
        discard(out)
    elif not finished:
        part_file(out, part).unlink(missing_ok=True)
    return not finished


def part_file(out: Path, part: Part) -> Path:
    return out / f"part-{part[0]}-of-{part[1]}.json"


def part_lock(out: Path, part: Part) -> Path:
    """The lock of a part: several machines may do the parts of one job in one folder."""
    return out / f".part-{part[0]}-of-{part[1]}.lock"


def is_merged(out: Path) -> bool:
    """Whether the data is complete and nothing is left of the work."""
    return (out / MANIFEST).is_file() and not leftovers(out) and not any(map(is_draft, out.iterdir()))


def leftovers(out: Path) -> list[Path]:
    """The files of the parts, which the manifest replaces."""
    return [*out.glob("part-*-of-*.json"), *(out / SHARDS).glob("*.json")]


def merge(folders: Sequence[str | Path], out: str | Path) -> None:
    """Merge the parts of one job; the result equals that of an undivided job."""
    with hold_lock(Path(out) / MERGING):
        _merge(folders, Path(out))


def _merge(folders: Sequence[str | Path], out: Path) -> None:
    files = [path for folder in folders for path in sorted(Path(folder).glob("part-*-of-*.json"))]
    parts = [read_manifest(path) for path in files]
    _check_parts(parts, folders)
    job = {key: parts[0][key] for key in ("format", "tokenizer", "dtype", "layout", "division")}
    sources = {source["name"]: source for part in parts for source in part["sources"]}
    job["sources"] = [sources[name] for name in sorted(sources)]
    shards = sorted(Shard(**shard) for part in parts for shard in part["shards"])
    if sum(shard.tokens for shard in shards) < 2:
        raise UserError("the sources hold fewer than two tokens: there is nothing to learn from")
    if any(path.parent != out for path in files) and is_finished(out, job, (1, 1)):
        return
    for path, part in zip(files, parts, strict=True):
        for name, _, digest in (file for shard in part["shards"] for file in Shard(**shard).files(1)):
            _copy(path.parent / SHARDS / name, out / SHARDS / name, digest)
    if files[0].parent != out:
        Tokenizer.load(files[0].parent).save(out)
    splits = {shard.split: _totals(shards, shard.split) for shard in shards}
    listed = [shard._asdict() for shard in shards]
    write_manifest(out / MANIFEST, {**job, "splits": splits, **losses(shards), "shards": listed})
    clear_work(out)


def losses(shards: Sequence[Shard]) -> dict[str, Any]:
    """What of the text is not in the shards: letters that became another token, documents without a token."""
    replaced = Counter[str]()
    for shard in shards:
        replaced.update(shard.replaced)
    return {"replaced": dict(replaced), "empty": sum(shard.empty for shard in shards)}


def loss_lines(manifest: Mapping[str, Any]) -> Iterator[str]:
    """What prepared data has lost, in words."""
    replaced, empty = manifest.get("replaced", {}), manifest.get("empty", 0)
    if replaced:
        most = sorted(replaced.items(), key=lambda one: -one[1])
        shown = ", ".join(f"{letter}: {count:,}" for letter, count in most[:8]) + (", ..." if most[8:] else "")
        yield f"{sum(replaced.values()):,} letters that the vocabulary does not have were replaced ({shown})"
    if empty:
        yield f"{empty:,} documents without a token were left out"


def clear_work(out: Path) -> None:
    """Remove what only the work needed: the manifest is there."""
    with writing(out):
        for left in leftovers(out):
            left.unlink()
    for folder in (out, out / SHARDS):
        clear_drafts(folder)


def read_manifest(path: Path) -> dict[str, Any]:
    return read_object(path, limit=256 * MEGABYTE)


def write_manifest(path: Path, content: dict[str, Any]) -> None:
    write_whole(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def changes(before: dict[str, Any], job: dict[str, Any], *, same_scope: bool) -> list[str]:
    """How the job that a folder describes differs from another one, in words."""
    old = {source["name"]: source["sha256"] for source in before["sources"]}
    new = {source["name"]: source["sha256"] for source in job["sources"]}
    changed = [key for key in ("format", "layout", "division") if before[key] != job[key]]
    reasons = [f"its {key} is {before[key]}, the new one is {job[key]}" for key in changed]
    if before["tokenizer"] != job["tokenizer"]:
        reasons.append("it has another tokenizer")
    reasons += [f"{name} has changed since" for name in new if old.get(name, new[name]) != new[name]]
    reasons += [f"it was made without {name}" for name in new if name not in old]
    if same_scope:
        reasons += [f"it was made with {name}, which is gone" for name in old if name not in new]
    return reasons


def _check_parts(parts: list[dict[str, Any]], folders: Sequence[str | Path]) -> None:
    if not parts:
        raise UserError(f"no parts to merge in {', '.join(map(str, folders))}")
    sha256s: dict[str, str] = {}
    for part in parts:
        name = f"part {part['part'][0]}/{part['part'][1]}"
        if "shards" not in part:
            raise UserError(f"{name} is not finished: run it again, it continues where it stopped")
        for key in ("format", "tokenizer", "layout", "division"):
            if part[key] != parts[0][key]:
                raise UserError(f"{name} belongs to another job: its {key} is {part[key]}, not {parts[0][key]}")
        for source in part["sources"]:
            if sha256s.setdefault(source["name"], source["sha256"]) != source["sha256"]:
                raise UserError(f"{name} read a different {source['name']} than the other parts")
    count = parts[0]["part"][1]
    seen = sorted(tuple(part["part"]) for part in parts)
    wanted = [(i, count) for i in range(1, count + 1)]
    if seen != wanted:
        lacking = [f"{i}/{n}" for i, n in wanted if (i, n) not in seen]
        raise UserError(
            f"parts do not add up: found {', '.join(f'{i}/{n}' for i, n in seen)}"
            + (f"; {', '.join(lacking)} missing" if lacking else "")
        )


def _totals(shards: list[Shard], split: str) -> dict[str, int]:
    mine = [shard for shard in shards if shard.split == split]
    return {"documents": sum(s.documents for s in mine), "tokens": sum(s.tokens for s in mine)}


def _copy(source: Path, target: Path, digest: str) -> None:
    if source == target:
        return
    try:
        data = source.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {source}: {error.strerror}") from None
    if sha256(data).hexdigest() != digest:
        raise UserError(f"{source} is damaged: its sha256 differs from the recorded one")
    write_whole(target, data)
