"""Pictures of the analyses, drawn from their numbers alone.

Nothing is told by colour only: groups differ in hatching, curves in marks and line styles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from waitinfo.analysis.case_pictures import draw_case, draw_staircase
from waitinfo.analysis.summaries import Numbers
from waitinfo.analysis.tagger import CONTENT, FUNCTION
from waitinfo.evaluation.plot import COLOURS, DASHES, MARKS, STYLE, axis_title, plain, pyplot

ORANGE, BLUE = COLOURS[0], COLOURS[1]
GREY = "0.45"
ENOUGH = 20  # sentences for a BLEU that is worth drawing


def curve_style(number: int) -> dict[str, Any]:
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKS[number % len(MARKS)],
        "linestyle": DASHES[number % len(DASHES)],
        "markersize": 4.5,
        "linewidth": 1.3,
    }


def legend(axes: Any, **options: Any) -> None:
    if options.get("handles") or axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7.5, framealpha=0.85, edgecolor="none", **options)


# Info by part of speech


def tag_style(tag: str) -> dict[str, Any]:
    if tag in CONTENT:
        return {"facecolor": "#F3B58E", "edgecolor": ORANGE}
    if tag in FUNCTION:
        return {"facecolor": "#9CC6E3", "edgecolor": BLUE, "hatch": "////"}
    return {"facecolor": "0.9", "edgecolor": GREY}


def violin(axes: Any, x: float, found: Numbers, edges: Sequence[float], tag: str) -> None:
    """A violin from a histogram, with the quartiles as a bar and the median as a dot."""
    counts = np.asarray(found["histogram"], np.float64)
    middles = (np.asarray(edges[1:]) + np.asarray(edges[:-1])) / 2
    smooth = np.convolve(counts, [0.25, 0.5, 0.25], "same")
    half = 0.42 * smooth / max(smooth.max(), 1e-9)
    shown = np.flatnonzero(half > 0.004)
    inside = slice(shown[0], shown[-1] + 1)
    axes.fill_betweenx(
        middles[inside], x - half[inside], x + half[inside], linewidth=0.8, **tag_style(tag)
    )
    quantiles = found["quantiles"]
    axes.vlines(x, quantiles["25"], quantiles["75"], color="black", linewidth=2.6, zorder=3)
    axes.plot(
        x, quantiles["50"], "o", color="white", markeredgecolor="black", markersize=4, zorder=4
    )


def draw_violins(plt: Any, found: Numbers, field: str, edges: str, label: str) -> Any:
    sides = [side for side in ("source", "target") if side in found]
    figure, panels = plt.subplots(
        len(sides), 1, figsize=(7.2, 2.9 * len(sides)), layout="constrained", squeeze=False
    )
    for side, axes in zip(sides, panels[:, 0], strict=True):
        tags = {
            tag: each
            for tag, each in found[side]["tags"].items()
            if each[field]["count"] >= 5 and tag not in ("SYM", "X")  # as in the paper
        }
        order = sorted(tags, key=lambda tag: -tags[tag][field]["mean"])
        for x, tag in enumerate(order):
            violin(axes, x, tags[tag][field], found["edges"][edges], tag)
        axes.set_xticks(range(len(order)), order, fontsize=7.5)
        for tick, tag in zip(axes.get_xticklabels(), order, strict=True):
            tick.set_color(tag_style(tag)["edgecolor"])
        axes.set_ylabel(label)
        axes.set_title(side, fontsize=10)
        axes.axhline(1, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    proxies = [
        plt.Rectangle((0, 0), 1, 1, **tag_style(tag), linewidth=0.8, label=name)
        for name, tag in (("content words", "NOUN"), ("function words", "DET"), ("others", "X"))
    ]
    legend(panels[0, 0], handles=proxies, loc="upper right", ncols=3)
    return figure


def draw_words(plt: Any, found: Numbers) -> Any:
    return draw_violins(plt, found, "info_per_word", "word", "info of a word (its tokens' sum)")


def draw_single_tokens(plt: Any, found: Numbers) -> Any:
    label = "info of single-token words"
    return draw_violins(plt, found, "info_of_single_tokens", "single", label)


# Ratio


def draw_ratio(plt: Any, found: Numbers) -> Any:
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.2), layout="constrained")
    per = found["of_sentences"]
    edges = np.asarray(per["edges"])
    counts = np.asarray(per["both"], np.float64).T
    shades = left.pcolormesh(
        edges, edges, np.ma.masked_equal(counts, 0), cmap="Greys", linewidth=0,
        vmin=-0.2 * counts.max(),  # one sentence is not white
    )  # fmt: skip
    shades.set_rasterized(True)
    scale = figure.colorbar(shades, ax=left, label="sentences", pad=0.02)
    scale.ax.set_ylim(0, max(1.0, counts.max()))
    left.plot(
        edges[[0, -1]], edges[[0, -1]], color=BLUE, linewidth=1, linestyle="--", label="equal"
    )
    left.plot(
        found["length_ratio"], found["info_ratio"], "D", color=ORANGE, markeredgecolor="black",
        label=f"corpus: {found['length_ratio']:.2f}, {found['info_ratio']:.2f}",
    )  # fmt: skip
    left.set_xticks(left.get_yticks())
    left.set_xlim(edges[0], edges[-1])
    left.set_xlabel("length ratio, source to target (tokens)")
    left.set_ylabel("info ratio per token, target to source")
    legend(left, loc="upper left")
    difference = found["difference"]
    bins = np.asarray(difference["edges"])
    right.stairs(difference["histogram"], bins, fill=True, color="#9CC6E3", edgecolor=BLUE)
    right.axvline(0, color="black", linewidth=0.8)
    right.axvline(
        difference["mean"], color=ORANGE, linewidth=1.4, linestyle="--",
        label=f"mean {difference['mean']:.1f}, deviation {difference['deviation']:.1f}".replace(
            "-", "−"
        ),
    )  # fmt: skip
    right.set_ylim(top=1.15 * max(1, *difference["histogram"]))  # room for the legend
    right.set_xlabel("total info of source − of reference")
    right.set_ylabel("sentences")
    legend(right, loc="upper left")
    return figure


# Early stop


def draw_early_stop(plt: Any, found: Numbers) -> Any:
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.5), layout="constrained")
    columns = 2 if all(len(subject["name"]) <= 12 for subject in found["subjects"]) else 1
    for number, subject in enumerate(found["subjects"]):
        dials = sorted(subject["dials"], key=lambda at: at["latency"]["allow"])
        xs = [at["latency"]["allow"] for at in dials]
        left.plot(
            xs, [100 * at["early_stop"] for at in dials],
            label=plain(subject["name"]), **curve_style(number),
        )  # fmt: skip
        for x, at in zip(xs, dials, strict=True):
            left.annotate(
                f"{at['k']:g}", (x, 100 * at["early_stop"]), xytext=(0, 4), fontsize=6.5,
                textcoords="offset points", ha="center", color=COLOURS[number],
            )  # fmt: skip
        for part, filled in (("complete", True), ("early", False)):
            known = [(x, at["split"][part]["allow"]) for x, at in zip(xs, dials, strict=True)
                     if at["sentences"][part] >= ENOUGH]  # fmt: skip
            style = curve_style(number) | {"markerfacecolor": None if filled else "white"}
            style["linestyle"] = "-" if filled else ":"
            if known:
                name = plain(f"{subject['name']}, {'complete' if filled else 'stopped early'}")
                right.plot(*zip(*known, strict=True), label=name, **style)
    left.set_ylabel("translations that stop early (%)")
    left.set_ylim(bottom=0)
    right.set_ylabel("BLEU, endings allowed")
    for axes in (left, right):
        axes.set_xlabel(short_title(found["latency"]))
        axes.grid(alpha=0.25, linewidth=0.6)
        legend(axes, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns)
    return figure


def short_title(axis: str) -> str:
    profile, _, metric = axis.rpartition(".")
    unit = {"paper": "tokens", "word": "words"}.get(profile)
    return f"{metric} ({unit})" if unit else axis_title(axis)


# Attention


def draw_attention(plt: Any, found: Numbers) -> Any:
    figure, panels = plt.subplots(1, 3, figsize=(7.4, 3.0), layout="constrained")
    for axes, kind in zip(panels[:2], ("encoder", "decoder"), strict=True):
        for number, layer in enumerate(found[kind]):
            bins = layer["by_info"]
            axes.plot(
                [b["info"] for b in bins], [b["relative_weight"] for b in bins],
                label=f"layer {number + 1}", **curve_style(number),
            )  # fmt: skip
        axes.set_xlabel("info of the token")
        axes.set_title(f"{kind} self-attention", fontsize=9)
    panels[0].set_ylabel("weight on itself (uniform = 1)")
    for number, layer in enumerate(found["cross"]):
        bins = [b for b in layer["by_distance"] if b["pairs"] >= 30]
        panels[2].plot(
            [b["distance"] for b in bins], [b["relative_weight"] for b in bins],
            label=f"layer {number + 1}", **curve_style(number),
        )  # fmt: skip
        panels[2].plot(
            [b["distance"] for b in bins], [b["relative_weight_without_info"] for b in bins],
            color=COLOURS[number % len(COLOURS)], linewidth=0.9, linestyle=":",
        )  # fmt: skip
    panels[2].plot([], [], color=GREY, linewidth=0.9, linestyle=":", label="without info")
    panels[2].set_xlabel("|target info − source info|")
    panels[2].set_ylabel("weight (uniform = 1)")
    panels[2].set_title("cross-attention", fontsize=9)
    for axes in panels:
        axes.axhline(1, color="black", linewidth=0.6)
        axes.set_ylim(bottom=0 if axes is not panels[2] else None)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.legend(fontsize=6.5, framealpha=0.85, edgecolor="none")
    return figure


# Difficulty


def draw_difficulty(plt: Any, found: Numbers) -> Any:
    figure, panels = plt.subplots(2, 2, figsize=(7.2, 5.0), layout="constrained", sharex="col")
    titles = {"length": "words of the source", "crossings": "share of crossing alignments"}
    for column, (feature, label) in enumerate(titles.items()):
        bins = found[feature]
        for number, subject in enumerate(found["subjects"]):
            for row, field in enumerate(("BLEU", "latency")):
                panels[row, column].plot(
                    [b["mean"] for b in bins], [b["subjects"][number][field] for b in bins],
                    label=plain(f"{subject['name']} {subject['k']:g}"), **curve_style(number),
                )  # fmt: skip
        panels[1, column].set_xlabel(f"{label} (quarters)")
    panels[0, 0].set_ylabel("BLEU")
    panels[1, 0].set_ylabel(short_title(found["latency"]))
    for axes in panels.flat:
        axes.grid(alpha=0.25, linewidth=0.6)
    legend(panels[0, 0])
    return figure


# Significance


def draw_significance(plt: Any, found: Numbers) -> Any:
    """Marks are filled where the difference is significant; several systems stand side by side."""
    figure, axes = plt.subplots(figsize=(7.2, 3.2), layout="constrained")
    for number, other in enumerate(found["against"]):
        aside = 0.08 * (number - (len(found["against"]) - 1) / 2)
        xs = np.array([at["latency"] for at in other["at"]]) + aside
        gaps = np.array([at["difference"] for at in other["at"]])
        bounds = np.array([at["interval"] for at in other["at"]])
        errors = np.maximum(0, [gaps - bounds[:, 0], bounds[:, 1] - gaps])
        style = curve_style(number)
        axes.errorbar(xs, gaps, errors, capsize=3, zorder=2, **{**style, "marker": "none"})
        for x, gap, at in zip(xs, gaps, other["at"], strict=True):
            face = style["color"] if at["p"] < 0.05 else "white"
            axes.plot(x, gap, markerfacecolor=face, zorder=3, **{**style, "linestyle": "none"})
        axes.plot([], [], label=plain(other["name"]), **style)
    axes.plot([], [], "o", color=GREY, markerfacecolor="white", markersize=4.5, label="p ≥ 0.05")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xlabel(short_title(found["latency"]))
    axes.set_ylabel("difference in BLEU, 95% interval")
    names = [other["name"] for other in found["against"]]
    second = names[0] if len(names) == 1 else "other systems"
    axes.set_title(plain(f"{found['subject']} − {second}"), fontsize=10)
    axes.grid(alpha=0.25, linewidth=0.6)
    legend(axes, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


Draw = Callable[[Any, Numbers], Any]
PICTURES: dict[str, dict[str, Draw]] = {
    "pos": {"pos-words": draw_words, "pos-single-tokens": draw_single_tokens},
    "ratio": {"ratio": draw_ratio},
    "early-stop": {"early-stop": draw_early_stop},
    "attention": {"attention": draw_attention},
    "case": {"case": draw_case, "case-staircase": draw_staircase},
    "difficulty": {"difficulty": draw_difficulty},
    "significance": {"significance": draw_significance},
}


def figures(what: str, found: Numbers) -> Iterator[tuple[str, Any]]:
    """Names and figures of an analysis; each is closed when the next one is asked for."""
    plt = pyplot()
    for name, make in PICTURES[what].items():
        with plt.rc_context(STYLE):
            figure = make(plt, found)
            yield name, figure
            plt.close(figure)
