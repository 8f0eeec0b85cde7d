"""Points, the results of evaluations: their JSON, their keys, and reading and selecting them.

A file contains one point (`.json`) or one point per line (`.jsonl`).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from waitinfo.config import without_removed
from waitinfo.errors import WaitinfoError, unknown

FORMAT = 2  # of a point's JSON
PARTS = ("name", "settings", "quality", "paper", "word", "test", "model")  # required keys
LINES = ".jsonl"  # suffix of a file with one point per line
Point = dict[str, Any]

# Fields for selecting points. The last three are part of the settings.
FIELDS = ("set", "run", "seed", "name", "system", "k", "label", "ending", "beam", "dtype")
IN_SETTINGS = ("ending", "beam", "dtype")
PACKED = (".gz", ".xz", ".zst")
SIMILAR = 1.1  # ratio up to which sizes, and amounts of training, count as equal
UNLIKE = "the models differ in size or training: these figures do not compare their systems alone"


def is_point(value: Any) -> bool:
    """Whether a JSON value is a point of this format."""
    return (
        isinstance(value, dict)
        and value.get("format") == FORMAT
        and all(part in value for part in PARTS)
    )


def set_name(file: str) -> str:
    """The name of a test set: newstest2015 for a source file newstest2015.de.xz."""
    path = PurePath(file)
    if path.suffix in PACKED:
        path = path.with_suffix("")
    return path.stem


@dataclass(frozen=True)
class PointKey:
    """The key of a point, which is unique within a file."""

    name: str  # of the curve
    k: float | None
    run: str | None = None
    seed: int | None = None
    set: str = ""

    @classmethod
    def of(cls, point: Point) -> PointKey:
        return cls(*(point[part] for part in ("name", "k", "run", "seed", "set")))

    @property
    def stem(self) -> str:
        """Curve and dial value, as `wait-info-3`; unique within one run and test set."""
        return self.name if self.k is None else f"{self.name}-{self.k:g}"

    @property
    def full_stem(self) -> str:
        """The stem with test set, run and seed in front."""
        parts = (self.set, self.run, self.seed, self.stem)
        return ".".join(str(part) for part in parts if part is not None)


# Options of every system that older versions did not have: what they did then. Reading points
# needs no torch, so that the systems' own defaults cannot be asked.
LATER = {"info_norm": "sentence"}
LATER_OF = {"wait-info": {"rate": 1.0, "source_mean": 0.0, "target_mean": 0.0}}  # of one system


def complete(point: Point) -> Point:
    """Add the fields that older versions did not write; leave out unused ones of theirs."""
    name = set_name(point["test"]["source"].get("file", ""))
    settings = {"dtype": "float32", **point["settings"]}
    if isinstance(settings.get("options"), dict):
        own = LATER_OF.get(settings["system"], {})
        settings["options"] = LATER | own | without_removed(settings["options"], "system")
    return {"run": None, "seed": None, "set": name, **point, "settings": settings}


def parse(text: str) -> Point | None:
    """Parse a point; None if the text is not the JSON of a point."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return complete(value) if is_point(value) else None


def point_texts(path: Path) -> list[str]:
    """The JSON texts of a file: one per line in a `.jsonl` file, else the whole file."""
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise WaitinfoError(f"{path}: cannot be read ({error})") from None
    if path.suffix != LINES:
        return [text]
    return text.removesuffix("\n").split("\n") if text else []


def read_file(path: Path) -> list[Point]:
    """All points of one file; raise an error if it contains anything else."""
    points = [parse(text) for text in point_texts(path)]
    if None in points:
        where = f"{path}, line {points.index(None) + 1}" if path.suffix == LINES else str(path)
        raise WaitinfoError(f"{where}: not a point written by waitinfo evaluate")
    return [point for point in points if point is not None]


def read_points(paths: Sequence[Path]) -> list[Point]:
    """All points in files and, recursively, in folders, where other files are ignored.

    The key `path` of each point is its file.
    """
    found: dict[Path, list[Point]] = {}  # each file once, even if it is named twice
    for path in paths:
        if not path.exists():
            raise WaitinfoError(f"{path}: no such results")
        files = _files(path) if path.is_dir() else {path.resolve(): read_file(path)}
        if not any(files.values()):
            raise WaitinfoError(f"{path}: contains no points; waitinfo evaluate writes them")
        found |= files
    return [{**point, "path": path} for path, points in found.items() for point in points]


def _files(folder: Path) -> dict[Path, list[Point]]:
    """The points of every file in a folder."""
    found: dict[Path, list[Point]] = {}
    for path in sorted(folder.rglob("*.json*")):
        if path.suffix not in (".json", LINES) or path.name.startswith(".") or path.is_dir():
            continue
        with contextlib.suppress(WaitinfoError):
            points = map(parse, point_texts(path))
            found[path.resolve()] = [point for point in points if point is not None]
    return found


# Selecting


def select(points: Iterable[Point], conditions: Sequence[str]) -> list[Point]:
    """Select points by conditions such as `set=newstest2015` or `run=wait-info,multipath`."""
    chosen = list(points)
    for condition in conditions:
        field, equals, values = condition.partition("=")
        if not equals:
            raise WaitinfoError(
                f"--where {condition}: write it as FIELD=VALUE, such as set=newstest2015"
            )
        if field not in FIELDS:
            raise unknown("--where field", field, FIELDS)
        wanted = values.split(",")
        known = sorted({_text(point, field) for point in chosen})
        for value in wanted:
            if value not in known:
                raise unknown(f"--where {field}", value, known)
        chosen = [point for point in chosen if _text(point, field) in wanted]
    return chosen


def in_order(points: Sequence[Point], only: str | None) -> list[Point]:
    """The points of these curves (`wait-info,multipath`), in this order; None for all."""
    if only is None:
        return list(points)
    known = list(dict.fromkeys(point["name"] for point in points))
    names = only.split(",")
    for name in names:
        if name not in known:
            raise unknown("--only", name, known)
    chosen = [point for point in points if point["name"] in names]
    return sorted(chosen, key=lambda point: names.index(point["name"]))


def unlike(models: Iterable[dict[str, Any]]) -> bool:
    """Whether models, as points describe them, differ in size or in what they were trained on."""
    found = list(models)
    trained = [m["updates"] * m["tokens_per_update"] for m in found if m.get("updates")]
    sizes = [model["parameters"] for model in found if model["parameters"]]
    return any(max(each, default=0) > SIMILAR * min(each, default=0) for each in (trained, sizes))


def check_one_set(points: Iterable[Point]) -> None:
    """Raise an error if points belong to several test sets."""
    sets = sets_of(points)
    if len(sets) > 1:
        raise WaitinfoError(
            "these points belong to different test sets; choose one with --where set=NAME: "
            + ", ".join(sorted(set(sets.values())))
        )


def _text(point: Point, field: str) -> str:
    """A field's value as typed on the command line."""
    value = (point["settings"] if field in IN_SETTINGS else point).get(field)
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None else str(value)


def sets_of(points: Iterable[Point]) -> dict[tuple[str, str], str]:
    """Names of the points' test sets, by checksums of source and reference."""
    return {
        (point["test"]["source"]["sha256"], point["test"]["reference"]["sha256"]): point["set"]
        for point in points
    }
