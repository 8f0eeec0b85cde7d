"""The case study as pictures: source and translation side by side, and as staircases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from waitinfo.analysis.case import END, steps, title
from waitinfo.analysis.summaries import Numbers
from waitinfo.evaluation.plot import COLOURS, DASHES, MARKS, plain

MORE, LESS, NONE = "#B03A00", "#00508C", "black"  # info above and below the average
LINE = 0.21  # inches of a row
WRITTEN_WIDTH = 36  # characters that fit into the column of written tokens


def average(tokens: Sequence[Numbers]) -> float:
    infos = [token["info"] for token in tokens if token["info"] is not None]
    return float(np.mean(infos)) if infos else 1.0


def shade(token: Numbers, mean: float) -> dict[str, Any]:
    """More info than the average is bold and red, less is blue, as in the paper."""
    if token["info"] is None:
        return {"color": NONE}
    above = token["info"] > mean
    return {"color": MORE if above else LESS, "fontweight": "bold" if above else "normal"}


def text_of(token: Numbers, with_info: bool = True) -> str:
    if token["info"] is None or not with_info:
        return plain(token["token"])
    return plain(f"{token['token']} {token['info']:.2f}")


def lines_of(written: Sequence[Numbers], width: int) -> list[list[Numbers]]:
    """Tokens in lines of at most so many characters; at least one line."""
    lines: list[list[Numbers]] = [[]]
    used = 0
    for token in written:
        length = len(text_of(token)) + 2
        if used and used + length > width:
            lines.append([])
            used = 0
        lines[-1].append(token)
        used += length
    return lines


def draw_case(plt: Any, found: Numbers) -> Any:
    """For each policy a column: every source token, and beside it what was then written."""
    subjects = found["subjects"]
    layouts = [
        [(token, lines_of(written, WRITTEN_WIDTH)) for token, written in steps(subject)]
        for subject in subjects
    ]
    rows = max(sum(len(lines) for _, lines in layout) for layout in layouts)
    height = LINE * (rows + 3)
    figure, panels = plt.subplots(
        1, len(subjects), figsize=(3.7 * len(subjects), height), layout="constrained", squeeze=False
    )
    for axes, subject, layout in zip(panels[0], subjects, layouts, strict=True):
        _draw_column(axes, subject, layout, rows)
        axes.set_title(plain(title(subject, found["latency"].rpartition(".")[2])), fontsize=9)
    figure.supxlabel("info above the average of its sentence: bold, red; below: blue", fontsize=7.5)
    return figure


def _draw_column(axes: Any, subject: Numbers, layout: Any, rows: int) -> None:
    axes.set_xlim(0, 100)
    axes.set_ylim(rows, -1)
    axes.axis("off")
    axes.text(27, -0.5, "READ", ha="right", va="center", fontsize=7, color="0.4")
    axes.text(31, -0.5, "WRITE", ha="left", va="center", fontsize=7, color="0.4")
    means = average(subject["source"]), average(subject["written"])
    y = 0
    for token, lines in layout:
        shown = lines[0] != []
        axes.plot([0, 100], [y - 0.02, y - 0.02], color="0.85", linewidth=0.5)
        axes.text(27, y + 0.5, text_of(token), ha="right", va="center", fontsize=7.5,
                  **shade(token, means[0]))  # fmt: skip
        if shown:
            axes.plot([28.2, 29.8], [y + 0.5, y + 0.5], color="black", linewidth=0.8)
        for line in lines:
            _draw_line(axes, y + 0.5, line, means[1])
            y += 1


def _draw_line(axes: Any, y: float, line: Sequence[Numbers], mean: float) -> None:
    """Tokens one after the other, each where the one before it ends."""
    before: Any = None
    for token in line:
        style = {"fontsize": 7.5, "va": "center", **shade(token, mean)}
        if before is None:
            before = axes.text(31, y, text_of(token), ha="left", **style)
        else:
            before = axes.annotate(
                text_of(token), xy=(1, 0.5), xycoords=before, xytext=(5, 0),
                textcoords="offset points", ha="left", annotation_clip=False, **style,
            )  # fmt: skip


def draw_staircase(plt: Any, found: Numbers) -> Any:
    """Source tokens read against target tokens written; the bars are the info of the source."""
    subjects = found["subjects"]
    source = subjects[0]["source"]
    with_info = any(token["info"] is not None for token in source)
    figure, (bars, axes) = plt.subplots(
        2, 1, figsize=(7.2, 4.8), layout="constrained", sharex=True, height_ratios=[1, 4]
    )
    at = np.arange(1, len(source) + 1)
    if with_info:
        mean = average(source)
        infos = [0.0 if token["info"] is None else token["info"] for token in source]
        bars.bar(
            at, infos, width=0.8, linewidth=0.8,
            color=["#F3B58E" if info > mean else "#9CC6E3" for info in infos],
            hatch=["" if info > mean else "////" for info in infos],
            edgecolor=[COLOURS[0] if info > mean else COLOURS[1] for info in infos],
        )  # fmt: skip
        bars.axhline(mean, color="black", linewidth=0.7, linestyle="--")
        bars.set_ylabel("info")
    else:
        bars.set_visible(False)
    for number, subject in enumerate(subjects):
        reads = [token["read"] for token in subject["written"]]
        colour = COLOURS[number % len(COLOURS)]
        # Down the page for every token written, to the right for every token read.
        xs, ys = [1], [0]
        for count, read in enumerate(reads, 1):
            xs += [read, read]
            ys += [count - 1, count]
        axes.plot(
            xs, ys, color=colour, linewidth=1.4, linestyle=DASHES[number % len(DASHES)],
            label=plain(f"{subject['name']} {subject['k']:g}"),
        )  # fmt: skip
        axes.plot(
            reads, np.arange(1, len(reads) + 1), linestyle="none", color=colour, markersize=4,
            marker=MARKS[number % len(MARKS)],
        )  # fmt: skip
    axes.set_xticks(at, [plain(t["token"]) for t in source], rotation=60, ha="right", fontsize=7)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel("target tokens written")
    axes.set_xlabel(f"source tokens read ({END}: end of the sentence)")
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.legend(fontsize=7.5, framealpha=0.85, edgecolor="none", loc="upper left")
    return figure
