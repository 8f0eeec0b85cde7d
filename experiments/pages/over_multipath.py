"""The picture of docs/paper.md: wait-info minus multipath, in every setting that was trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from experiments.pages.figures import gaps, half_interval, points
from experiments.pages.tables import Outputs
from waitinfo.evaluation.plot import STYLE, pyplot, save_figure

NEWS = "set=newstest2015"
AS_PAPER, AS_CODE = "as in the paper", "with switches of the authors' code"
LOOKS = {AS_PAPER: ("C0", "o"), AS_CODE: ("C1", "s")}  # colour and marker
SETTINGS = (  # title, group, experiment, points, wait-info, multipath
    ("news, bundled text", AS_PAPER, "de-en-ingredients", NEWS, "all", "multipath"),
    ("news, bundled shape", AS_PAPER, "de-en-systems", NEWS, "wait-info", "multipath"),
    ("news, Base", AS_PAPER, "de-en", NEWS, "wait-info", "multipath"),
    ("news, Big", AS_PAPER, "de-en-big", NEWS, "wait-info", "multipath"),
    ("newstest2013, the same shape", AS_PAPER, "de-en-parts", "", "wait-info", "multipath"),
    ("newstest2013, longer", AS_PAPER, "de-en-ablations", "seed=1", "wait-info", "multipath"),
    ("captions as authors", AS_PAPER, "multi30k-authors", "", "wait-info", "multipath"),
    ("captions", AS_PAPER, "multi30k", "", "wait-info", "multipath"),
    ("captions, the ablations' runs", AS_PAPER, "multi30k-ablations", "", "wait-info", "multipath"),
    ("captions, norm before", AS_PAPER, "multi30k-norm-before", "", "wait-info", "multipath"),
    ("Europarl as authors", AS_PAPER, "europarl-178k", "", "wait-info", "multipath"),
    ("English → Vietnamese talks", AS_PAPER, "en-vi", "", "wait-info", "multipath"),
    ("captions, without the floor", AS_CODE, "multi30k-authors", "", "no-floor", "multipath"),
    ("captions, their L_sum", AS_CODE, "multi30k-authors", "", "sum-by-batch", "multipath"),
    ("captions, four K per update", AS_CODE, "multi30k-authors", "", "four-k", "multipath-four-k"),
    ("captions, both", AS_CODE, "multi30k-authors", "", "as-authors", "multipath-four-k"),
    ("Europarl, without the floor", AS_CODE, "europarl-178k", "", "no-floor", "multipath"),
    ("Europarl, their L_sum", AS_CODE, "europarl-178k", "", "sum-by-batch", "multipath"),
    ("Europarl, four K per update", AS_CODE, "europarl-178k", "", "four-k", "multipath-four-k"),
    ("Europarl, both", AS_CODE, "europarl-178k", "", "as-authors", "multipath-four-k"),
)  # fmt: skip


@dataclass(frozen=True)
class Differences:
    """Differences in BLEU of several settings, one dot for each seed."""

    rows: Sequence[tuple[str, str, list[float]]]  # title, group, a difference for each seed

    def draw(self, out: Path) -> None:
        plt = pyplot()
        with plt.rc_context(STYLE):
            size = (7.5, 0.27 * len(self.rows) + 1.3)
            figure, axes = plt.subplots(figsize=size, layout="constrained")
            axes.axvline(0, color="0.6", linewidth=1)
            for number, (_, group, values) in enumerate(self.rows):
                self._draw_row(axes, number, group, values)
            for group, (colour, marker) in LOOKS.items():
                axes.plot([], [], marker, color=colour, label=group)
            axes.set_yticks(range(len(self.rows)), [title for title, _, _ in self.rows])
            axes.invert_yaxis()
            axes.set_xlabel("BLEU of wait-info minus multipath, mean over equal AL\n"
                            "(large: mean, small: each seed, bar: 95% interval)")  # fmt: skip
            axes.legend(loc="lower right", fontsize=8, edgecolor="none")
            axes.grid(axis="x", alpha=0.25, linewidth=0.6)
            save_figure(figure, out)
            plt.close(figure)

    def _draw_row(self, axes: Any, number: int, group: str, values: list[float]) -> None:
        (colour, marker), middle = LOOKS[group], mean(values)
        if len(values) > 2:
            half = half_interval(values)
            axes.plot([middle - half, middle + half], [number] * 2, color=colour, linewidth=2)
        axes.plot(values, [number] * len(values), marker, color=colour, alpha=0.45, markersize=4)
        axes.plot(middle, number, marker, color=colour, markersize=7)


def over_multipath(_: Path) -> Outputs:
    rows = [
        (title, group, gaps(points(name, *filter(None, [where])), first, second))
        for title, group, name, where, first, second in SETTINGS
    ]
    return {"paper/over-multipath.svg": Differences([row for row in rows if row[2]])}


MAKE = (over_multipath,)
