"""prepare: sources to a folder of shards, on all cores or on many machines, resumable, never overwriting."""

import json
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from itertools import chain
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from unmask.errors import UserError
from unmask.files import clear_drafts
from unmask.processes.cluster import Cluster, Pending, Shared
from unmask.processes.lock import hold_lock
from unmask.text.corpus.documents import FileLayout
from unmask.text.corpus.manifest import (
    MANIFEST,
    TOKENIZER,
    Part,
    clear_work,
    describe,
    discard_other,
    is_finished,
    is_merged,
    merge,
    note_failure,
    part_file,
    part_lock,
    write_manifest,
)
from unmask.text.corpus.shards import (
    SHARDS,
    Division,
    Shard,
    TextGroup,
    sources_of,
    text_groups,
    write_group,
)
from unmask.text.corpus.sources import Source, check_readable, placed_texts, texts
from unmask.text.tokens.alphabets import alphabet_of, check_alphabet
from unmask.text.tokens.tokenizer import NoToken, Tokenizer
from unmask.text.tokens.vocabulary import KINDS, build_tokenizer

T = TypeVar("T")
MOST_WORKERS = 1024  # a greater number is most likely a typing error


def choose(
    name: str, sources: list[Source], *, layout: FileLayout | None = None, size: int = 4096, megabytes: int = 256
) -> Tokenizer:
    """The tokenizer of a name: a path, `hf:NAME`, or a kind, which is built for the sources.

    Merges are learned from at most `megabytes` of text, never from files named for validation or test. A
    character vocabulary is built from all of the text, so that no character is missing.
    """
    layout = layout or FileLayout()
    if name not in KINDS and (name.startswith("hf:") or Path(name).exists()):
        tokenizer = Tokenizer.load(name)
    else:
        if name == "bpe":
            sources = [source for source in sources if source.split in (None, "train")]
        limit = megabytes * 1_000_000 if name == "bpe" else None
        written = [] if layout.chat is None else [layout.chat.words]
        tokenizer = build_tokenizer(name, chain(texts(sources, layout, limit=limit), written), size=size)
    if alphabet_of(tokenizer) is not None:
        check_alphabet(tokenizer, next(texts(sources, layout), ""))
    return tokenizer


class Prepared(NamedTuple):
    documents: int
    tokens: int
    bytes: int  # of the sources, read and tokenized
    total: int  # bytes of the sources; 0 if unknown

    @property
    def line(self) -> str:
        """What is done so far; a long document counts when its last piece is done."""
        documents = f", {self.documents:,} document{'s' * (self.documents > 1)}" if self.documents else ""
        return f"{self.tokens:,} tokens{documents}"


def prepare(
    sources: Sequence[Source],
    tokenizer: Tokenizer,
    out: str | Path,
    *,
    layout: FileLayout | None = None,
    division: Division | None = None,
    workers: int = 1,
    cluster: Cluster | None = None,
    part: Part = (1, 1),
    replace: bool = False,
) -> Iterator[Prepared]:
    """Write the sources' tokens to a folder, and yield the progress after each group of text.

    An interrupted run is completed, wherever it was interrupted; a finished folder stays as it is; any other content
    of the folder is an error, and so is another process that writes to it. What another job left that failed with an
    error is replaced; with `replace`, so is other prepared data. Several workers are processes, so a script that
    calls this needs the usual `if __name__` guard. The workers of a cluster write to a folder that all nodes share.
    """
    if not 1 <= part[0] <= part[1]:
        raise UserError(f"a part is written i/n with i from 1 to n, such as 1/4; got {part[0]}/{part[1]}")
    if not 1 <= workers <= MOST_WORKERS:
        raise UserError(f"the number of workers must lie between 1 and {MOST_WORKERS:,}; saw {workers:,}.")
    sources = sorted(sources, key=lambda source: (source.mix, source.name))
    out, layout, division = Path(out), layout or FileLayout(), (division or Division()).sized(sources)
    mine = sources_of(sources, part=part)
    job = describe(mine, tokenizer, layout, division)
    alone = part[1] == 1  # otherwise the parts are merged later, and other processes may write to the folder too
    if is_finished(out, job, part, replace=replace) and (not alone or is_merged(out)):
        return
    check_readable(mine, layout)
    with hold_lock(part_lock(out, part)):
        finished = is_finished(out, job, part, replace=replace)  # again: another process may have ended meanwhile
        with _failing_cleanly(out, job, part):
            if not finished:
                if alone:
                    discard_other(out, job)
                    clear_drafts(out)
                    clear_drafts(out / SHARDS)
                tokenizer.save(out)
                write_manifest(part_file(out, part), {**job, "part": part})
                shards: list[Shard] = []
                documents = tokens = 0
                groups = text_groups(sources, layout, division, part=part)
                steps = _write_groups(groups, tokenizer, out, workers, cluster)
                for at, written in _locate_errors(steps, mine, layout):
                    shards += written
                    documents += sum(shard.documents for shard in written)
                    tokens += sum(shard.tokens for shard in written)
                    yield Prepared(documents, tokens, at, sum(source.bytes for source in mine))
                listed = [shard._asdict() for shard in sorted(shards)]
                write_manifest(part_file(out, part), {**job, "part": part, "shards": listed})
            if alone and not (out / MANIFEST).is_file():
                merge([out], out)
            elif alone:
                clear_work(out)


@contextmanager
def _failing_cleanly(out: Path, job: dict[str, Any], part: Part) -> Iterator[None]:
    """After an error in the block, leave nothing that keeps the corrected command from using the folder."""
    made = [path for path in (out / name for name in TOKENIZER) if not path.exists()]
    try:
        yield
    except UserError as error:
        with suppress(UserError, OSError):  # the disk may be full: what is said then is the first error
            if note_failure(out, job, part, error):
                for path in made:
                    path.unlink(missing_ok=True)
        raise


def _locate_errors(steps: Iterator[T], sources: Sequence[Source], layout: FileLayout) -> Iterator[T]:
    """The steps; the error for a letter without a token says where in the sources it is."""
    try:
        yield from steps
    except NoToken as error:
        raise error.locate(placed_texts(sources, layout)) from None


def _write_groups(
    todo: Iterator[TextGroup], tokenizer: Tokenizer, out: Path, workers: int, cluster: Cluster | None
) -> Iterator[tuple[int, list[Shard]]]:
    """The position of each group in the sources and its shards, in order, written now or by an earlier run."""
    if cluster is not None:
        yield from _write_on(cluster, todo, tokenizer, out.resolve())
        return
    if workers == 1:
        for group in todo:
            yield group.at, _earlier(group, tokenizer, out) or write_group(group, tokenizer, out)
        return
    waiting: deque[tuple[int, Future[list[Shard]] | list[Shard]]] = deque()
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _start, (tokenizer, out))
    try:
        for group in todo:
            waiting.append((group.at, _earlier(group, tokenizer, out) or pool.submit(_work, group)))
            while len(waiting) > workers + 1:  # bounds the text held in memory
                yield _result(*waiting.popleft())
        while waiting:
            yield _result(*waiting.popleft())
    except BrokenProcessPool:
        raise UserError(
            "a worker died, perhaps for lack of memory. Run the same command again: it continues where it stopped; "
            "fewer --workers need less memory."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _write_on(
    cluster: Cluster, todo: Iterator[TextGroup], tokenizer: Tokenizer, out: Path
) -> Iterator[tuple[int, list[Shard]]]:
    """The same, by the workers of a cluster."""
    shared = cluster.share((tokenizer, out))
    waiting: deque[tuple[TextGroup, Pending[list[Shard]] | list[Shard]]] = deque()

    def first() -> tuple[int, list[Shard]]:
        group, pending = waiting.popleft()
        shards = pending if isinstance(pending, list) else pending.result()
        if shards and _earlier(group, tokenizer, out) is None:
            raise UserError(
                f"a worker wrote {shards[0].name} where this machine does not see it: all nodes must share {out}."
            )
        return group.at, shards

    for group in todo:
        earlier = _earlier(group, tokenizer, out)
        waiting.append(
            (group, cluster.submit(_write_shared, group, shared, threads=1) if earlier is None else earlier)
        )
        while len(waiting) > 2 * cluster.cores:
            yield first()
    while waiting:
        yield first()


def _write_shared(group: TextGroup, shared: Shared[tuple[Tokenizer, Path]]) -> list[Shard]:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a worker uses one core
    return write_group(group, *shared.value)


def _earlier(group: TextGroup, tokenizer: Tokenizer, out: Path) -> list[Shard] | None:
    """The shards of a group that an interrupted run had finished."""
    note = out / SHARDS / f"{group.name}.json"
    if not note.exists():
        return None
    shards = [Shard(*fields) for fields in json.loads(note.read_text())]
    for name, size, _ in (file for shard in shards for file in shard.files(tokenizer.size)):
        path = out / SHARDS / name
        if not path.exists() or path.stat().st_size != size:
            return None
    return shards


def _result(at: int, shards: Future[list[Shard]] | list[Shard]) -> tuple[int, list[Shard]]:
    return at, shards if isinstance(shards, list) else shards.result()


_worker: tuple[Tokenizer, Path] | None = None  # set in worker processes only


def _start(tokenizer: Tokenizer, out: Path) -> None:
    global _worker
    _worker = (tokenizer, out)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a worker uses one core
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which then stops its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Exit with the parent: workers would outlive a parent that is killed."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _work(group: TextGroup) -> list[Shard]:
    if _worker is None:
        raise RuntimeError("not a worker")
    return write_group(group, *_worker)
