"""Curves as a figure for a paper, distinguished by markers and line styles as well as colours."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from waitinfo.errors import WaitinfoError
from waitinfo.evaluation.curves import Curve
from waitinfo.systems import SYSTEMS

FORMATS = (".svg", ".png", ".pdf")
# Colours of Okabe and Ito, which colour-blind readers can distinguish, and three more.
COLOURS = (
    "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#8C6D31",
    "#6A3D9A", "#7F7F7F",
)  # fmt: skip
MARKS = "os^Dvp*Xh<"
STYLED = tuple(dict.fromkeys(("wait-info", "multipath", "wait-k", *SYSTEMS)))
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))
STYLE = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
    "svg.fonttype": "none", "svg.hashsalt": "waitinfo", "pdf.fonttype": 42,
}  # fmt: skip
TITLES = {
    "paper.AL": "Average Lagging (tokens, end-of-sentence counted, hypothesis length)",
    "paper.AP": "Average Proportion (as the paper counts)",
    "word.AP": "Average Proportion",
    "word.AL": "Average Lagging (words, reference length)",
    "word.LAAL": "Length-Adaptive Average Lagging (words)",
    "BLEU_lowercase": "BLEU (lower-cased)",
    "BLEU_words": "BLEU (words alone)",
}


def curve_style(number: int) -> dict[str, Any]:
    turn = number // len(COLOURS)  # where colours come again, marks and lines differ
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKS[(number + turn) % len(MARKS)],
        "linestyle": DASHES[number % len(DASHES)],
        "markersize": 4.5,
        "linewidth": 1.3,
    }


def style_numbers(names: Sequence[str]) -> list[int]:
    """The style of each curve: a system has its own in every picture, other names the next ones.

    `multipath catch_up=6` is drawn as multipath, where multipath itself is not among the names.
    """
    own = {name: name for name in names if name in STYLED}
    for name in names:
        own.setdefault(name.split(" ")[0], name)
    numbers = {name: STYLED.index(system) for system, name in own.items() if system in STYLED}
    free = (number for number in count() if number not in numbers.values())
    return [numbers[name] if name in numbers else next(free) for name in names]


def axis_title(axis: str) -> str:
    profile, _, metric = axis.rpartition(".")
    unit = {"paper": f"{metric} (tokens, as the paper counts)", "word": f"{metric} (words)"}
    return TITLES.get(axis) or unit.get(profile) or axis.replace("_", " ")


def check_format(out: Path) -> None:
    if out.suffix.lower() not in FORMATS:
        raise WaitinfoError(f"--out {out}: the name must end in {', '.join(FORMATS)}")


def pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise WaitinfoError(
            "drawing needs the package matplotlib; install it with: pip install 'waitinfo[plots]'"
        ) from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def to_the_right(axes: Any, points: float) -> Any:
    """The coordinates of the data, moved by some points of the page."""
    from matplotlib.transforms import ScaledTranslation

    return axes.transData + ScaledTranslation(points / 72, 0, axes.figure.dpi_scale_trans)


def draw(
    curves: Sequence[Curve],
    x: str,
    y: str,
    out: Path,
    title: str = "",
    labels: bool = True,
    bands: bool = True,
) -> None:
    """Write the figure. A curve with one point is drawn as a horizontal line.

    labels: show dial values at the points; bands: show the uncertainty of each curve.
    """
    check_format(out)
    plt = pyplot()
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.6, 4.4), layout="constrained")
        draw_into(axes, curves, x, y, title, labels, bands)
        save_figure(figure, out)
        plt.close(figure)


def draw_into(
    axes: Any,
    curves: Sequence[Curve],
    x: str,
    y: str,
    title: str,
    labels: bool,
    bands: bool,
    panel: str = "",
) -> None:
    """Draw the curves into axes; `panel` tells these curves from those of others in the figure."""
    own = [curve for curve in curves if not curve.published]
    numbers = style_numbers([curve.name for curve in own])
    for above, (number, curve) in enumerate(zip(numbers, own, strict=True)):
        line = curve_id(curve, panel)
        _draw_curve(axes, curve, curve_style(number) | {"gid": line}, above % 2 == 0, labels, bands)
    for number, curve in enumerate(c for c in curves if c.published):
        _draw_published(axes, curve, number)
    axes.set_xlabel(axis_title(x))
    axes.set_ylabel(axis_title(y))
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.margins(x=0.04, y=0.08)
    if title:
        axes.set_title(plain(title), fontsize=10)
    axes.legend(fontsize=8, loc="lower right", framealpha=0.85, edgecolor="none")


def plain(text: str) -> str:
    """Escape dollar signs, which would start a formula."""
    return text.replace("$", r"\$")


def curve_id(curve: Curve, panel: str = "") -> str:
    """The id of a curve's line in an SVG file."""
    return f"curve:{panel}{curve.name}"


def save_figure(figure: Any, out: Path) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        # Without date and version, the same points give the same file.
        metadata = {"Date": None, "Creator": None} if out.suffix == ".svg" else None
        figure.savefig(out, dpi=200, metadata=metadata)
    except OSError as error:
        raise WaitinfoError(f"--out {out}: cannot be written ({error.strerror})") from None


def _draw_curve(
    axes: Any, curve: Curve, style: dict[str, Any], up: bool, labels: bool, bands: bool
) -> None:
    """up: labels are above the points; alternating them reduces overlap."""
    colour = style["color"]
    name = plain(curve.name)
    if curve.runs > 1:
        name += f" ({'up to ' if curve.uneven else ''}{curve.runs} runs)"
    if len(curve.points) == 1:
        point = curve.points[0]
        axes.axhline(
            point.y,
            color=colour,
            linewidth=1,
            linestyle=(0, (1, 1)),
            label=name,
            gid=style["gid"],
        )
        if bands:
            axes.axhspan(point.low, point.high, color=colour, alpha=0.08, linewidth=0)
        return
    axes.plot(curve.xs, curve.ys, label=name, zorder=3, **style)
    low, high = [p.low for p in curve.points], [p.high for p in curve.points]
    if bands:
        axes.fill_between(curve.xs, low, high, color=colour, alpha=0.13, linewidth=0)
    if labels:
        for point in curve.points:
            axes.annotate(
                plain(point.label), (point.x, point.y), xytext=(0, 5 if up else -5), ha="center",
                textcoords="offset points", va="bottom" if up else "top", fontsize=6, color=colour,
            )  # fmt: skip


def _draw_published(axes: Any, curve: Curve, number: int) -> None:
    name = f"{plain(curve.name)}, published"
    if len(curve.points) == 1:
        axes.axhline(curve.points[0].y, color="0.55", linewidth=0.8, linestyle=":", label=name)
        return
    style = {"color": "0.55", "markersize": 3, "markerfacecolor": "white", "linewidth": 0.8}
    axes.plot(curve.xs, curve.ys, label=name, zorder=2, **curve_style(number) | style)
