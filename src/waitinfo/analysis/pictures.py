"""Pictures of the analyses, drawn from their numbers alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from waitinfo.analysis.case_pictures import draw_case, draw_staircase
from waitinfo.analysis.drawing import (
    GREY,
    LEGEND,
    curve_style,
    entry,
    legend_above,
    legend_below,
    say,
    short_title,
)
from waitinfo.analysis.summaries import Numbers, dial, titled
from waitinfo.analysis.word_pictures import draw_single_tokens, draw_words
from waitinfo.evaluation.plot import COLOURS, STYLE, plain, pyplot, to_the_right

ORANGE, BLUE = COLOURS[0], COLOURS[1]
ENOUGH = 20  # sentences for a BLEU that is worth drawing
FEWEST_PAIRS, LEAST_SHARE = 30, 0.001  # pairs of tokens for a point of the cross-attention
ASIDE, WIDEST = 4.0, 12.0  # points between systems at the same latency, and between all of them


# Ratio: the outermost bins also hold everything beyond them, so they are counted, not drawn.


def draw_ratio(plt: Any, found: Numbers) -> Any:
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.5), layout="constrained")
    draw_ratios(figure, left, found)
    draw_difference(right, found["difference"])
    for axes in (left, right):
        legend_above(axes)
    return figure


def draw_ratios(figure: Any, axes: Any, found: Numbers) -> None:
    every = np.asarray(found["of_sentences"]["both"], np.float64).T
    counts, edges = every[1:-1, 1:-1], np.asarray(found["of_sentences"]["edges"])[1:-1]
    corpus = found["length_ratio"], found["info_ratio"]
    most = max(1.0, counts.max())
    shades = axes.pcolormesh(
        edges, edges, np.ma.masked_equal(counts, 0), cmap="Greys", linewidth=0,
        vmin=-0.2 * most, vmax=most,  # one sentence is not white
    )  # fmt: skip
    shades.set_rasterized(True)
    scale = figure.colorbar(shades, ax=axes, label="sentences", pad=0.02)
    scale.ax.set_ylim(0, most)
    scale.ax.yaxis.get_major_locator().set_params(integer=True)
    ends = [min(edges[0], *corpus), max(edges[-1], *corpus)]
    axes.plot(ends, ends, color=BLUE, linewidth=1, linestyle="--", label="equal")
    axes.plot(
        *corpus, "D", color=ORANGE, markeredgecolor="black",
        label=f"corpus: {corpus[0]:.2f}, {corpus[1]:.2f}",
    )  # fmt: skip
    if beyond := int(every.sum() - counts.sum()):
        entry(axes, f"beyond {edges[0]:g} to {edges[-1]:g}, not drawn: {beyond:,}")
    axes.set_xticks(axes.get_yticks())
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    axes.set_xlabel("length ratio, source to target (tokens)")
    axes.set_ylabel("info ratio per token, target to source")


def draw_difference(axes: Any, found: Numbers) -> None:
    counts, edges = found["histogram"], np.asarray(found["edges"])
    axes.stairs(counts[1:-1], edges[1:-1], fill=True, color="#9CC6E3", edgecolor=BLUE)
    axes.axvline(0, color="black", linewidth=0.8)
    label = f"mean {found['mean']:.1f}, deviation {found['deviation']:.1f}".replace("-", "−")
    axes.axvline(found["mean"], color=ORANGE, linewidth=1.4, linestyle="--", label=label)
    outside = (("below", edges[1], counts[0]), ("above", edges[-2], counts[-1]))
    beyond = [f"{where} {edge:g}: {count:,}" for where, edge, count in outside if count]
    if beyond:
        entry(axes, f"not drawn, {', '.join(beyond)}".replace("-", "−"))
    axes.set_ylim(0, max(1, 1.05 * max(counts[1:-1])))
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("total info of source − of reference")
    axes.set_ylabel("sentences")


# Early stop


def draw_early_stop(plt: Any, found: Numbers) -> Any:
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.7), layout="constrained")
    subjects = [
        {"name": subject["name"], "dials": sorted(
            (at for at in subject["dials"] if at["latency"]["allow"] is not None),
            key=lambda at: at["latency"]["allow"],
        )}
        for subject in found["subjects"]
    ]  # fmt: skip
    draw_shares(left, subjects)
    right.set_xlabel(short_title(found["latency"]))
    draw_parts(right, subjects)
    left.set_xlabel(short_title(found["latency"]))
    columns = 2 if all(len(subject["name"]) <= 12 for subject in subjects) else 1
    for axes in (left, right):
        axes.grid(alpha=0.25, linewidth=0.6)
        legend_above(axes, columns)
    return figure


def draw_shares(axes: Any, subjects: Sequence[Numbers]) -> None:
    for number, subject in enumerate(subjects):
        style = curve_style(number)
        xs = [at["latency"]["allow"] for at in subject["dials"]]
        ys = [100 * at["early_stop"] for at in subject["dials"]]
        axes.plot(xs, ys, label=plain(subject["name"]), clip_on=False, zorder=3, **style)
        for x, y, at in zip(xs, ys, subject["dials"], strict=True):
            axes.annotate(
                dial(at["k"]), (x, y), xytext=(0, 4), fontsize=6.5,
                textcoords="offset points", ha="center", color=style["color"],
            )  # fmt: skip
    shares = [100 * at["early_stop"] for subject in subjects for at in subject["dials"]]
    axes.set_ylim(0, max([1, *(1.05 * share for share in shares)]))
    axes.set_ylabel("translations that stop early (%)")


def draw_parts(axes: Any, subjects: Sequence[Numbers]) -> None:
    """BLEU of the translations that stop early and of the others, where there are enough."""
    axes.set_ylabel("BLEU, endings allowed")
    missing = drawn = 0
    for number, subject in enumerate(subjects):
        for part, name in (("complete", "complete"), ("early", "stopped early")):
            label = f"{subject['name']}, {name}"
            known = [
                (at["latency"]["allow"], at["split"][part]["allow"])
                for at in subject["dials"]
                if at["sentences"][part] >= ENOUGH
            ]
            missing += len(subject["dials"]) - len(known)
            drawn += len(known)
            style = curve_style(number) | {"linestyle": "-" if part == "complete" else ":"}
            if part == "early":
                style["markerfacecolor"] = "white"
            if known:
                axes.plot(*zip(*known, strict=True), label=plain(label), **style)
            else:
                entry(axes, f"{label}: too few")
    if not drawn:
        for line in axes.get_lines():
            line.set_label("")
        say(axes, f"no point has {ENOUGH} sentences,\ntoo few for a BLEU")
    elif missing:
        note = f"(points of {ENOUGH} sentences or more)"
        axes.set_xlabel(f"{axes.get_xlabel()}\n{note}")


# Attention


def draw_attention(plt: Any, found: Numbers) -> Any:
    figure, panels = plt.subplots(1, 3, figsize=(7.4, 3.4), layout="constrained")
    for axes, kind in zip(panels[:2], ("encoder", "decoder"), strict=True):
        draw_own_weights(axes, [layer["by_info"] for layer in found[kind]])
        axes.set_title(f"{kind} self-attention", fontsize=9)
    panels[0].set_ylabel("weight on itself (uniform = 1)")
    draw_cross(panels[2], found["cross"])
    layers = max(len(found[kind]) for kind in ("encoder", "decoder", "cross"))
    handles = [
        plt.Line2D([], [], label=f"layer {number + 1}", **curve_style(number))
        for number in range(layers)
    ]
    hollow = plt.Line2D(
        [], [], label="the same layer without info", **without_info(0) | {"color": GREY}
    )
    legend_below(figure, [*handles, hollow], 7)
    return figure


def without_info(number: int) -> dict[str, Any]:
    """The layer's mark, hollow, so that layers differ without colours, too."""
    hollow = {"markerfacecolor": "white", "linestyle": ":", "linewidth": 0.9, "markersize": 3.5}
    return curve_style(number) | hollow


def draw_own_weights(axes: Any, layers: Sequence[Sequence[Numbers]]) -> None:
    axes.set_xlabel("info of the token")
    if not any(layers):
        say(axes, "every sentence\nhas one token")
        return
    for number, bins in enumerate(layers):
        axes.plot(
            [b["info"] for b in bins], [b["relative_weight"] for b in bins],
            clip_on=False, zorder=3, **curve_style(number),
        )  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.axhline(1, color="black", linewidth=0.6)
    axes.grid(alpha=0.25, linewidth=0.6)


def draw_cross(axes: Any, layers: Sequence[Numbers]) -> None:
    """Weights by distance in info; a few pairs would set the scale for all others."""
    axes.set_title("cross-attention", fontsize=9)
    axes.set_xlabel("|target info − source info|")
    axes.set_ylabel("weight (uniform = 1)")
    shown = [enough_pairs(layer) for layer in layers]
    if not any(shown):
        say(axes, f"no distance has\n{FEWEST_PAIRS} pairs of tokens")
        return
    for number, bins in enumerate(shown):
        xs = [b["distance"] for b in bins]
        axes.plot(xs, [b["relative_weight"] for b in bins], zorder=3, **curve_style(number))
        plain_weights = [b["relative_weight_without_info"] for b in bins]
        axes.plot(xs, plain_weights, **without_info(number))
    axes.axhline(1, color="black", linewidth=0.6)
    axes.grid(alpha=0.25, linewidth=0.6)


def enough_pairs(layer: Numbers) -> list[Numbers]:
    least = max(FEWEST_PAIRS, LEAST_SHARE * layer["pairs"])
    return [b for b in layer["by_distance"] if b["pairs"] >= least]


# Difficulty


def draw_difficulty(plt: Any, found: Numbers) -> Any:
    figure, panels = plt.subplots(2, 2, figsize=(7.2, 5.2), layout="constrained", sharex="col")
    titles = {"length": "words of the source", "crossings": "share of crossing alignments"}
    for column, (feature, label) in enumerate(titles.items()):
        bins = found[feature]
        for number, subject in enumerate(found["subjects"]):
            for row, field in enumerate(("BLEU", "latency")):
                panels[row, column].plot(
                    [b["mean"] for b in bins], [b["subjects"][number][field] for b in bins],
                    label=plain(titled(subject["name"], subject["k"])), **curve_style(number),
                )  # fmt: skip
        panels[1, column].set_xlabel(f"{label} (quarters)")
    panels[0, 0].set_ylabel("BLEU")
    panels[1, 0].set_ylabel(short_title(found["latency"]))
    for axes in panels.flat:
        axes.grid(alpha=0.25, linewidth=0.6)
    legend_below(figure, panels[0, 0].get_legend_handles_labels()[0], 2)
    return figure


# Significance


def beside(axes: Any, number: int, count: int) -> Any:
    """Coordinates a few points beside the data, for one of several systems."""
    step = min(ASIDE, WIDEST / max(1, count - 1))
    return to_the_right(axes, step * (number - (count - 1) / 2))


def draw_significance(plt: Any, found: Numbers) -> Any:
    """Marks are filled where the difference is significant; several systems stand side by side."""
    figure, axes = plt.subplots(figsize=(7.2, 3.2), layout="constrained")
    count = len(found["against"])
    for number, other in enumerate(found["against"]):
        if other["at"]:
            draw_against(axes, other, number, beside(axes, number, count))
        else:
            entry(axes, f"{other['name']}: no common latency")
    axes.plot([], [], "o", color=GREY, markerfacecolor="white", markersize=4.5, label="p ≥ 0.05")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xlabel(short_title(found["latency"]))
    axes.set_ylabel("difference in BLEU, 95% interval")
    second = found["against"][0]["name"] if count == 1 else "other systems"
    axes.set_title(plain(f"{found['subject']} − {second}"), fontsize=10)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), **LEGEND)
    return figure


def draw_against(axes: Any, other: Numbers, number: int, place: Any) -> None:
    """place: the coordinates to draw in."""
    xs = np.array([at["latency"] for at in other["at"]])
    gaps = np.array([at["difference"] for at in other["at"]])
    bounds = np.array([at["interval"] for at in other["at"]])
    errors = np.maximum(0, [gaps - bounds[:, 0], bounds[:, 1] - gaps])
    style = curve_style(number)
    axes.errorbar(
        xs, gaps, errors, capsize=3, zorder=2, transform=place, **{**style, "marker": "none"}
    )
    for x, gap, at in zip(xs, gaps, other["at"], strict=True):
        face = style["color"] if at["p"] < 0.05 else "white"
        point = {**style, "linestyle": "none", "markerfacecolor": face}
        axes.plot(x, gap, zorder=3, transform=place, **point)
    axes.plot([], [], label=plain(other["name"]), **style)
    axes.update_datalim(np.column_stack([np.repeat(xs, 2), bounds.ravel()]))  # not done elsewhere


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
        with plt.rc_context(STYLE), warnings.catch_warnings():
            # A PNG shows a box for a character that its font lacks; an SVG shows the character.
            warnings.filterwarnings("ignore", "Glyph .* missing from")
            figure = make(plt, found)
            try:
                yield name, figure
            finally:
                plt.close(figure)
