"""Points on disk: one JSON each, written once complete, and what an interruption leaves of one."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waitinfo.errors import WaitinfoError
from waitinfo.evaluation.instances import LOG
from waitinfo.streaming.decoder import Hypothesis

FORMAT = 2  # of a point's JSON
PARTS = ("name", "settings", "quality", "paper", "word", "test", "model")  # that every point has
LONGEST_NAME = 150
Point = dict[str, Any]


class Partial:
    """Translations of a point that is not finished, kept on disk as they come.

    The file belongs to one process at a time, and its name to the settings: what was translated
    otherwise is neither used nor touched.
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
        # Whatever was cut off or damaged is left out.
        self._stream.truncate(0)
        for number, hypothesis in self.found.items():
            self.add(number, hypothesis)

    @staticmethod
    def _read(lines: list[str]) -> Iterator[tuple[int, Hypothesis]]:
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


@dataclass(frozen=True)
class Output:
    """Where points go, and what of them."""

    folder: Path
    text: bool = True  # translations and SimulEval's log, in a folder beside the JSON
    overwrite: bool = False

    def prepare(self) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            raise WaitinfoError(f"{self.folder}: is a file; --out must be a folder")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WaitinfoError(f"{self.folder}: cannot be made ({error.strerror})") from None

    def check(self, stem: str) -> None:
        """Raise where a point of this name could not be written."""
        if len(stem) > LONGEST_NAME:
            raise WaitinfoError(f"--name: longer than {LONGEST_NAME} letters")
        place = self.folder / stem
        if self.text and place.exists() and not place.is_dir():
            raise WaitinfoError(f"{place}: is a file; the translations need a folder there")

    def existing(self, stem: str, settings: dict[str, Any]) -> Point | None:
        """A point that is there already; an error if it is another one of the same name."""
        path = self.folder / f"{stem}.json"
        if not path.exists():
            return None
        point = read_point(path)
        differing = [key for key in settings if point["settings"].get(key) != settings[key]]
        if differing and not self.overwrite:
            raise WaitinfoError(
                f"{path}: holds a point of another {' and '.join(differing)}; "
                "choose another --out or --name, or give --overwrite"
            )
        return None if self.overwrite else point

    def has_text(self, stem: str) -> bool:
        return (self.folder / stem / LOG).exists()

    def clear(self, stem: str) -> None:
        """Take an old point away, JSON first: what is left of it must not pass for the new one."""
        (self.folder / f"{stem}.json").unlink(missing_ok=True)
        if self.has_text(stem):
            shutil.rmtree(self.folder / stem)

    def write(self, stem: str, point: Point) -> None:
        """The JSON comes last and at once: where it is, the point is complete."""
        fresh = self.folder / f".{stem}.{os.getpid()}.json"
        fresh.write_text(json.dumps(point, indent=2, ensure_ascii=False) + "\n", "utf-8")
        fresh.replace(self.folder / f"{stem}.json")


def read_point(path: Path) -> Point:
    try:
        point = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise WaitinfoError(f"{path}: cannot be read ({error})") from None
    if not is_point(point):
        raise WaitinfoError(f"{path}: not a point written by waitinfo evaluate")
    return point


def is_point(value: Any) -> bool:
    """Whether a JSON value is a point of this format."""
    return (
        isinstance(value, dict)
        and value.get("format") == FORMAT
        and all(part in value for part in PARTS)
    )
