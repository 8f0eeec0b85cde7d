"""Reading parallel text, and errors about bad input."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import random
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from waitinfo.errors import WaitinfoError
from waitinfo.text.files import (
    Meter,
    ParallelText,
    normalise,
    read_aligned,
    read_lines,
    read_tsv,
    sha256,
    sha256_lines,
)

LINES = ["eins zwei", "drei", "vier fünf 😀"]
TEXT = ("\n".join(LINES) + "\n").encode()
COMPRESS = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [(".de", bytes), ("", bytes), *COMPRESS.items()],
)
def test_reads_every_compression(tmp_path: Path, suffix: str, compress) -> None:
    path = tmp_path / f"text{suffix}"
    path.write_bytes(compress(TEXT))
    assert list(read_lines(path)) == LINES


def test_line_ends_and_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "windows.txt"
    path.write_bytes(b"\xef\xbb\xbfeins\r\nzwei\x0bdrei\x85\xe2\x80\xa8 vier".replace(b"\x85", b""))
    assert list(read_lines(path)) == ["eins", "zwei\x0bdrei\u2028 vier"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"gut\nschl\xffecht\n", r"line 2: not valid UTF-8 \(invalid start byte at byte 5\)"),
        (b"gut\ngut\nnu\0ll\n", "line 3: contains a NUL byte"),
    ],
)
def test_bad_bytes_name_the_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    with pytest.raises(WaitinfoError, match=f"bad.txt, {message}"):
        list(read_lines(path))


def test_a_flipped_byte_in_an_archive_is_detected(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(TEXT * 50))
    content[len(content) // 2] ^= 255
    path = tmp_path / "bad.gz"
    path.write_bytes(content)
    with pytest.raises(WaitinfoError, match="cannot be read|not valid UTF-8"):
        list(read_lines(path))


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_damaged_archives(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(b"this is not compressed")
    with pytest.raises(WaitinfoError, match="cannot be read"):
        list(read_lines(path))


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
@pytest.mark.parametrize("share", [0.3, 0.999])
def test_a_truncated_archive_is_detected(tmp_path: Path, suffix: str, share: float) -> None:
    """Also where whole lines come out before the end is missed."""
    text = random.Random(1).randbytes(60_000).hex("\n", 40).encode()
    content = COMPRESS[suffix](text)
    path = tmp_path / f"cut{suffix}"
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(WaitinfoError, match="after line .*: cannot be read"):
        list(read_lines(path))


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_archives_one_after_the_other(tmp_path: Path, suffix: str) -> None:
    """As `cat` and parallel compressors make them."""
    path = tmp_path / f"text{suffix}"
    skippable = b"\x50\x2a\x4d\x18\x04\0\0\0size" if suffix == ".zst" else b""
    path.write_bytes((skippable + COMPRESS[suffix](TEXT * 20_000)) * 3)
    assert list(read_lines(path)) == LINES * 60_000


@pytest.mark.parametrize(("left", "right"), [(3, 2), (2, 3)])
def test_different_line_counts(tmp_path: Path, left: int, right: int) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("x\n" * left)
    b.write_text("x\n" * right)
    with pytest.raises(WaitinfoError, match="ends after line 2.*same number of lines"):
        list(read_aligned(a, b))


def test_how_much_has_been_read(tmp_path: Path) -> None:
    """In bytes on disk, over all files, however they are compressed."""
    (tmp_path / "a.gz").write_bytes(gzip.compress(TEXT * 20_000))
    (tmp_path / "b").write_bytes(TEXT * 20_000)
    text = ParallelText([tmp_path / "a.gz"], [tmp_path / "b"])
    sizes = [path.stat().st_size for path in text.paths]
    assert text.size == sum(sizes) and text.meter.consumed == 0
    seen = [text.meter.consumed for _ in text]
    assert seen == sorted(seen) and sizes[1] / 4 < seen[len(seen) // 2] < sizes[1] * 3 / 4
    assert text.meter.consumed == sum(sizes) and not text.meter._open


def test_files_are_closed_when_an_error_ends_the_reading(tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"gut\n\xff\n")
    meter = Meter()
    lines = read_lines(tmp_path / "bad", meter)
    assert next(lines) == "gut"
    (stream,) = meter._open
    with pytest.raises(WaitinfoError, match="line 2"):
        next(lines)
    assert stream.closed and not meter._open


def test_checksums(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(TEXT)
    assert sha256(tmp_path / "a") == hashlib.sha256(TEXT).hexdigest() == sha256_lines(LINES)
    os.mkfifo(tmp_path / "pipe")
    assert sha256(tmp_path / "pipe") is None


def test_tsv_without_tab(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("eins\tone\nzwei two\n")
    with pytest.raises(WaitinfoError, match="line 2: no tab"):
        list(read_tsv(path))


def test_tsv_keeps_the_first_two_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("eins\tone\tCC-BY\n")
    assert list(read_tsv(path)) == [("eins", "one")]


def test_missing_unknown_and_uneven_files(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"PK")
    with pytest.raises(WaitinfoError, match="no such file"):
        ParallelText(tsv=[tmp_path / "none.tsv"])
    with pytest.raises(WaitinfoError, match="unknown suffix '.zip'"):
        ParallelText(tsv=[tmp_path / "a.zip"])
    with pytest.raises(WaitinfoError, match="is a folder"):
        ParallelText(tsv=[tmp_path])
    with pytest.raises(WaitinfoError, match="1 source and 0 target files"):
        ParallelText([tmp_path / "a.zip"], [])


@given(st.text(st.characters()))  # single surrogates too
def test_normalise_is_idempotent_and_single_spaced(text: str) -> None:
    once = normalise(text)
    assert normalise(once) == once
    assert once == once.strip()
    assert "  " not in once and "\u2581" not in once and "\t" not in once
    assert once.encode().decode() == once


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\ud800b", "a\ufffdb"),
        ("\udc00\ud800", "\ufffd\ufffd"),
        ("\ud83d\ude00", "\U0001f600"),
        ("\ud83d\ud83d\ude00 \udcfc", "\ufffd\U0001f600 \ufffd"),
    ],
)
def test_normalise_repairs_surrogates(text: str, expected: str) -> None:
    assert normalise(text) == expected


def test_normalise_composes() -> None:
    assert normalise("  Cafe\u0301\tau\n lait ") == "Café au lait"
