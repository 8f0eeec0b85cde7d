"""Reading parallel text: plain or compressed, two aligned files or one TSV.

Every error names the file and the line, because files are large and users need to find the line.
"""

from __future__ import annotations

import gzip
import io
import lzma
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NamedTuple, cast

from waitinfo.errors import WaitinfoError

# Suffixes that never mean plain text. Files with any other suffix (none, .txt, .de, .clean, …) are
# read as plain text and checked line by line.
NOT_TEXT = frozenset((
    ".bz2", ".zip", ".7z", ".rar", ".tar", ".tgz", ".lz4", ".br", ".pdf", ".doc", ".docx",
    ".odt", ".xls", ".xlsx", ".parquet", ".arrow", ".npy", ".npz", ".bin",
    ".safetensors", ".model", ".sqlite", ".db", ".png", ".jpg",
))  # fmt: skip
CHUNK = 1 << 14  # bytes read from a .zst file at a time; they may become very many


class Pair(NamedTuple):
    source: str
    target: str


def normalise(text: str) -> str:
    """Normalise text before tokenization: Unicode NFC and single spaces.

    SentencePiece marks spaces with U+2581, so this character in the text becomes an underscore.
    Control characters, which tokenizers cannot represent, become spaces. A single surrogate, which
    is not a valid character, becomes U+FFFD.
    """
    if not text.isprintable():
        text = join_surrogates(text)
        text = "".join(" " if unicodedata.category(c) == "Cc" else c for c in text)
    if "\u2581" in text:
        text = text.replace("\u2581", "_")
    return " ".join(unicodedata.normalize("NFC", text).split())


def join_surrogates(text: str) -> str:
    """Replace pairs of surrogates by their characters, and single surrogates by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class Meter:
    """Counts the bytes read from files, before decompression."""

    def __init__(self) -> None:
        self._finished = 0
        self._open: list[IO[bytes]] = []

    def open(self, path: Path) -> IO[bytes]:
        stream = path.open("rb")
        self._open.append(stream)
        return stream

    def close(self, stream: IO[bytes]) -> None:
        self._finished += _position(stream)
        self._open.remove(stream)
        stream.close()

    @property
    def consumed(self) -> int:
        return self._finished + sum(map(_position, self._open))


def _position(stream: IO[bytes]) -> int:
    return stream.tell() if stream.seekable() else 0


def _zstandard(name: str | Path, task: str) -> ModuleType:
    try:
        import zstandard
    except ImportError:
        raise WaitinfoError(
            f"{name}: {task} .zst needs the package zstandard; "
            "install it with: pip install 'waitinfo[zstd]'"
        ) from None
    return zstandard


class ZstdReader(io.RawIOBase):
    """Decompresses frame after frame; a last frame that is not complete is an error."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._context = _zstandard(raw.name, "reading").ZstdDecompressor()
        self._frame: Any = None  # the one that is not complete
        self._compressed = b""  # read, and behind the end of the last frame
        self._text = memoryview(b"")  # not asked for yet

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._text:
            self._compressed = self._compressed or self._raw.read(CHUNK)
            if not self._compressed:
                if self._frame is not None:
                    raise EOFError("Compressed file ended before the end of its last frame")
                return 0
            self._frame = self._frame or self._context.decompressobj()
            self._text = memoryview(self._frame.decompress(self._compressed))
            self._compressed = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        count = min(len(buffer), len(self._text))
        buffer[:count], self._text = self._text[:count], self._text[count:]
        return count


def _zstd(raw: IO[bytes]) -> IO[bytes]:
    return cast("IO[bytes]", io.BufferedReader(ZstdReader(raw), 1 << 16))


def _zstd_writer(raw: IO[bytes]) -> IO[bytes]:
    return _zstandard(raw.name, "writing").ZstdCompressor().stream_writer(raw, closefd=False)


DECOMPRESSORS: dict[str, Callable[[IO[bytes]], IO[bytes]]] = {
    ".gz": lambda raw: cast("IO[bytes]", gzip.GzipFile(fileobj=raw)),
    ".xz": lambda raw: cast("IO[bytes]", lzma.LZMAFile(raw)),  # noqa: SIM115 (closed by its reader)
    ".zst": _zstd,
}
COMPRESSORS: dict[str, Callable[[IO[bytes]], IO[bytes]]] = {
    ".gz": lambda raw: cast("IO[bytes]", gzip.GzipFile(fileobj=raw, mode="wb", mtime=0)),
    ".xz": lambda raw: cast("IO[bytes]", lzma.LZMAFile(raw, "wb")),  # noqa: SIM115
    ".zst": _zstd_writer,
}


def check_readable(path: Path) -> None:
    """Raise an error unless `path` is a file that can be read as text."""
    if not path.exists():
        raise WaitinfoError(f"{path}: no such file")
    if path.is_dir():
        raise WaitinfoError(f"{path}: is a folder, not a text file")
    suffix = path.suffix.lower()
    if suffix in NOT_TEXT:
        known = ", ".join(DECOMPRESSORS)
        raise WaitinfoError(f"{path}: unknown suffix '{suffix}'; give plain text or {known}")


def read_lines(path: Path, meter: Meter | None = None) -> Iterator[str]:
    """Yield the lines of a text file without line ends; the suffix selects decompression."""
    for number, line in enumerate(read_bytes(path, meter), 1):
        if b"\0" in line:
            raise WaitinfoError(f"{path}, line {number}: contains a NUL byte; not a text file")
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise WaitinfoError(
                f"{path}, line {number}: not valid UTF-8 ({error.reason} at byte {error.start + 1})"
            ) from None


def read_bytes(path: Path, meter: Meter | None = None) -> Iterator[bytes]:
    """Yield the lines of a file with their line ends; the suffix selects decompression."""
    check_readable(path)
    meter = meter or Meter()
    decompress = DECOMPRESSORS.get(path.suffix.lower(), lambda raw: raw)
    try:
        raw = meter.open(path)
    except OSError as error:
        raise WaitinfoError(f"{path}: cannot be read ({error.strerror})") from None
    number = 0
    try:
        for line in decompress(raw):
            number += 1
            yield line
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise WaitinfoError(f"{path}, after line {number}: cannot be read ({error})") from None
    except Exception as error:
        if type(error).__name__ != "ZstdError":  # zstandard may not be installed
            raise
        raise WaitinfoError(f"{path}, after line {number}: cannot be read ({error})") from None
    finally:
        meter.close(raw)


def check_writable(path: Path) -> None:
    """Raise an error unless text can be written to `path`, compressed as its suffix says."""
    if path.is_dir():
        raise WaitinfoError(f"{path}: is a folder; give the name of a file to write")
    if not path.parent.is_dir():
        raise WaitinfoError(f"{path.parent}: no such folder")
    suffix = path.suffix.lower()
    if suffix in NOT_TEXT:
        known = ", ".join(COMPRESSORS)
        raise WaitinfoError(f"{path}: unknown suffix '{suffix}'; write plain text or {known}")
    if suffix == ".zst":
        _zstandard(path, "writing")


@contextmanager
def compressed(raw: IO[bytes], suffix: str) -> Iterator[IO[bytes]]:
    """A stream that compresses into `raw` as a suffix says; plain for any other suffix."""
    wrap = COMPRESSORS.get(suffix.lower())
    if wrap is None:
        yield raw
        return
    with wrap(raw) as stream:
        yield stream


def read_aligned(source: Path, target: Path, meter: Meter | None = None) -> Iterator[Pair]:
    """Yield the pairs of two line-aligned files."""
    left, right = read_lines(source, meter), read_lines(target, meter)
    number = 0
    for number, line in enumerate(left, 1):
        other = next(right, None)
        if other is None:
            raise WaitinfoError(
                f"{target}: ends after line {number - 1}, but {source} has more lines; "
                "the two files must have the same number of lines"
            )
        yield Pair(line, other)
    if next(right, None) is not None:
        raise WaitinfoError(
            f"{source}: ends after line {number}, but {target} has more lines; "
            "the two files must have the same number of lines"
        )


def read_tsv(path: Path, meter: Meter | None = None) -> Iterator[Pair]:
    """Yield the pairs of a TSV file: source, tab, target. Further columns are ignored."""
    for number, line in enumerate(read_lines(path, meter), 1):
        columns = line.split("\t")
        if len(columns) < 2:
            raise WaitinfoError(f"{path}, line {number}: no tab; each line is source<TAB>target")
        yield Pair(columns[0], columns[1])


class ParallelText:
    """Any number of aligned file pairs and TSV files, read as one sequence of pairs.

    `in_order` names the source and TSV files whose lines follow each other as in the original text,
    `tagged` those whose sources a machine wrote.
    """

    def __init__(
        self,
        sources: Sequence[Path] = (),
        targets: Sequence[Path] = (),
        tsv: Sequence[Path] = (),
        in_order: Sequence[Path] = (),
        tagged: Sequence[Path] = (),
    ) -> None:
        if len(sources) != len(targets):
            raise WaitinfoError(
                f"{len(sources)} source and {len(targets)} target files were given; "
                "each source file needs a target file, in the same order"
            )
        self.aligned = list(zip(sources, targets, strict=True))
        self.tsv = list(tsv)
        self.meter = Meter()
        for path in self.paths:
            check_readable(path)
        self.in_order, self.tagged = set(in_order), set(tagged)
        for option, paths in (("in-order", in_order), ("tagged", tagged)):
            for path in paths:
                if path not in (*sources, *tsv):
                    raise WaitinfoError(
                        f"--{option} {path}: not one of the --source and --tsv files"
                    )
        if both := self.in_order & self.tagged:
            raise WaitinfoError(
                f"--tagged {min(both)}: also given with --in-order; tagged pairs make no windows"
            )

    @property
    def paths(self) -> list[Path]:
        return [path for pair in self.aligned for path in pair] + self.tsv

    @property
    def size(self) -> int:
        """Total size of the files in bytes."""
        return sum(path.stat().st_size for path in self.paths)

    def __bool__(self) -> bool:
        return bool(self.paths)

    def __iter__(self) -> Iterator[Pair]:
        return (pair for pair, _, _ in self.with_positions())

    def with_positions(self) -> Iterator[tuple[Pair, int, bool]]:
        """All pairs with rising positions, and whether they are tagged.

        The positions of pairs that follow each other differ by one.
        """
        position = 0
        for path, pairs in self._inputs():
            step = 1 if path in self.in_order else 2
            position += 1
            for pair in pairs:
                position += step
                yield pair, position, path in self.tagged

    def _inputs(self) -> Iterator[tuple[Path, Iterator[Pair]]]:
        for source, target in self.aligned:
            yield source, read_aligned(source, target, self.meter)
        for path in self.tsv:
            yield path, read_tsv(path, self.meter)


def sha256(path: Path) -> str | None:
    """Checksum of a file's bytes; None for a pipe, which can be read only once."""
    import hashlib

    if not path.is_file():
        return None
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_lines(lines: Iterable[str]) -> str:
    """Checksum of text lines, independent of compression."""
    import hashlib

    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()
