"""Atomic replacement of folders and files on disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def swap_folder(fresh: Path, folder: Path) -> None:
    """Replace a folder by a complete new one; the old one is kept until the new one is in place."""
    old = folder.parent / f".{folder.name}.old"
    recover_folder(folder)
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    fsync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def recover_folder(folder: Path) -> None:
    """Restore the old folder if a swap was interrupted between its two renames."""
    old = folder.parent / f".{folder.name}.old"
    if old.is_dir() and not folder.exists():
        old.rename(folder)


def fsync_folder(path: Path) -> None:
    """Make a rename inside `path` durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_file(path: Path, text: str) -> None:
    """Write a file atomically."""
    path = path.resolve()
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with fresh.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(path)
