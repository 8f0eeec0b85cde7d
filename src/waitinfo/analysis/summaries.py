"""What analyses share: tables, numbers for JSON, and the style of pictures.

In pictures nothing is told by colour only: groups differ in hatching, curves in marks and styles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from waitinfo.evaluation.plot import axis_title, plain

Numbers = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """A table for the terminal and the report; cells are text."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    textual: bool = False  # cells are words, not numbers


def cell(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}%"


def dial(k: float | None) -> str:
    return "" if k is None else f"{k:g}"


def titled(name: str, k: float | None) -> str:
    """A system at a dial value; the system alone if it has no dial."""
    return name if k is None else f"{name} {k:g}"


def for_json(value: Any) -> Any:
    """Numbers as JSON can hold them: None for what is undefined."""
    if isinstance(value, dict):
        return {name: for_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [for_json(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def mean_of_known(values: np.ndarray) -> float:
    """The mean of those that are not NaN; NaN if there are none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def describe(values: Iterable[float], edges: Sequence[float]) -> Numbers:
    """Count, mean, spread and histogram; values outside the edges count in the outermost bins."""
    found = np.fromiter(values, np.float64)
    if not len(found):
        return {"count": 0}
    inside = np.clip(found, edges[0], edges[-1])
    return {
        "count": len(found),
        "mean": float(found.mean()),
        "deviation": float(found.std(ddof=1)) if len(found) > 1 else 0.0,
        "quantiles": {str(q): float(np.quantile(found, q / 100)) for q in (5, 25, 50, 75, 95)},
        "histogram": np.histogram(inside, np.asarray(edges))[0].tolist(),
    }


def correlation(
    left: Sequence[float] | np.ndarray, right: Sequence[float] | np.ndarray
) -> float | None:
    """Pearson's correlation; None where one side is constant."""
    a, b = np.asarray(left, np.float64), np.asarray(right, np.float64)
    if len(a) < 2 or a.std() < 1e-12 or b.std() < 1e-12:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def quantile_bins(values: Sequence[float] | np.ndarray, count: int) -> list[float]:
    """Edges of up to `count` bins with about equally many values; equal edges are merged."""
    found = np.quantile(np.asarray(values, np.float64), np.linspace(0, 1, count + 1))
    return [float(edge) for edge in np.unique(found)]


def bin_of(values: Sequence[float] | np.ndarray, edges: Sequence[float]) -> np.ndarray:
    """The bin of each value; the last edge belongs to the last bin."""
    inner = np.asarray(edges[1:-1], np.float64)
    return np.searchsorted(inner, np.asarray(values, np.float64), side="right")


GREY = "0.45"
LEGEND = {"fontsize": 7.5, "framealpha": 0.85, "edgecolor": "none"}


def legend_above(axes: Any, columns: int = 1) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, **LEGEND)


def legend_below(figure: Any, handles: Sequence[Any], columns: int) -> None:
    """One legend for all panels."""
    columns = min(columns, len(handles))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, **LEGEND)


def entry(axes: Any, text: str) -> None:
    """A line of the legend that belongs to nothing drawn."""
    axes.plot([], [], " ", label=plain(text))


def say(axes: Any, text: str) -> None:
    """Write why a panel is empty, instead of scales that mean nothing."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(
        0.5, 0.5, plain(text), transform=axes.transAxes, ha="center", va="center", fontsize=8,
        color=GREY,
    )  # fmt: skip


def short_title(axis: str) -> str:
    profile, _, metric = axis.rpartition(".")
    if metric == "AP":  # a proportion
        return metric
    unit = {"paper": "tokens", "word": "words"}.get(profile)
    return f"{metric} ({unit})" if unit else axis_title(axis)
