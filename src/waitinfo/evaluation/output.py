"""Output of evaluations: a folder with one JSON per point, or a file with one point per line.

A point is written atomically, when it is complete. If an evaluation is interrupted, the files on
disk are still valid, and the translations made so far are kept. Beside a point stand its
translations, as logs that SimulEval and OmniSTEval read.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waitinfo.errors import WaitinfoError
from waitinfo.evaluation.points import LINES, Point, PointKey, parse, point_texts, read_file
from waitinfo.storage import write_file

if TYPE_CHECKING:
    from waitinfo.evaluation.trace import WordTrace
    from waitinfo.streaming.decoder import Hypothesis

LONGEST_NAME = 150
LOG, CONFIG, TEXT = "instances.log", "config.yaml", "hypotheses.txt"
DOCUMENTS, SEGMENTS, REFERENCES = "documents.log", "segments.json", "references.txt"


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


class UnfinishedPoint:
    """Translations of an unfinished point, written to disk as they are completed.

    The file belongs to one process at a time. Its name contains a digest of the settings, so that
    translations made with other settings are neither used nor touched.
    """

    def __init__(self, folder: Path, stem: str, settings: dict[str, Any]) -> None:
        header = json.dumps(settings, sort_keys=True)
        digest = hashlib.sha256(header.encode()).hexdigest()[:12]
        self.path = folder / f".{stem}.{digest}.partial.jsonl"
        self._stream = self.path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._stream.close()
            raise WaitinfoError(
                f"{folder / stem}: another process is evaluating this point"
            ) from None
        self._stream.seek(0)
        self.found = dict(self._read(self._stream.read().split("\n")[:-1]))
        # Drop incomplete and damaged lines.
        self._stream.truncate(0)
        for number, hypothesis in self.found.items():
            self.add(number, hypothesis)

    @staticmethod
    def _read(lines: list[str]) -> Iterator[tuple[int, Hypothesis]]:
        from waitinfo.streaming.decoder import Hypothesis  # reading points needs no torch

        for line in lines:
            try:
                number, values = json.loads(line)
                yield number, Hypothesis(**values)
            except (ValueError, TypeError):
                continue

    def add(self, number: int, hypothesis: Hypothesis) -> None:
        self._stream.write(json.dumps([number, vars(hypothesis)]) + "\n")
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self.close()


# Logs


def one_space(text: str) -> str:
    """Replace every run of white space by one space, because SimulEval counts words by spaces."""
    return " ".join(text.split())


def instance(index: int, source: str, reference: str, trace: WordTrace) -> dict[str, Any]:
    return {
        "index": index,
        "prediction": trace.text,
        "delays": trace.delays,
        "elapsed": [0] * len(trace.delays),
        "prediction_length": len(trace.words),
        "reference": one_space(reference),
        "source": one_space(source),
        "source_length": trace.source_words,
    }


def write_instances(
    folder: Path, sources: Sequence[str], references: Sequence[str], traces: Sequence[WordTrace]
) -> None:
    """Write the log, the translations as plain text, and the configuration for SimulEval."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (
        json.dumps(instance(index, source, reference, trace), ensure_ascii=False)
        for index, (source, reference, trace) in enumerate(
            zip(sources, references, traces, strict=True)
        )
    )
    (folder / LOG).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    (folder / TEXT).write_text("".join(f"{trace.text}\n" for trace in traces), "utf-8")
    (folder / CONFIG).write_text("source_type: text\ntarget_type: text\n", "utf-8")


def write_documents(
    folder: Path,
    outputs: Sequence[WordTrace],
    documents: Sequence[range],
    sources: Sequence[str],
    references: Sequence[str],
) -> None:
    """Write whole documents for `omnisteval longform`, where a source word takes one second."""
    segments = []
    with (folder / DOCUMENTS).open("w", encoding="utf-8") as log:
        for number, (trace, members) in enumerate(zip(outputs, documents, strict=True)):
            line = {
                "source": f"document-{number}",
                "prediction": trace.text,
                "delays": [1000 * delay for delay in trace.delays],
                "source_length": 1000 * trace.source_words,
            }
            log.write(json.dumps(line, ensure_ascii=False) + "\n")
            offset = 0
            for member in members:
                words = len(sources[member].split())
                place = {"wav": line["source"], "offset": offset, "duration": words}
                segments.append(place)
                offset += words
    (folder / SEGMENTS).write_text(json.dumps(segments) + "\n", "utf-8")
    lines = "".join(f"{one_space(reference)}\n" for reference in references)
    (folder / REFERENCES).write_text(lines, "utf-8")


def read_instances(folder: Path) -> list[dict[str, Any]]:
    with (folder / LOG).open(encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]
