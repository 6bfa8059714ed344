"""Damaged and hostile data files in seven formats: prepared, or refused in words with nothing half-written."""

import gzip
import io
import json
import lzma
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet
import zstandard

from confined import confined
from unmask.evaluation.likelihood.variants import read_variants
from unmask.settings import read_toml
from unmask.studies.study import read_study
from unmask.text.corpus.documents import UNITS, FileLayout
from unmask.text.corpus.examples import Columns, examples
from unmask.text.corpus.prepare import choose, prepare
from unmask.text.corpus.records import records
from unmask.text.corpus.sources import gather
from unmask.training.settings import Train

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads do not survive a fork

about = "data, settings and variants with mutated content: read or refused in words, within 20 s of CPU and 1 GB"
usual = 3_000
REPOSITORY = Path(__file__).parents[2]
MOST = 2 << 20  # bytes of a repeated content: time in proportion to the text is no failure

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "12", "birds", "☂", "élan", "<|endoftext|>"]
FIELDS = ("text", "text", "text", "text", "label", "1", "2", "²", "9" * 5_000, "", "txt", "-1", "é")
SNIPPETS: list[bytes] = [
    b"\r",
    b"\n\r\r\n",
    b"\0",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\xc3",
    b"\xef\xbb\xbf",
    b'"',
    b'"' * 3,
    b",",
    b"\t",
    b">",
    b"\\ud800",
    b'{"text": "\\ud800", "label": "\\udfff"}\n',
    b'{"text": ' + b"[" * 100_000,
    b'{"text": "a", "deep": ' + b"[" * 500 + b"]" * 500 + b"}\n",
    b'{"text": ' + b"9" * 5_000 + b"}\n",
    b'{"text": NaN}\n',
    b'{"text": null, "label": 1e999}\n',
    b"[1]\n",
    b'"a"\n',
    b"x" * 300_000,
    b'"' + b"y" * 300_000,
    b"\n" * 10_000,
    b"a,b,c,d,e,f\n",
    b"<|endoftext|>" * 50,
    "\u2028\u0085\x1c".encode(),
]


HOSTILE: dict[str, list[bytes]] = {
    "toml": [
        *(b"\r", b"\0", b"\xff", b"[", b"]", b"[[", b'"', b"'''", b"=", b"\n[a]\n[a]\n", b"\ninclude = 1\n"),
        b"\nx = " + b"[" * 2_000 + b"]" * 2_000 + b"\n",
        b"\nx = " + b"{a=" * 500 + b"1" + b"}" * 500 + b"\n",
        b"\nsteps = " + b"9" * 6_000 + b"\n",
        b"\nsteps = 0x" + b"f" * 6_000 + b"\n",
        b"\n" + b".".join([b"a"] * 50_000) + b" = 1\n",
        b'\ntitle = "\\u001b]0;x\\u0007"\n',
        b'\nbase = "/dev/zero"\n',
        b"\nlr = inf\n",
        b"\nlr = nan\n",
        b"\n[model]\nwidth = 9223372036854775807\n",
        b"# " + b"x" * (1 << 20) + b"\n",
    ],
    "vcf": [*(b"\t", b"\n", b"\0", b"\xff", b"\ta\t" + b"9" * 5_000 + b"\t.\tA\tC\n", b"x" * 300_000), "²".encode()],
}


def document(dice: random.Random) -> str:
    return " ".join(dice.choices(WORDS, k=dice.choice((0, 1, 5, 50))))


def text_file(dice: random.Random) -> bytes:
    return dice.choice(("\n", "\n\n", "<|endoftext|>")).join(document(dice) for _ in range(8)).encode()


def jsonl_file(dice: random.Random) -> bytes:
    rows = [{"text": document(dice), "label": dice.choice(("a", "b", 1, True))} for _ in range(8)]
    return "".join(json.dumps(row, ensure_ascii=dice.random() < 0.5) + "\n" for row in rows).encode()


def csv_file(dice: random.Random) -> bytes:
    return b"text,label\n" + b"".join(f'"{document(dice)}",{dice.choice("ab")}\n'.encode() for _ in range(8))


def tsv_file(dice: random.Random) -> bytes:
    return csv_file(dice).replace(b",", b"\t")


def fasta_file(dice: random.Random) -> bytes:
    return "".join(f">{n}\n{''.join(dice.choices('ACGTN', k=70))}\n" for n in range(5)).encode()


def parquet_file(dice: random.Random) -> bytes:
    columns: dict[str, list[object]] = {"text": [document(dice) for _ in range(8)], "label": list(range(8))}
    if dice.random() < 0.3:
        columns["text"] = dice.choice(([None] * 8, [b"\xff"] * 8, [["a"]] * 8, [{"a": 1}] * 8, [1.5] * 8, ["x"] * 8))
    file = io.BytesIO()
    kind = dice.choice(("snappy", "gzip", "zstd", "none"))
    pyarrow.parquet.write_table(pyarrow.table(columns), file, compression=kind)
    return file.getvalue()


def toml_file(dice: random.Random) -> bytes:
    return (REPOSITORY / dice.choice(("configs/tinystories.toml", "configs/paper/table8.toml"))).read_bytes()


def vcf_file(dice: random.Random) -> bytes:
    rows = [
        f"{dice.choice('ab')}\t{dice.randrange(9)}\t.\t{dice.choice('ACGT')}\t{dice.choice('ACGT')}" for _ in range(8)
    ]
    return "\n".join(["##fileformat=VCFv4.2", "#CHROM\tPOS\tID\tREF\tALT", *rows]).encode()


# Files that another command reads, by ending, with what reads them.
OTHERS: dict[str, tuple[Callable[[random.Random], bytes], tuple[Callable[[Path], object], ...]]] = {
    "toml": (toml_file, (lambda path: read_toml(path, Train()), lambda path: read_study(path, "smoke"))),
    "vcf": (vcf_file, (lambda path: read_variants(str(path), ["a"]),)),
}
FILES: dict[str, Callable[[random.Random], bytes]] = {
    "txt": text_file,
    "jsonl": jsonl_file,
    "csv": csv_file,
    "tsv": tsv_file,
    "fa": fasta_file,
    "parquet": parquet_file,
    "md": text_file,
}
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def damaged(dice: random.Random, data: bytes, snippets: Sequence[bytes] = SNIPPETS) -> bytes:
    """The bytes with a few flipped, cut, repeated or put in."""
    content = bytearray(data)
    for _ in range(dice.choice((0, 1, 1, 2, 4))):
        at = dice.randrange(len(content) + 1)
        kind = dice.choice(("flip", "cut", "snippet", "snippet", "random", "repeat", "gone"))
        if kind == "flip" and content:
            content[at % len(content)] ^= 1 << dice.randrange(8)
        elif kind == "cut":
            content = content[:at]
        elif kind == "snippet":
            content[at:at] = dice.choice(snippets)
        elif kind == "random":
            content[at:at] = dice.randbytes(dice.choice((1, 4, 100)))
        elif kind == "repeat":
            content = content * min(dice.choice((2, 50)), 1 + (MOST // (len(content) + 1)))
        else:
            content[at : at + dice.choice((1, 10, 100))] = b""
    return bytes(content)


def attempt(seed: int, folder: Path) -> str | None:
    """One damaged file; what went wrong, or None."""
    dice = random.Random(seed)
    if dice.random() < 0.2:
        return read_by_others(dice, folder)
    ending, packing = dice.choice(sorted(FILES)), dice.choice(("", "", *PACKED))
    data = PACKED[packing](damaged(dice, FILES[ending](dice)))
    if dice.random() < 0.3:
        data = damaged(dice, data)
    path = folder / f"data.{ending}{packing}"
    path.write_bytes(data)
    field, unit = dice.choice(FIELDS), dice.choice(list(UNITS))
    kind = dice.choice(("byte", "byte", "character", "bpe"))
    way = dice.choice(("prepare", "prepare", "prepare", "records"))
    out = folder / "out"

    def use() -> None:
        if way == "records":
            examples(path, Columns(field))
            list(records(path, field))
            return
        layout = FileLayout(documents=unit, field=field)
        with gather(path) as sources:
            tokenizer = choose(kind, sources, layout=layout, size=300)
            for _ in prepare(sources, tokenizer, out, layout=layout):
                pass

    told = confined(use)
    where = f"{path.name}, {kind}, --field {field[:20]}, --documents {unit}, {way}"
    if told.startswith("refused") and (out / "manifest.json").exists():
        return f"{where}\nfailed: a manifest beside an error: {told}"
    return f"{where}\n{told}" if told.startswith("failed") else None


def read_by_others(dice: random.Random, folder: Path) -> str | None:
    """One damaged settings file, study or table of variants."""
    ending = dice.choice(sorted(OTHERS))
    make, readers = OTHERS[ending]
    path, read = folder / f"data.{ending}", dice.choice(readers)
    kind = dice.choice(("file",) * 17 + ("fifo", "device", "folder"))
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(damaged(dice, make(dice), HOSTILE[ending]))
    told = confined(lambda: read(path))
    return f"{path.name}, {kind}\n{told}" if told.startswith("failed") else None
