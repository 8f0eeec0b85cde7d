"""Info by part of speech as violins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from waitinfo.analysis.drawing import GREY, legend_below, say
from waitinfo.analysis.summaries import Numbers
from waitinfo.analysis.tagger import CONTENT, FUNCTION
from waitinfo.evaluation.plot import COLOURS

FEWEST = 5  # words of a part of speech


def tag_style(tag: str) -> dict[str, Any]:
    if tag in CONTENT:
        return {"facecolor": "#F3B58E", "edgecolor": COLOURS[0]}
    if tag in FUNCTION:
        return {"facecolor": "#9CC6E3", "edgecolor": COLOURS[1], "hatch": "////"}
    return {"facecolor": "0.9", "edgecolor": GREY}


def draw_words(plt: Any, found: Numbers) -> Any:
    label = "info of a word (its tokens' sum)"
    return draw_violins(plt, found, "info_per_word", "word", "words", label)


def draw_single_tokens(plt: Any, found: Numbers) -> Any:
    what = "single-token words"
    return draw_violins(plt, found, "info_of_single_tokens", "single", what, f"info of {what}")


def draw_violins(plt: Any, found: Numbers, field: str, edges: str, what: str, label: str) -> Any:
    sides = [side for side in ("source", "target") if side in found]
    figure, panels = plt.subplots(
        len(sides), 1, figsize=(7.2, 3.0 * len(sides) + 0.3), layout="constrained", squeeze=False
    )
    for side, axes in zip(sides, panels[:, 0], strict=True):
        tags = {
            tag: each[field]
            for tag, each in found[side]["tags"].items()
            if each[field]["count"] and tag not in ("SYM", "X")  # as in the paper
        }
        axes.set_title(side, fontsize=10, pad=14)
        axes.set_ylabel(label)
        # The info of a word has no limit; that of a token is below 2.
        draw_tags(axes, tags, found["edges"][edges], what, limited=edges == "single")
    names = {"content words": "NOUN", "function words": "DET", "others": "X"}
    proxies = [
        plt.Rectangle((0, 0), 1, 1, **tag_style(tag), linewidth=0.8, label=name)
        for name, tag in names.items()
    ]
    legend_below(figure, proxies, len(proxies))
    return figure


def draw_tags(
    axes: Any, tags: dict[str, Numbers], edges: Sequence[float], what: str, limited: bool
) -> None:
    """A violin for each part of speech with enough words, sorted by mean info."""
    order = [tag for tag in tags if tags[tag]["count"] >= FEWEST]
    order.sort(key=lambda tag: -tags[tag]["mean"])
    if not order:
        say(axes, f"no part of speech has {FEWEST} {what} or more")
        return
    for x, tag in enumerate(order):
        violin(axes, x, tags[tag], edges if limited else edges[:-1], tag)
    axes.set_xticks(range(len(order)), order, fontsize=7.5)
    for tick, tag in zip(axes.get_xticklabels(), order, strict=True):
        tick.set_color(tag_style(tag)["edgecolor"])
    axes.axhline(1, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    if not limited:
        beyond = [tags[tag]["histogram"][-1] for tag in order]
        count_beyond(axes, beyond, f"{what} above {edges[-2]:g}")
    if few := [f"{tag} {each['count']}" for tag, each in tags.items() if tag not in order]:
        text = f"not drawn, fewer than {FEWEST} {what}: {', '.join(few)}"
        axes.set_xlabel(text, fontsize=7, color=GREY)


def violin(axes: Any, x: float, found: Numbers, edges: Sequence[float], tag: str) -> None:
    """A violin from a histogram, with the quartiles as a bar and the median as a dot."""
    counts = np.asarray(found["histogram"][: len(edges) - 1], np.float64)
    middles = (np.asarray(edges[1:]) + np.asarray(edges[:-1])) / 2
    smooth = np.convolve(counts, [0.25, 0.5, 0.25], "same")
    half = 0.42 * smooth / max(smooth.max(), 1e-9)
    shown = np.flatnonzero(half > 0.004)
    if len(shown):
        inside = slice(shown[0], shown[-1] + 1)
        axes.fill_betweenx(
            middles[inside], x - half[inside], x + half[inside], linewidth=0.8, **tag_style(tag)
        )
    quantiles = found["quantiles"]
    axes.vlines(x, quantiles["25"], quantiles["75"], color="black", linewidth=2.6, zorder=3)
    axes.plot(
        x, quantiles["50"], "o", color="white", markeredgecolor="black", markersize=4, zorder=4
    )


def count_beyond(axes: Any, beyond: Sequence[int], what: str) -> None:
    """The last bin also holds everything above it: its words are counted, not drawn."""
    for x, count in enumerate(beyond):
        if count:
            axes.text(
                x, 1.01, f"+{count}", transform=axes.get_xaxis_transform(), ha="center",
                va="bottom", fontsize=6.5, color=GREY,
            )  # fmt: skip
    if any(beyond):
        axes.set_title(f"+n: {what}, not drawn", loc="right", fontsize=7, color=GREY, pad=14)
