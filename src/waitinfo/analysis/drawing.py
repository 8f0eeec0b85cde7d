"""What the pictures share: styles, legends outside the data, and notes on what is missing.

Nothing is told by colour only: groups differ in hatching, curves in marks and line styles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from waitinfo.evaluation.plot import axis_title, plain

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
