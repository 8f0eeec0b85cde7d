"""`waitinfo compare`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from waitinfo.cli.flags import Argument, Option
from waitinfo.cli.options import Paths, numbers
from waitinfo.errors import WaitinfoError

if TYPE_CHECKING:
    from waitinfo.evaluation.curves import Curve
    from waitinfo.evaluation.points import Point


@dataclass(kw_only=True)
class CompareArguments:
    """What `compare` is given."""

    results: Annotated[Paths, Argument(help="Folders, .json or .jsonl files of evaluate.")]
    out: Annotated[Path | None, Option(help="Figure to draw: .svg, .png or .pdf.")] = None
    x: Annotated[str, Option(help="Latency on the x-axis: paper.AL, word.LAAL, …")] = "paper.AL"
    y: Annotated[
        str | None,
        Option(help="Quality on the y-axis: BLEU, BLEU_lowercase, chrF, … [default: BLEU]."),
    ] = None
    at: Annotated[
        str | None,
        Option(help="Latencies to compare at, for example 3,5,8 [default: round numbers]."),
    ] = None
    baseline: Annotated[
        str | None, Option(help="Curve that others are compared with [default: the first].")
    ] = None
    only: Annotated[
        str | None,
        Option(help="These curves in this order, for example wait-info,multipath."),
    ] = None
    where: Annotated[
        list[str],
        Option(help="Only points with this FIELD=VALUE: set=newstest2015, seed=1,2, …"),
    ] = field(default_factory=list)
    published: Annotated[
        str | None,
        Option(help="Also show the paper's figures: 'de-en base', 'en-vi small', …"),
    ] = None
    paired: Annotated[
        bool, Option("--paired", help="Test differences for significance (bootstrap).")
    ] = False
    labels: Annotated[
        bool, Option("--labels/--no-labels", help="Write dial values at the points.")
    ] = True
    bands: Annotated[bool, Option("--bands/--no-bands", help="Show confidence intervals.")] = True
    title: Annotated[str, Option(help="Title of the figure [default: name of the test set].")] = ""


def compare(options: CompareArguments) -> None:
    """Compare systems: curves, quality at equal latency, area between curves.

    Points of one name are a curve. Points with the same settings from several runs (seeds) are
    averaged, and the band shows their spread; for a single run it is the bootstrap interval.

    Examples:

        waitinfo compare points --out curves.svg

        waitinfo compare points --x word.LAAL --y chrF --at 3,5,8 --baseline multipath

        waitinfo compare points.jsonl --where set=newstest2015 --where run=big --out curves.png

        waitinfo compare points --published 'de-en base' --out curves.png
    """
    from waitinfo.cli import tables
    from waitinfo.cli.options import note
    from waitinfo.evaluation.curves import (
        LATENCIES,
        check_axis,
        default_grid,
        find_baseline,
        published_curves,
    )
    from waitinfo.evaluation.plot import check_format, draw
    from waitinfo.evaluation.points import check_one_set, in_order, read_points, select

    if options.out is not None:
        check_format(options.out)
    x = check_axis("--x", options.x)
    y = check_axis("--y", options.y or ("BLEU_lowercase" if options.published else "BLEU"))
    if x in LATENCIES and y in LATENCIES and x.split(".")[0] != y.split(".")[0]:
        raise WaitinfoError(f"--x {x} and --y {y}: tokens and words do not belong in one plot")
    points = in_order(select(read_points(options.results), options.where), options.only)
    check_one_set(points)
    curves = _curves(points, x, y)
    if options.published:
        curves += published_curves(options.published, x, y)
    baseline = find_baseline(curves, options.baseline)
    lines = [curve for curve in curves if len(curve.points) > 1] or curves
    grid = default_grid(lines) if options.at is None else numbers("--at", options.at)
    tables.interpolated(curves, grid, x, y)
    if baseline is not None:
        tables.differences(curves, baseline, x, y)
    tables.models(curves)
    if options.paired:
        tables.paired(curves, baseline, x, y)
    if options.out is not None:
        title = options.title or points[0]["set"]
        draw(curves, x, y, options.out, title, options.labels, options.bands)
        note(f"drawn: {options.out}")


def _curves(points: list[Point], x: str, y: str) -> list[Curve]:
    """The curves of points, with notes on what is missing or uneven."""
    from waitinfo.cli.options import note
    from waitinfo.evaluation.curves import make_curves

    curves = make_curves(points, x, y)
    if not curves:
        raise WaitinfoError(f"no point has both {x} and {y}")
    drawn = {curve.name for curve in curves}
    if missing := [n for n in dict.fromkeys(p["name"] for p in points) if n not in drawn]:
        note(f"left out, without {x} or {y}: {', '.join(missing)}")
    for curve in curves:
        if curve.uneven:
            note(f"{curve.name}: its points are means of different numbers of runs; it may jump")
    return curves
