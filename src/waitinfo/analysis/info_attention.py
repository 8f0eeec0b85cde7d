"""What the two info-aware attentions do: weight on the token itself, and on tokens of like info."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from waitinfo.analysis.forced_decoding import ForcedGroup, Weights, decode_given
from waitinfo.analysis.study import Study
from waitinfo.analysis.summaries import (
    GREY,
    Numbers,
    Table,
    bin_of,
    cell,
    correlation,
    legend_below,
    quantile_bins,
    say,
)
from waitinfo.evaluation.plot import curve_style

NAME, TITLE = "attention", "Info in the attentions"
BINS = 8  # of info, with equally many tokens each
DISTANCE_EDGES = tuple(np.linspace(0, 1.5, 16).tolist())  # of |target info - source info|
FEWEST_PAIRS, LEAST_SHARE = 30, 0.001  # pairs of tokens for a point of the cross-attention


class Diagonal:
    """Weights of tokens on themselves, in the self-attention of one layer."""

    def __init__(self) -> None:
        self.found: dict[str, list[np.ndarray]] = defaultdict(list)

    def add(self, weights: Weights, info: Tensor, lengths: Tensor) -> None:
        """info [B, T]; lengths [B]: the tokens to count, without end-of-sentence.

        The first position is left out, because it sees only itself.
        """
        at = torch.arange(info.shape[1], device=info.device)
        real = (at > 0) & (at < lengths[:, None])
        self.found["info"].append(info[real].double().cpu().numpy())
        seen = (at + 1).expand_as(info)[real]
        self.found["seen"].append(seen.double().cpu().numpy())
        for name, each in (("biased", weights.biased), ("plain", weights.plain)):
            own = each.diagonal(dim1=-2, dim2=-1).mean(1)  # over heads: [B, T]
            self.found[name].append(own[real].double().cpu().numpy())

    def numbers(self) -> Numbers:
        found = {name: np.concatenate(parts) for name, parts in self.found.items()}
        if not len(found["info"]):  # every sentence has one token
            return {"tokens": 0, "weight": None, "weight_without_info": None, "correlation": None,
                    "correlation_without_info": None, "by_info": []}  # fmt: skip
        relative = {name: found[name] * found["seen"] for name in ("biased", "plain")}
        edges = quantile_bins(found["info"], BINS)
        bins = bin_of(found["info"], edges)
        return {
            "tokens": len(bins),
            "weight": float(found["biased"].mean()),
            "weight_without_info": float(found["plain"].mean()),
            "correlation": correlation(found["info"], relative["biased"]),
            "correlation_without_info": correlation(found["info"], relative["plain"]),
            "by_info": [
                {
                    "info": float(found["info"][bins == b].mean()),
                    "relative_weight": float(relative["biased"][bins == b].mean()),
                    "relative_weight_without_info": float(relative["plain"][bins == b].mean()),
                }
                for b in np.unique(bins)
            ],
        }


class Distance:
    """Weights of source tokens by |target info - source info|, in one cross-attention."""

    def __init__(self) -> None:
        bins = len(DISTANCE_EDGES) - 1
        self.count = np.zeros(bins)
        self.sums = {"biased": np.zeros(bins), "plain": np.zeros(bins)}
        self.attended = {"biased": 0.0, "plain": 0.0}  # distance, weighted by attention
        self.mass = {"biased": 0.0, "plain": 0.0}
        self.distance = 0.0

    def add(self, weights: Weights, forced: ForcedGroup) -> None:
        """Begin-of-sequence, which has no info of its own, and end-of-sentence are left out."""
        assert forced.source_info is not None and forced.target_info is not None
        rows = torch.arange(forced.target.shape[1], device=forced.target.device)
        columns = torch.arange(forced.source.shape[1], device=forced.source.device)
        row_real = (rows > 0) & (rows < forced.target_lengths[:, None])
        limit = torch.minimum(forced.visible, forced.source_lengths[:, None] - 1)
        real = row_real[:, :, None] & (columns < limit[:, :, None])  # [B, T, S]
        gap = (forced.target_info[:, :, None] - forced.source_info[:, None, :]).abs()[real]
        gaps = gap.double().cpu().numpy()
        seen = forced.visible[:, :, None].expand(real.shape)[real].double().cpu().numpy()
        bins = np.clip(bin_of(gaps, DISTANCE_EDGES), 0, len(self.count) - 1)
        self.count += np.bincount(bins, minlength=len(self.count))
        self.distance += gaps.sum()
        for name, each in (("biased", weights.biased), ("plain", weights.plain)):
            weight = each.mean(1)[real].double().cpu().numpy()
            self.sums[name] += np.bincount(bins, weight * seen, len(self.count))
            self.attended[name] += (weight * gaps).sum()
            self.mass[name] += weight.sum()

    def _attended(self, name: str) -> float | None:
        return self.attended[name] / self.mass[name] if self.mass[name] else None

    def numbers(self) -> Numbers:
        middles = (np.array(DISTANCE_EDGES[1:]) + DISTANCE_EDGES[:-1]) / 2
        return {
            "pairs": int(self.count.sum()),
            "mean_distance": self.distance / max(1.0, self.count.sum()),
            "attended_distance": self._attended("biased"),
            "attended_distance_without_info": self._attended("plain"),
            "by_distance": [
                {
                    "distance": float(middles[b]),
                    "pairs": int(self.count[b]),
                    "relative_weight": float(self.sums["biased"][b] / self.count[b]),
                    "relative_weight_without_info": float(self.sums["plain"][b] / self.count[b]),
                }
                for b in np.flatnonzero(self.count)
            ],
        }


def compute(study: Study) -> Numbers:
    """The model decodes its own translations again, along the paths they took."""
    middle = study.middle()
    loaded = study.float_model
    sources = study.main.evaluation.tokenized
    targets = [h.tokens for h in middle.hypotheses]
    diagonals: dict[tuple[str, int], Diagonal] = defaultdict(Diagonal)
    distances: dict[int, Distance] = defaultdict(Distance)

    def add(forced: ForcedGroup, weights: Weights) -> None:
        assert forced.source_info is not None and forced.target_info is not None
        if weights.kind == "cross":
            distances[weights.layer].add(weights, forced)
            return
        own = diagonals[weights.kind, weights.layer]
        if weights.kind == "encoder":
            own.add(weights, forced.source_info, forced.source_lengths - 1)
        else:
            own.add(weights, forced.target_info, forced.target_lengths)

    study.progress.stage("attention", len(sources))
    done = 0
    for forced in decode_given(loaded, sources, targets, add, [h.path for h in middle.hypotheses]):
        done += len(forced.index)
        study.progress.advance(done)
    config = loaded.model.config
    return {
        "k": study.main.shown(middle.k),
        "switches": {
            "info_self_attention": config.info_self_attention,
            "info_cross_attention": config.info_cross_attention,
        },
        **{
            kind: [each.numbers() for (k, _), each in sorted(diagonals.items()) if k == kind]
            for kind in ("encoder", "decoder")
        },
        "cross": [distances[layer].numbers() for layer in sorted(distances)],
    }


def tables(found: Numbers) -> list[Table]:
    own = [
        [f"{kind} {layer}", f"{each['tokens']:,}", cell(each["weight"], 3),
         cell(each["weight_without_info"], 3), cell(each["correlation"]),
         cell(each["correlation_without_info"])]
        for kind in ("encoder", "decoder")
        for layer, each in enumerate(found[kind], 1)
    ]  # fmt: skip
    cross = [
        [f"decoder {layer}", f"{each['pairs']:,}", cell(each["mean_distance"], 3),
         cell(each["attended_distance"], 3), cell(each["attended_distance_without_info"], 3)]
        for layer, each in enumerate(found["cross"], 1)
    ]  # fmt: skip
    return [
        Table(
            "Self-attention: weight of a token on itself"
            + ("" if found["k"] is None else f", at dial {found['k']:g}"),
            ["layer", "tokens", "weight on itself", "without info",
             "correlation with info", "without info"],
            own,
        ),
        Table(
            "Cross-attention: |target info − source info| of the tokens seen, by attention",
            ["layer", "pairs", "mean distance", "attended distance", "without info"],
            cross,
        ),
    ]  # fmt: skip


# Pictures


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
