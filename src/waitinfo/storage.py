"""Folders on disk that are replaced whole or not at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def swap_folder(fresh: Path, folder: Path) -> None:
    """Put a complete folder in the place of an old one, which is kept until it is there."""
    old = folder.parent / f".{folder.name}.old"
    recover_folder(folder)
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    fsync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def recover_folder(folder: Path) -> None:
    """Bring the old folder back if a swap was cut off between its two renames."""
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
