"""`waitinfo compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from waitinfo.cli.display import note, print_table, progress_bar
from waitinfo.cli.options import numbers
from waitinfo.errors import WaitinfoError, unknown
from waitinfo.evaluation.curves import (
    Curve,
    CurvePoint,
    check_axis,
    closest,
    default_grid,
    difference,
    make_curves,
    value,
)
from waitinfo.evaluation.instances import LOG, read_instances
from waitinfo.evaluation.latency import METRICS, PROFILES
from waitinfo.evaluation.output import text_folder
from waitinfo.evaluation.plot import check_format, draw
from waitinfo.evaluation.points import Point, read_points, select, sets_of
from waitinfo.evaluation.published import published_curves
from waitinfo.evaluation.quality import SETTINGS, paired_bootstrap

LATENCIES = frozenset(f"{profile}.{metric}" for profile in PROFILES for metric in METRICS)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for on the command line."""

    results: list[Path]
    out: Path | None
    x: str
    y: str | None
    at: str | None
    baseline: str | None
    only: str | None
    where: list[str]
    published: str | None
    paired: bool
    labels: bool
    bands: bool
    title: str


def run(request: Request) -> None:
    if request.out is not None:
        check_format(request.out)
    x = check_axis("--x", request.x)
    default = "BLEU_lowercase" if request.published else "BLEU"
    y = check_axis("--y", request.y or default)
    if x in LATENCIES and y in LATENCIES and x.split(".")[0] != y.split(".")[0]:
        raise WaitinfoError(f"--x {x} and --y {y}: tokens and words do not belong in one plot")
    points = _chosen(select(read_points(request.results), request.where), request.only)
    _check_one_set(points)
    curves = _curves(points, x, y)
    if request.published:
        curves += published_curves(request.published, x, y)
    baseline = _baseline(curves, request.baseline)
    grid = [g for g in numbers("--at", request.at) if g is not None]
    _table_at(curves, grid or default_grid(_lines(curves)), x, y)
    _table_differences(curves, baseline, x, y)
    if request.paired:
        _table_paired(curves, baseline, x, y)
    if request.out is not None:
        draw(curves, x, y, request.out, request.title, request.labels, request.bands)
        note(f"drawn: {request.out}")


def _chosen(points: list[Point], only: str | None) -> list[Point]:
    if only is None:
        return points
    known = list(dict.fromkeys(point["name"] for point in points))
    names = only.split(",")
    for name in names:
        if name not in known:
            raise unknown("--only", name, known)
    chosen = [point for point in points if point["name"] in names]
    return sorted(chosen, key=lambda point: names.index(point["name"]))


def _check_one_set(points: list[Point]) -> None:
    sets = sets_of(points)
    if len(sets) > 1:
        raise WaitinfoError(
            "these points belong to different test sets; choose one with --where set=NAME: "
            + ", ".join(sorted(set(sets.values())))
        )


def _curves(points: list[Point], x: str, y: str) -> list[Curve]:
    curves = make_curves(points, x, y)
    drawn = {curve.name for curve in curves}
    missing = [n for n in dict.fromkeys(point["name"] for point in points) if n not in drawn]
    if not curves:
        raise WaitinfoError(f"no point has both {x} and {y}")
    if missing:
        note(f"left out, without {x} or {y}: {', '.join(missing)}")
    for curve in curves:
        if curve.uneven:
            note(f"{curve.name}: its points are means of different numbers of runs; it may jump")
    return curves


def _lines(curves: Sequence[Curve]) -> list[Curve]:
    return [curve for curve in curves if len(curve.points) > 1] or list(curves)


def _baseline(curves: Sequence[Curve], name: str | None) -> Curve | None:
    if name is None:
        return next((c for c in curves if len(c.points) > 1 and not c.published), None)
    for curve in curves:
        if curve.name == name:
            return curve
    raise unknown("--baseline", name, [curve.name for curve in curves])


def _name(curve: Curve) -> str:
    return f"{curve.name} (published)" if curve.published else curve.name


def _table_at(curves: Sequence[Curve], grid: Sequence[float], x: str, y: str) -> None:
    table = Table()
    table.add_column("system", no_wrap=True)
    for at in grid:
        table.add_column(f"{at:g}", justify="right")
    table.add_column("covers", justify="right", no_wrap=True)
    for curve in curves:
        cells = ("" if (found := curve.at(at)) is None else f"{found:.2f}" for at in grid)
        ends = f"{curve.xs[0]:.2f}"
        if len(curve.points) > 1:
            ends += f"–{curve.xs[-1]:.2f}"
        else:
            ends += f": {curve.ys[0]:.2f}"
        table.add_row(escape(_name(curve)), *cells, ends)
    print_table(table, f"{y} at {x}, interpolated")


def _table_differences(curves: Sequence[Curve], baseline: Curve | None, x: str, y: str) -> None:
    rows = [
        (curve, found)
        for curve in curves
        if baseline is not None and curve is not baseline and len(curve.points) > 1
        if (found := difference(curve, baseline))
    ]
    if baseline is None or not rows:
        return
    table = Table()
    for column, justify in (("system", "left"), (f"over {x}", "right"), ("mean", "right"),
                            ("area", "right")):  # fmt: skip
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for curve, found in rows:
        table.add_row(
            escape(_name(curve)), f"{found.low:.2f}–{found.high:.2f}", f"{found.mean:+.2f}",
            f"{found.area:+.2f}",
        )  # fmt: skip
    print_table(table, f"{y} above {_name(baseline)}")


def _table_paired(curves: Sequence[Curve], baseline: Curve | None, x: str, y: str) -> None:
    """Each point of the other curves against the baseline's point of nearest latency."""
    if y not in SETTINGS:
        raise WaitinfoError(f"--paired: not for {y}; choose --y from {', '.join(SETTINGS)}")
    if baseline is None or baseline.published:
        raise WaitinfoError("--paired: needs a curve of your own, of several points, as baseline")
    pairs = [
        (curve, point, closest(baseline, point.x))
        for curve in curves
        if curve is not baseline and not curve.published
        for point in curve.points
    ]
    table = Table()
    for column in ("system", x, y, f"{baseline.name} {x}", y, "p"):
        table.add_column(escape(column), justify="left" if column == "system" else "right")
    if any(len(p.points) > 1 for c in curves for p in c.points):
        note("--paired: of several runs, the first")
    with progress_bar() as progress:
        progress.stage("paired tests", len(pairs))
        for number, (curve, point, other) in enumerate(pairs, 1):
            texts, references = _texts(point)
            base, base_references = _texts(other)
            if references != base_references:
                raise WaitinfoError("--paired: the two systems have different references")
            found = paired_bootstrap(y, base, texts, references)
            at, there = value(point.points[0], x), value(other.points[0], x)
            table.add_row(
                escape(f"{curve.name} {point.label}"), f"{at:.2f}", f"{found.other:.2f}",
                escape(f"{other.label}: {there:.2f}"), f"{found.baseline:.2f}",
                f"{found.p_value:.3f}",
            )  # fmt: skip
            progress.advance(number)
    heading = f"paired bootstrap of {y} against {baseline.name} at the nearest {x}"
    print_table(table, heading)


def _texts(point: CurvePoint) -> tuple[list[str], list[str]]:
    """Translations and references of a point; of several runs, the first."""
    folder = text_folder(point.points[0])
    if not (folder / LOG).exists():
        raise WaitinfoError(f"--paired: {folder} holds no translations (evaluate --save-text)")
    found = read_instances(folder)
    return [i["prediction"] for i in found], [i["reference"] for i in found]
