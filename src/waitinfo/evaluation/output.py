"""Output of evaluations: a folder with one JSON per point, or a file with one point per line.

A point is written atomically, when it is complete. If an evaluation is interrupted, the files on
disk are still valid.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waitinfo.errors import WaitinfoError
from waitinfo.evaluation.instances import LOG
from waitinfo.evaluation.points import LINES, Point, PointKey, parse, point_texts, read_file
from waitinfo.storage import write_file

LONGEST_NAME = 150


@dataclass(frozen=True)
class Output(ABC):
    """A folder or file for points, with or without their translations."""

    place: Path
    text: bool = True  # keep translations and SimulEval's log, in one folder per point
    overwrite: bool = False

    @staticmethod
    def at(place: Path, text: bool | None = None, overwrite: bool = False) -> Output:
        """A file if the name ends in .jsonl, else a folder. Only folders keep text by default."""
        if place.suffix == LINES:
            return FileOutput(place, bool(text), overwrite)
        return FolderOutput(place, text is not False, overwrite)

    @property
    @abstractmethod
    def folder(self) -> Path:
        """The folder for translations of unfinished points."""

    @abstractmethod
    def prepare(self) -> None:
        """Create the folder; raise an error if points cannot be written."""

    @abstractmethod
    def stem(self, key: PointKey) -> str:
        """A unique file name, without suffix, for the files of a point."""

    @abstractmethod
    def text_folder(self, key: PointKey) -> Path:
        """The folder for the translations of a point."""

    @abstractmethod
    def find(self, key: PointKey) -> Point | None:
        """The existing point with this key."""

    @abstractmethod
    def write(self, point: Point) -> None:
        """Add a point, or replace the one with the same key."""

    @abstractmethod
    def remove(self, key: PointKey) -> None: ...

    def check(self, key: PointKey) -> None:
        """Raise an error if a point with this key cannot be written."""
        if len(self.stem(key)) > LONGEST_NAME:
            raise WaitinfoError(
                f"--name: {self.stem(key)} is longer than {LONGEST_NAME} characters"
            )
        place = self.text_folder(key)
        if self.text and place.exists() and not place.is_dir():
            raise WaitinfoError(f"{place}: is a file; translations need a folder of this name")

    def begin(self, key: PointKey, settings: dict[str, Any]) -> Point | None:
        """Make ready for a point; the existing one with the same settings."""
        self.prepare()
        self.check(key)
        return self.existing(key, settings)

    def existing(self, key: PointKey, settings: dict[str, Any]) -> Point | None:
        """The existing point with this key; raise an error if its settings are different."""
        point = None if self.overwrite else self.find(key)
        if point is None:
            return None
        old = point["settings"]
        differing = [n for n in {**settings, **old} if old.get(n) != settings.get(n)]
        if differing:
            raise WaitinfoError(
                f"{self.place}: contains a point {key.stem} with another "
                f"{' and '.join(differing)}; choose another --out, --name or --run, "
                "or use --overwrite"
            )
        return point

    def has_text(self, key: PointKey) -> bool:
        return (self.text_folder(key) / LOG).exists()

    def clear(self, key: PointKey) -> None:
        """Remove an old point and its translations, which must not be mixed with the new ones."""
        self.remove(key)
        if self.has_text(key):
            shutil.rmtree(self.text_folder(key))


class FolderOutput(Output):
    """One JSON per point, as `wait-info-3.json`, with translations in a folder `wait-info-3`."""

    @property
    def folder(self) -> Path:
        return self.place

    def prepare(self) -> None:
        if self.place.exists() and not self.place.is_dir():
            raise WaitinfoError(
                f"{self.place}: is a file; --out must be a folder or end in {LINES}"
            )
        _make_folder(self.place)

    def stem(self, key: PointKey) -> str:
        return key.stem

    def text_folder(self, key: PointKey) -> Path:
        return self.place / key.stem

    def _path(self, key: PointKey) -> Path:
        return self.place / f"{key.stem}.json"

    def find(self, key: PointKey) -> Point | None:
        path = self._path(key)
        return read_file(path)[0] if path.exists() else None

    def write(self, point: Point) -> None:
        path = self._path(PointKey.of(point))
        write_file(path, json.dumps(point, indent=2, ensure_ascii=False) + "\n")

    def remove(self, key: PointKey) -> None:
        self._path(key).unlink(missing_ok=True)


class FileOutput(Output):
    """One point per line, as in `points.jsonl`; translations, if kept, in folders under `points`.

    Several processes may write to one file: each locks it and replaces it by a complete new file.
    """

    @property
    def folder(self) -> Path:
        return self.place.parent

    def prepare(self) -> None:
        if self.place.is_dir():
            raise WaitinfoError(f"{self.place}: is a folder; --out must be a file or a new folder")
        _make_folder(self.folder)
        if self.place.exists():
            read_file(self.place)

    def stem(self, key: PointKey) -> str:
        return f"{self.place.stem}.{key.full_stem}"

    def text_folder(self, key: PointKey) -> Path:
        return self.place.with_suffix("") / key.full_stem

    def find(self, key: PointKey) -> Point | None:
        points = read_file(self.place) if self.place.exists() else []
        return next((point for point in points if PointKey.of(point) == key), None)

    def write(self, point: Point) -> None:
        line = json.dumps(point, ensure_ascii=False, separators=(",", ":"))
        with _locked(self.place):
            lines = point_texts(self.place)
            at = self._index(lines, PointKey.of(point))
            lines[at : at + 1] = [line]
            self._write(lines)

    def remove(self, key: PointKey) -> None:
        if self.find(key) is not None:
            with _locked(self.place):
                lines = point_texts(self.place)
                at = self._index(lines, key)
                self._write(lines[:at] + lines[at + 1 :])

    @staticmethod
    def _index(lines: list[str], key: PointKey) -> int:
        """Line number of a point; the number of lines if there is none."""
        found = (parse(line) for line in lines)
        keys = [None if point is None else PointKey.of(point) for point in found]
        return keys.index(key) if key in keys else len(lines)

    def _write(self, lines: list[str]) -> None:
        write_file(self.place, "".join(f"{line}\n" for line in lines))


def text_folder(point: Point) -> Path:
    """The folder with the translations of a point from `read_points`."""
    path: Path = point["path"]
    own = path.with_suffix("")
    return own / PointKey.of(point).full_stem if path.suffix == LINES else own


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WaitinfoError(f"{folder}: cannot be created ({error.strerror})") from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock a file that every change replaces by a new one; create it if it does not exist.

    A process that waited may get the lock of a file that has been replaced. It then waits for the
    lock of the new file.
    """
    while True:
        with path.open("a") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            if path.exists() and os.path.samestat(os.fstat(stream.fileno()), path.stat()):
                yield
                return
