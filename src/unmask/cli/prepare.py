"""Turn text into token shards that training reads.

The source is a file, a folder, a glob, `-` for standard input, a corpus by name (c4, lm1b, openwebtext, ptb, text8,
tinystories, wikitext2, wikitext103) or `hf:NAME:CONFIG@SPLIT#REVISION` for a data set on the hub: .txt, .jsonl, .csv,
.tsv, .parquet or FASTA, plain or compressed (gz, xz, zst). Files of a corpus belong into data/NAME.

    unmask prepare my_texts/ --out data/
    unmask prepare lm1b --out data/ --tokenizer hf:bert-base-uncased
    unmask prepare hf:roneneldan/TinyStories --out data/ --vocab 8192
    unmask prepare genome.fa.gz --out data/ --tokenizer dna --intervals splits.bed
    unmask prepare my_texts/ --out part1/ --part 1/2
    unmask prepare part1/ part2/ --merge --out data/
    unmask prepare my_texts/ --out /shared/data --on ray://head:10001
    unmask prepare data/ --verify
"""

import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from unmask.cli.flags import On
from unmask.errors import UserError
from unmask.model.model import shipped_models
from unmask.processes.cluster import connect_cluster
from unmask.processes.mirror import upload_after
from unmask.storage import is_remote
from unmask.text.corpus.corpus import verify
from unmask.text.corpus.documents import FileLayout
from unmask.text.corpus.manifest import MANIFEST, TOKENIZER, loss_lines, merge, prepared_folder, read_manifest
from unmask.text.corpus.prepare import Prepared as Step
from unmask.text.corpus.prepare import choose, prepare
from unmask.text.corpus.repeats import repeats
from unmask.text.corpus.shards import Division
from unmask.text.corpus.sources import gather


@dataclass(frozen=True)
class Settings:
    source: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")
    ]  # what to read; with --merge the folders of the parts, with --verify prepared data
    out: str = ""  # folder to write; new, or left by an interrupted run of the same command
    tokenizer: str = "bpe"  # byte, character, bpe, dna, protein, caduceus, text8, a path, stories, hf:NAME#REVISION
    vocab: int = 4096  # size of a bpe vocabulary, the mask included
    sample: int = 256  # megabytes of text to train a bpe vocabulary on, from the start
    layout: Annotated[FileLayout, tyro.conf.OmitArgPrefixes] = field(default_factory=FileLayout)
    division: Annotated[Division, tyro.conf.OmitArgPrefixes] = field(default_factory=Division)
    workers: int = 0  # worker processes; 0: one per core
    on: On = ""
    part: str = "1/1"  # i/n: do part i of n of the work; --merge combines the parts
    merge: bool = False  # merge finished parts: unmask prepare part1/ part2/ --merge --out data/
    verify: bool = False  # read every shard of prepared data and compare its sha256: unmask prepare data/ --verify


def run(settings: Settings) -> None:
    if settings.verify:
        for folder in settings.source:
            local = prepared_folder(folder) or Path(folder)
            verify(local)
            print(*summary_lines(local, folder), "  every shard is as it was written", sep="\n")
        return
    if not settings.out:
        raise UserError("where should the tokens go? Give --out FOLDER, such as --out data/.")
    part = read_part(settings.part)
    if is_remote(settings.out) and part[1] > 1:
        raise UserError(
            "a part goes to a folder of this machine, or one that machines share; merge them with --merge."
        )
    with upload_after(settings.out, (MANIFEST, *TOKENIZER)) as out:
        make(settings, out, part)
        if part[1] > 1:
            print(f"part {settings.part} is in {out}; when all parts are done, merge them with --merge")
            return
        lines = list(summary_lines(out, settings.out))
    print("\n".join(lines))


def make(settings: Settings, out: Path, part: tuple[int, int]) -> None:
    """Write the tokens to a folder of this machine."""
    if settings.merge:
        merge(settings.source, out)
    else:
        if len(settings.source) != 1:
            raise UserError(f"one source is expected, not {len(settings.source)}. Quote a glob: 'texts/*.txt'")
        workers = settings.workers or cores()
        if workers == 1:
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # or the library would use every core
        with connect_cluster(settings.on) as cluster, gather(settings.source[0], settings.layout) as sources:
            for line in repeats(sources).lines():
                print(f"warning: {line}", file=sys.stderr)
            tokenizer = choose(
                str(shipped_models().get(settings.tokenizer, settings.tokenizer)),
                sources,
                layout=settings.layout,
                size=settings.vocab,
                megabytes=settings.sample,
            )
            show(
                prepare(
                    sources,
                    tokenizer,
                    out,
                    layout=settings.layout,
                    division=settings.division,
                    workers=workers,
                    cluster=cluster,
                    part=part,
                )
            )


def cores() -> int:
    """The cores that this process may use, if the system reports them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_part(text: str) -> tuple[int, int]:
    match = re.fullmatch("([0-9]{1,6})/([0-9]{1,6})", text)
    if match is None:
        raise UserError(f"a part is written i/n, such as 1/4; got {text!r}")
    return int(match[1]), int(match[2])


def show(steps: Iterator[Step]) -> None:
    """A bar in a terminal, a line every ten seconds in a log."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        last = time.monotonic()
        for step in steps:
            if time.monotonic() - last > 10:
                last = time.monotonic()
                share = f"{100 * step.bytes / step.total:.0f} %, " if step.total else ""
                print(f"{share}{step.line}", file=sys.stderr)
        return
    columns = (BarColumn(), TextColumn("{task.percentage:>3.0f} %  {task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("reading", total=None)
        for step in steps:
            shown = step.line
            progress.update(task, completed=step.bytes, total=step.total or None, description=shown)


def summary_lines(out: Path, name: str) -> Iterator[str]:
    manifest = read_manifest(out / MANIFEST)
    yield f"{name}: tokenizer of {manifest['tokenizer']['size']:,} ids, {len(manifest['shards'])} shards"
    for split, totals in manifest["splits"].items():
        yield f"  {split:<6} {totals['documents']:>12,} documents  {totals['tokens']:>15,} tokens"
    for line in loss_lines(manifest):
        yield f"  {line}"
