"""Read text files chunk by chunk: decompression, UTF-8, and errors that name the byte."""

import codecs
import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from unmask.errors import UserError, install
from unmask.untrusted import open_regular

CHUNK = 1 << 20  # bytes decoded at a time
LINE = 1 << 28  # characters; the longest human chromosome has 249 million on one line of some files
MAGIC = {b"\x1f\x8b": "gz", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zst"}
MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


class Chunk(NamedTuple):
    text: str
    at: int  # bytes of the file read so far, as stored on disk


def chunks(path: Path) -> Iterator[Chunk]:
    """The text of a file, plain or gz / xz / zst (recognised by its first bytes, not by its name)."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    seen = 0  # decompressed bytes before this chunk
    with _open_streams(path) as (raw, stream):
        while True:
            data = _read(stream, path)
            if seen == 0:
                _refuse_other_encodings(data, path)
            zero = data.find(b"\x00")
            if zero >= 0:
                raise UserError(f"{path} is not a text file: byte {seen + zero} is zero. Remove it from the data.")
            held = len(decoder.getstate()[0])  # bytes of a character cut by the last chunk's end
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{path} is not UTF-8: byte {seen - held + error.start}{_inside(raw, stream)} is "
                    f"0x{error.object[error.start]:02x}. Convert it, for example: iconv -f latin1 -t utf-8"
                ) from None
            if text:
                yield Chunk(text, raw.tell())
            if not data:
                return
            seen += len(data)


def lines(path: Path) -> Iterator[Chunk]:
    """The lines of a file without their line ends; a line of more than LINE characters is refused."""
    held: list[str] = []  # the line that the last chunk's end has cut
    at = size = 0
    for text, at in chunks(path):
        first, *others = text.split("\n")
        held.append(first)
        size += len(first)
        if size > LINE:
            raise UserError(f"{path} has a line of more than {LINE:,} characters, which would not fit in memory.")
        if others:
            yield Chunk("".join(held).removesuffix("\r"), at)
            for line in others[:-1]:
                yield Chunk(line.removesuffix("\r"), at)
            held, size = others[-1:], len(others[-1])
    if size:
        yield Chunk("".join(held).removesuffix("\r"), at)


def needs(module: str, purpose: str) -> Any:
    """Import an optional package; if it is missing, the error says how to install it."""
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError:
        raise UserError(f"{purpose} needs the package {module}. Run: {install('train')}") from None


@contextmanager
def _open_streams(path: Path) -> Iterator[tuple[IO[bytes], Any]]:
    """The raw file, whose position shows the progress, and the stream of its decompressed bytes."""
    with open_regular(path) as raw:
        try:
            head = raw.peek(6)[:6]
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}.") from None
        kind = next((kind for magic, kind in MAGIC.items() if head.startswith(magic)), None)
        if kind is None:
            yield raw, raw
        elif kind == "gz":
            with gzip.open(raw) as stream:
                yield raw, stream
        elif kind == "xz":
            with lzma.open(raw) as stream:
                yield raw, stream
        else:
            yield raw, _Zstd(raw, needs("zstandard", f"reading {path.name}").ZstdDecompressor())


class _Zstd:
    """A reader of zstd frames; the package's own reader does not notice that a file was cut short."""

    def __init__(self, raw: IO[bytes], decompressor: Any):
        self.raw, self.decompressor = raw, decompressor
        self.frame: Any = None  # None between frames
        self.rest = b""  # bytes after the end of a frame

    def read(self, size: int) -> bytes:
        while True:
            data = self.rest or self.raw.read(size // 8)
            self.rest = b""
            if not data:
                if self.frame is not None:
                    raise EOFError("it ends inside a compressed frame")
                return b""
            self.frame = self.frame or self.decompressor.decompressobj()
            text = self.frame.decompress(data)
            if self.frame.eof:
                self.frame, self.rest = None, self.frame.unused_data
            if text:
                return text


def _read(stream: Any, path: Path) -> bytes:
    try:
        return stream.read(CHUNK)
    except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        raise UserError(f"cannot read {path}: {error}. The file is damaged or cut short.") from None
    except Exception as error:
        if type(error).__name__ != "ZstdError":  # the package is optional, so its class cannot be imported here
            raise
        raise UserError(f"cannot read {path}: {error}. The file is damaged or cut short.") from None


def _refuse_other_encodings(head: bytes, path: Path) -> None:
    for mark, name in MARKS.items():
        if head.startswith(mark):
            raise UserError(f"{path} is {name}, not UTF-8. Convert it: iconv -f {name} -t utf-8")


def _inside(raw: IO[bytes], stream: Any) -> str:
    return "" if raw is stream else " of its decompressed text"
