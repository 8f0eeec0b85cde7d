"""Figures from points: differences at equal latency with their seeds, early stops, ratios."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist, mean, stdev
from typing import Any

import numpy as np

from experiments.pages.tables import RESULTS, numbers_of, points_of
from waitinfo.evaluation.curves import difference, make_curves
from waitinfo.evaluation.points import Point, select

MINE: list[Path] = []  # a folder whose runs take the place of published ones, if there is one
NO_LATENCY = "no common latency"
# 97.5% quantiles of Student's t by degrees of freedom.
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447}


def signed(value: float) -> str:
    text = f"{value:+.1f}".replace("-", "−")
    return text if float(text[1:]) else text[1:]  # zero has no sign


def student(free: int) -> float:
    """The 97.5% quantile of Student's t; of more degrees of freedom from the normal one."""
    z = NormalDist().inv_cdf(0.975)
    from_normal = z + (z**3 + z) / 4 / free + (5 * z**5 + 16 * z**3 + 3 * z) / 96 / free**2
    return STUDENT.get(free, from_normal)


def half_interval(values: Sequence[float]) -> float:
    """Half the width of the 95% interval of a mean (Student's t)."""
    return student(len(values) - 1) * stdev(values) / len(values) ** 0.5


def with_seeds(values: Sequence[float]) -> str:
    """A mean with its interval or its seeds."""
    if not values:
        return NO_LATENCY
    if len(values) == 1:
        return f"{signed(values[0])} (one seed)"
    if len(values) == 2:
        return f"{signed(mean(values))} ({' and '.join(map(signed, values))})"
    return f"{signed(mean(values))} ± {half_interval(values):.1f} ({len(values)} seeds)"


def run_of(point: Point) -> tuple[str, Any]:
    return point["run"], point["seed"]


def part_of(point: Point) -> tuple[Any, ...]:
    return point["set"], point["name"], point["k"]


def points(experiment: str, *where: str) -> list[Point]:
    """Points of an experiment; none if it has not been made."""
    found: list[Point] = []
    for folder in (RESULTS, *MINE):
        new = points_of(folder, experiment)
        for run in dict.fromkeys(map(run_of, new)):
            before, after = ([p for p in points if run_of(p) == run] for points in (found, new))
            if {part_of(p) for p in before} <= {part_of(p) for p in after}:  # else incomplete
                found = [*(p for p in found if run_of(p) != run), *after]
    return select(found, where) if found else []


def numbers(name: str) -> dict[str, Any]:
    """The numbers of analyses by their name; none if they have not been made."""
    found: dict[str, Any] = {}
    for folder in (RESULTS, *MINE):
        found |= numbers_of(folder, name)
    return found


def gaps(found: Sequence[Point], first: str, second: str, x: str = "paper.AL") -> list[float]:
    """Mean difference in BLEU at equal latency, for every seed that both have."""
    values = []
    for seed in sorted({p["seed"] for p in found if p["name"] == first}, key=str):
        here = {c.name: c for c in make_curves([p for p in found if p["seed"] == seed], x, "BLEU")}
        if first in here and second in here and (area := difference(here[first], here[second])):
            values.append(area.mean)
    return values


def gap(found: Sequence[Point], first: str, second: str, x: str = "paper.AL") -> str:
    """Mean difference in BLEU at equal latency, with its interval or its seeds."""
    return with_seeds(gaps(found, first, second, x))


def full_sentence(found: Sequence[Point], first: str, second: str) -> str:
    scores = {(p["name"], p["seed"]): p["quality"]["BLEU"] for p in found}
    seeds = sorted(seed for name, seed in scores if name == first and (second, seed) in scores)
    return with_seeds([scores[first, seed] - scores[second, seed] for seed in seeds])


def early(found: Sequence[Point], name: str) -> str:
    """Early stop at K or k = 1, 3, 5, 7, 9, mean of the seeds."""
    shares = []
    for k in (1, 3, 5, 7, 9):
        here = [p["early_stop"] for p in found if p["name"] == name and p["k"] == k]
        shares += [f"{100 * mean(here):.1f}"] if here else []
    return ", ".join(shares) + "%"


def field(found: Sequence[Point], name: str, part: str) -> str:
    return f"{mean(p[part] for p in found if p['name'] == name):.2f}"


def length_ratio(found: Sequence[Point], name: str) -> str:
    """Source tokens to tokens written, with end-of-sentence on both sides."""
    return f"{1 / mean(p['target_per_source'] for p in found if p['name'] == name):.2f}"


def early_at(found: Sequence[Point], names: Sequence[str], latencies: Sequence[float]) -> str:
    """Early stop of several systems at equal AL, interpolated between dials, mean of the seeds."""
    shown = []
    for name in names:
        here = [p for p in found if p["name"] == name]
        seeds = {p["seed"] for p in here}
        curves = [sorted((p["paper"]["AL"], p["early_stop"]) for p in here if p["seed"] == seed)
                  for seed in seeds]  # fmt: skip
        shares = [mean(np.interp(x, *zip(*curve, strict=True)) for curve in curves)
                  for x in latencies]  # fmt: skip
        shown.append(", ".join(f"{100 * share:.0f}" for share in shares) + "%")
    return " and ".join(shown)


def at_dial(found: Sequence[Point], name: str, k: int) -> str:
    """Average lagging at one dial, mean of the seeds."""
    return f"{mean(p['paper']['AL'] for p in found if p['name'] == name and p['k'] == k):.2f}"
