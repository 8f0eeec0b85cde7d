"""Curves of quality against latency: grouping, interpolating and comparing points."""

from __future__ import annotations

import csv
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files

import numpy as np

from waitinfo.errors import WaitinfoError, unknown
from waitinfo.evaluation.latency import METRICS, PROFILES
from waitinfo.evaluation.points import Point

QUALITIES = ("BLEU", "BLEU_lowercase", "BLEU_words", "chrF", "COMET")
OTHERS = ("early_stop", "length_ratio", "target_per_source", "info_ratio", "k")
LATENCIES = tuple(f"{profile}.{metric}" for profile in PROFILES for metric in METRICS)
AXES = (*LATENCIES, *QUALITIES, *OTHERS)


def check_axis(option: str, name: str) -> str:
    """The full name of a metric; a latency metric without a profile gets the paper's profile."""
    full = f"paper.{name}" if name in METRICS else name
    if full not in AXES:
        raise unknown(option, name, AXES)
    return full


def value(point: Point, axis: str) -> float | None:
    """The value of a metric at a point."""
    profile, _, metric = axis.rpartition(".")
    if profile:
        return point[profile][metric]
    return point["quality"].get(axis) if axis in QUALITIES else point[axis]


@dataclass
class CurvePoint:
    """One setting of a system: the mean of its runs, and its uncertainty."""

    x: float
    y: float
    low: float  # bounds of y: range of several runs, or the bootstrap interval of one
    high: float
    label: str
    points: list[Point] = field(default_factory=list)


@dataclass
class Curve:
    """The points of a system over its dial, sorted by latency."""

    name: str
    points: list[CurvePoint]
    published: bool = False

    @property
    def runs(self) -> int:
        """The largest number of runs of any point."""
        return max((len(point.points) for point in self.points), default=1)

    @property
    def seeds(self) -> list[int]:
        """Seeds of the runs, as far as they are known."""
        made = (point for each in self.points for point in each.points)
        return sorted({point["seed"] for point in made if point.get("seed") is not None})

    @property
    def uneven(self) -> bool:
        """Whether points are means of different numbers of runs, so that the curve may jump."""
        return len({len(point.points) for point in self.points}) > 1

    @property
    def trainings(self) -> set[tuple[int, int]]:
        """Updates and tokens of each, of the models of all points for which they are known."""
        models = [point["model"] for made in self.points for point in made.points]
        return {
            (model["updates"], model["tokens_per_update"])
            for model in models
            if model.get("updates")
        }

    @property
    def parameters(self) -> int | None:
        """Parameters of the largest model; None where they are not known."""
        models = [point["model"] for made in self.points for point in made.points]
        return max((model["parameters"] for model in models if model["parameters"]), default=None)

    @property
    def xs(self) -> list[float]:
        return [p.x for p in self.points]

    @property
    def ys(self) -> list[float]:
        return [p.y for p in self.points]

    def at(self, x: float) -> float | None:
        """y at x, interpolated linearly; None outside the curve."""
        if not self.points or not self.xs[0] <= x <= self.xs[-1]:
            return None
        return float(np.interp(x, self.xs, self.ys))


def make_curves(points: Iterable[Point], x: str, y: str) -> list[Curve]:
    """Build one curve per name; points with the same settings are runs of one curve point.

    Names without any point that has both metrics are left out.
    """
    names: dict[str, dict[str, list[Point]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        settings = {
            key: point["settings"].get(key)
            for key in ("system", "options", "k", "ending", "beam", "dtype")
        }
        settings["parameters"] = point["model"]["parameters"]
        names[point["name"]][json.dumps(settings, sort_keys=True)].append(point)
    curves = []
    for name, groups in names.items():
        made = [_curve_point(_distinct(group), x, y) for group in groups.values()]
        known = sorted((p for p in made if p is not None), key=lambda p: p.x)
        if known:
            curves.append(Curve(name, known))
    return curves


def _distinct(group: list[Point]) -> list[Point]:
    """Keep one point per model, because two points of one model are not two runs."""
    by_model = {point["settings"].get("model", i): point for i, point in enumerate(group)}
    return list(by_model.values())


def _curve_point(group: list[Point], x: str, y: str) -> CurvePoint | None:
    pairs = [(value(point, x), value(point, y)) for point in group]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not known:
        return None
    xs, ys = zip(*known, strict=True)
    mean = sum(ys) / len(ys)
    if len(ys) > 1:
        low, high = min(ys), max(ys)
    else:
        half = group[0]["quality"].get(f"{y}_interval") or 0.0
        low, high = mean - half, mean + half
    return CurvePoint(sum(xs) / len(xs), mean, low, high, _label(group[0]), group)


def _label(point: Point) -> str:
    label = point.get("label")
    if label is None and point["k"] is not None:
        label = f"{point['k']:g}"
    return label or ""


@dataclass(frozen=True)
class Difference:
    """Difference between two curves over the latencies that both cover."""

    low: float
    high: float
    area: float  # between the curves, in units of y times units of x

    @property
    def mean(self) -> float:
        return self.area / (self.high - self.low)


def difference(curve: Curve, baseline: Curve) -> Difference | None:
    """The exact area between two piecewise linear curves; None if they do not overlap."""
    low = max(curve.xs[0], baseline.xs[0])
    high = min(curve.xs[-1], baseline.xs[-1])
    if not low < high:
        return None
    inner = {x for x in (*curve.xs, *baseline.xs) if low < x < high}
    xs = np.array([low, *sorted(inner), high])
    gap = np.interp(xs, curve.xs, curve.ys) - np.interp(xs, baseline.xs, baseline.ys)
    area = float(((gap[1:] + gap[:-1]) / 2 * np.diff(xs)).sum())
    return Difference(low, high, area)


def default_grid(curves: Sequence[Curve], most: int = 8) -> list[float]:
    """Round latencies that at least two curves (or the only one) cover."""
    wanted = min(2, len(curves))
    low = sorted(curve.xs[0] for curve in curves)[wanted - 1]
    high = sorted((curve.xs[-1] for curve in curves), reverse=True)[wanted - 1]
    if high <= low:
        return []
    exponent = 10 ** math.floor(math.log10((high - low) / most))
    step = next(s * exponent for s in (1, 2, 5, 10, 20) if (high - low) / (s * exponent) <= most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def closest(curve: Curve, x: float) -> CurvePoint:
    return min(curve.points, key=lambda p: abs(p.x - x))


def find_baseline(curves: Sequence[Curve], name: str | None) -> Curve | None:
    """The curve of this name; by default the first that was measured here and is a line."""
    if name is None:
        return next((c for c in curves if len(c.points) > 1 and not c.published), None)
    for curve in curves:
        if curve.name == name:
            return curve
    raise unknown("--baseline", name, [curve.name for curve in curves])


# The results in the paper's appendix: the `paper` profile, and lower-cased tokenised BLEU. Two AP
# values are left out, because the paper repeats the previous column there.

PUBLISHED = ("CW", "AP", "AL", "DAL")


def _published() -> list[dict[str, str]]:
    text = (files("waitinfo.evaluation") / "data" / "published.csv").read_text("utf-8")
    return list(csv.DictReader(text.splitlines()))


def published_settings() -> list[str]:
    """Language pairs and sizes with published results, as `de-en base`."""
    return list(dict.fromkeys(row["setting"] for row in _published()))


def published_curves(setting: str, x: str, y: str) -> list[Curve]:
    """Every system of one setting; full-sentence translation is a curve of one point."""
    known = published_settings()
    if setting not in known:
        raise unknown("--published", setting, known)
    profile, _, metric = x.rpartition(".")
    if profile != "paper" or metric not in PUBLISHED:
        raise WaitinfoError(
            f"--x {x}: the paper published only {', '.join(f'paper.{c}' for c in PUBLISHED)}, "
            "in tokens; other metrics cannot be compared with them"
        )
    if y != "BLEU_lowercase":
        raise WaitinfoError(f"--y {y}: the paper published only BLEU_lowercase")
    curves: dict[str, Curve] = {}
    for row in _published():
        if row["setting"] != setting or not row[metric]:
            continue
        curve = curves.setdefault(row["system"], Curve(row["system"], [], published=True))
        score = float(row["BLEU"])
        curve.points.append(CurvePoint(float(row[metric]), score, score, score, row["value"]))
    for curve in curves.values():
        curve.points.sort(key=lambda p: p.x)
    return list(curves.values())
