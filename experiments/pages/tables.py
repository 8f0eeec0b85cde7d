"""What all pages share: files of results by name, tables in Markdown, pictures of curves."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from waitinfo.analysis.analyses import figures
from waitinfo.evaluation.curves import Curve, CurvePoint, make_curves, value
from waitinfo.evaluation.plot import STYLE, draw, draw_into, pyplot, save_figure
from waitinfo.evaluation.points import Point, read_points

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
COLUMNS = ("paper.CW", "paper.AP", "paper.AL", "paper.DAL", "BLEU", "word.AL", "word.LAAL")
HEADS = ("CW", "AP", "AL", "DAL", "BLEU", "AL (words)", "LAAL (words)", "early stop, if allowed")
ORDER = ("full", "full-beam5", "wait-k", "multipath", "adaptive-wait-k", "moe-wait-k", "mma", "gma",
         "gsimt-style", "wait-info")  # fmt: skip
ALLOW = "-allow"


class Drawing(Protocol):
    """A picture that draws itself into a file."""

    def draw(self, out: Path) -> None: ...


@dataclass(frozen=True)
class Picture:
    """Curves of BLEU against a latency."""

    curves: list[Curve]
    title: str
    bands: bool = False  # the spread of several seeds
    x: str = "paper.AL"

    def draw(self, out: Path) -> None:
        draw(self.curves, self.x, "BLEU", out, self.title, labels=False, bands=self.bands)


@dataclass(frozen=True)
class Panels:
    """Pictures beside each other in one file."""

    pictures: list[Picture]

    def draw(self, out: Path) -> None:
        plt = pyplot()
        with plt.rc_context(STYLE):
            size = (4.6 * len(self.pictures), 3.9)
            figure, axes = plt.subplots(
                1, len(self.pictures), figsize=size, layout="constrained", squeeze=False
            )
            for number, (picture, each) in enumerate(zip(self.pictures, axes[0], strict=True)):
                curves, title, bands = picture.curves, picture.title, picture.bands
                draw_into(each, curves, picture.x, "BLEU", title, False, bands, f"{number}:")
                profile, _, metric = picture.x.partition(".")
                each.set_xlabel(f"{metric} ({'tokens' if profile == 'paper' else 'words'})")
                each.legend(fontsize=7, loc="best", framealpha=0.85, edgecolor="none")
            save_figure(figure, out)
            plt.close(figure)


@dataclass(frozen=True)
class AnalysisPicture:
    """A picture of `waitinfo analyse`, drawn from its numbers."""

    what: str
    name: str
    numbers: dict[str, Any]

    def draw(self, out: Path) -> None:
        for name, figure in figures(self.what, self.numbers):
            if name == self.name:
                save_figure(figure, out)


# By its place in the results: `systems/en-vi.svg` for a picture, `systems/en-vi.md#en-vi` for a
# table, which stands on the page between `<!-- table en-vi -->` and `<!-- end -->`.
Output = str | Drawing
Outputs = dict[str, Output]
Make = Callable[[Path], Outputs]


# Files


def find(results: Path, name: str, suffix: str = ".jsonl") -> Path | None:
    """A file of results, in whatever group it is."""
    return next(iter(sorted(results.glob(f"*/{name}{suffix}"))), None)


def place(path: Path) -> str:
    """Group and name of a file of results."""
    return f"{path.parent.name}/{path.stem}"


def points_of(results: Path, name: str) -> list[Point]:
    """The points of an experiment; none if it has not been made."""
    path = find(results, name)
    return read_points([path]) if path else []


def numbers_of(results: Path, name: str) -> dict[str, Any]:
    """Measurements by their name; none if they have not been made."""
    path = find(results, name, ".json")
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path else {}
    return found


def put_into(page: str, mark: str, made: str) -> str | None:
    """A page with new text between the marks `<!-- MARK -->` and `<!-- end -->`; None without."""
    start, end = f"<!-- {mark} -->", "<!-- end -->"
    found = re.search(f"{re.escape(start)}.*?{end}", page, re.DOTALL)
    if found is None:
        return None
    return f"{page[: found.start()]}{start}\n\n{made}\n{end}{page[found.end() :]}"


def write(outputs: Outputs, results: Path) -> None:
    """Write pictures, and tables into their pages; a page without the table gets it at its end."""
    for name, output in outputs.items():
        file, _, block = name.partition("#")
        path = results / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(output, str):
            output.draw(path)
            continue
        mark = f"table {block}"
        page = path.read_text("utf-8") if path.exists() else f"# {path.stem}\n"
        made = put_into(page, mark, output)
        if made is None:
            made = put_into(f"{page}\n<!-- {mark} --><!-- end -->\n", mark, output)
        path.write_text(made or page, "utf-8")


# Tables


def row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [row(heads), "|---" * len(heads) + "|", *map(row, rows)]
    return "\n".join(lines) + "\n"


def score(value: float | None) -> str:
    """A cell of a table, empty where the curve does not reach."""
    return "" if value is None else f"{value:.2f}"


def cell(point: Point, axis: str) -> str:
    """One field of a point."""
    found = value(point, axis)
    if found is None:
        return ""
    if axis == "k":
        return f"{found:.3g}"
    return f"{100 * found:.1f}%" if axis == "early_stop" else f"{found:.2f}"


def in_order(name: str) -> tuple[int, str]:
    """Systems in the paper's order, then others by name."""
    return (ORDER.index(name) if name in ORDER else len(ORDER)), name


def by_name(points: Iterable[Point], x: str = "paper.AL") -> dict[str, Curve]:
    return {curve.name: curve for curve in make_curves(points, x, "BLEU")}


def mean(point: CurvePoint, axis: str) -> float | None:
    """The mean of the seeds; None for what was not measured."""
    values = [found for p in point.points if (found := value(p, axis)) is not None]
    return sum(values) / len(values) if values else None


def setting(point: CurvePoint) -> str:
    """What the model was trained and decoded with, except for how it may end."""
    settings = point.points[0]["settings"]
    return json.dumps([settings["options"], settings["k"]])


def all_points(curves: dict[str, Curve]) -> str:
    """Every point. The early stop is that of the same dial where endings are allowed."""
    rows = []
    for name in sorted((n for n in curves if not n.endswith(ALLOW)), key=in_order):
        ends = {setting(p): p for p in curves.get(name + ALLOW, Curve("", [])).points}
        for point in curves[name].points:
            allowed = ends.get(setting(point))
            cells = [score(mean(point, column)) for column in COLUMNS]
            share = None if allowed is None else mean(allowed, "early_stop")
            early = "" if share is None else f"{100 * share:.1f}%"
            rows.append([name, point.label, *cells, early, str(len(point.points))])
    return table(["system", "dial", *HEADS, "seeds"], rows)


def by_seed(seeds: dict[int, Curve], at: Iterable[int]) -> list[list[str]]:
    """BLEU at each latency: a row for every seed, and one of means where all seeds reach."""
    found = {seed: [curve.at(x) for x in at] for seed, curve in sorted(seeds.items())}
    columns = zip(*found.values(), strict=True)
    means = [None if None in column else float(np.mean(column)) for column in columns]
    rows = [*((str(seed), values) for seed, values in found.items()), ("mean", means)]
    return [[name, *map(score, values)] for name, values in rows]


# Pictures


def is_own(curve: Curve) -> bool:
    """Curves of several latencies by a system's own policy."""
    other = r"-by-(wait-k|catch-up|threshold)|-at-rate-|-streamed-|-catch-up\."
    return len(curve.points) > 1 and not re.search(other, curve.name)


def picture(curves: dict[str, Curve], title: str) -> Picture:
    shown = [n for n in curves if not n.endswith(ALLOW) and n != "full-beam5"]
    shown.sort(key=lambda name: (name != "wait-info", in_order(name)))  # it has the first colour
    return Picture([curves[name] for name in shown], title)
