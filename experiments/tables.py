"""What the scripts that draw results/ share: tables in Markdown, and pictures of curves."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from waitinfo.analysis.analyses import figures
from waitinfo.evaluation.curves import Curve, CurvePoint, make_curves, value
from waitinfo.evaluation.plot import draw, save_figure
from waitinfo.evaluation.points import Point

COLUMNS = ("paper.CW", "paper.AP", "paper.AL", "paper.DAL", "BLEU", "word.AL", "word.LAAL")
HEADS = ("CW", "AP", "AL", "DAL", "BLEU", "AL (words)", "LAAL (words)", "early stop, if allowed")
ORDER = ("full", "full-beam5", "wait-k", "multipath", "adaptive-wait-k", "moe-wait-k", "mma", "gma",
         "gsimt-style", "wait-info")  # fmt: skip
ALLOW = "-allow"


@dataclass(frozen=True)
class Picture:
    """Curves of BLEU against Average Lagging."""

    curves: list[Curve]
    title: str
    bands: bool = False  # the spread of several seeds

    def draw(self, out: Path) -> None:
        draw(self.curves, "paper.AL", "BLEU", out, self.title, labels=False, bands=self.bands)


@dataclass(frozen=True)
class Analysis:
    """A picture of `waitinfo analyse`, drawn from its numbers."""

    what: str
    name: str
    numbers: dict[str, Any]

    def draw(self, out: Path) -> None:
        for name, figure in figures(self.what, self.numbers):
            if name == self.name:
                save_figure(figure, out)


Output = str | Picture | Analysis


def row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [row(heads), "|---" * len(heads) + "|", *map(row, rows)]
    return "\n".join(lines) + "\n"


def place(name: str) -> tuple[int, str]:
    """Systems in the paper's order, then others by name."""
    return (ORDER.index(name) if name in ORDER else len(ORDER)), name


def by_name(points: Iterable[Point], x: str = "paper.AL") -> dict[str, Curve]:
    return {curve.name: curve for curve in make_curves(points, x, "BLEU")}


# Every point of a test set


def mean(point: CurvePoint, axis: str) -> float | None:
    """The mean of the seeds; None for what was not measured."""
    values = [found for p in point.points if (found := value(p, axis)) is not None]
    return sum(values) / len(values) if values else None


def setting(point: CurvePoint) -> str:
    """What the model was trained and decoded with, except for how it may end."""
    settings = point.points[0]["settings"]
    return json.dumps([settings["options"], settings["k"]])


def all_points(curves: dict[str, Curve]) -> str:
    rows = []
    for name in sorted((n for n in curves if not n.endswith(ALLOW)), key=place):
        ends = {setting(p): p for p in curves.get(name + ALLOW, Curve("", [])).points}
        for point in curves[name].points:
            allowed = ends.get(setting(point))
            cells = [score(mean(point, column)) for column in COLUMNS]
            share = None if allowed is None else mean(allowed, "early_stop")
            early = "" if share is None else f"{100 * share:.1f}%"
            rows.append([name, point.label, *cells, early, str(len(point.points))])
    return table(["system", "dial", *HEADS, "seeds"], rows)


def picture(curves: dict[str, Curve], title: str) -> Picture:
    shown = [n for n in sorted(curves, key=place) if not n.endswith(ALLOW) and n != "full-beam5"]
    shown.sort(key=lambda name: name != "wait-info")  # the first colour and mark
    return Picture([curves[name] for name in shown], title)


def score(value: float | None) -> str:
    """A cell of a table, empty where the curve does not reach."""
    return "" if value is None else f"{value:.2f}"


def by_seed(seeds: dict[int, Curve], at: Iterable[int]) -> list[list[str]]:
    """BLEU at each latency: a row for every seed, and one of means where all seeds reach."""
    found = {seed: [curve.at(x) for x in at] for seed, curve in sorted(seeds.items())}
    columns = zip(*found.values(), strict=True)
    means = [None if None in column else float(np.mean(column)) for column in columns]
    rows = [*((str(seed), values) for seed, values in found.items()), ("mean", means)]
    return [[name, *map(score, values)] for name, values in rows]


def seed_cell(point: Point, axis: str) -> str:
    found = value(point, axis)
    if found is None:
        return ""
    if axis == "k":
        return f"{found:.3g}"
    return f"{100 * found:.1f}%" if axis == "early_stop" else f"{found:.2f}"
