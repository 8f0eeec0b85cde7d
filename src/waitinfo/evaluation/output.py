"""Points on disk: one JSON each, written once complete, and what an interruption leaves of one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waitinfo.errors import WaitinfoError
from waitinfo.evaluation.instances import LOG
from waitinfo.streaming.decoder import Hypothesis

FORMAT = 2  # of a point's JSON
Point = dict[str, Any]


class Partial:
    """Translations of a point that is not finished, kept on disk as they come."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        self.found: dict[int, Hypothesis] = {}
        header = json.dumps(settings)
        lines = path.read_text("utf-8").split("\n")[:-1] if path.exists() else []
        if lines and lines[0] == header:
            for line in lines[1:]:
                number, values = json.loads(line)
                self.found[number] = Hypothesis(**values)
        else:
            path.write_text(f"{header}\n", "utf-8")
        if lines:  # a line that was cut off is written anew
            kept = [header, *(self._line(*item) for item in self.found.items())]
            path.write_text("".join(f"{line}\n" for line in kept), "utf-8")
        self._stream = path.open("a", encoding="utf-8")

    def add(self, number: int, hypothesis: Hypothesis) -> None:
        self._stream.write(self._line(number, hypothesis) + "\n")
        self._stream.flush()

    @staticmethod
    def _line(number: int, hypothesis: Hypothesis) -> str:
        return json.dumps([number, vars(hypothesis)])

    def close(self) -> None:
        self._stream.close()

    def remove(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)


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

    def finished(self, stem: str, settings: dict[str, Any], timed: bool) -> Point | None:
        """A point that is there already, with all that is asked of it."""
        path = self.folder / f"{stem}.json"
        if not path.exists() or self.overwrite:
            return None
        point = read_point(path)
        differing = [key for key in settings if point["settings"].get(key) != settings[key]]
        if differing:
            raise WaitinfoError(
                f"{path}: holds a point of another {' and '.join(differing)}; "
                "choose another --out or --name, or give --overwrite"
            )
        complete = not self.text or (self.folder / stem / LOG).exists()
        return point if complete and (not timed or point.get("timed")) else None

    def write(self, stem: str, point: Point) -> None:
        """The JSON comes last and at once: where it is, the point is complete."""
        fresh = self.folder / f".{stem}.json"
        fresh.write_text(json.dumps(point, indent=2, ensure_ascii=False) + "\n", "utf-8")
        fresh.replace(self.folder / f"{stem}.json")


def read_point(path: Path) -> Point:
    try:
        point = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise WaitinfoError(f"{path}: cannot be read ({error})") from None
    if not isinstance(point, dict) or point.get("format") != FORMAT:
        raise WaitinfoError(f"{path}: not a point written by waitinfo evaluate")
    return point
