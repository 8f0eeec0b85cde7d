"""Info ratio against length ratio, and whether source and reference have equal totals of info."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from waitinfo.analysis.forced_decoding import PairInfo
from waitinfo.analysis.study import Study
from waitinfo.analysis.summaries import (
    Numbers,
    Table,
    cell,
    correlation,
    describe,
    entry,
    legend_above,
    percent,
)
from waitinfo.evaluation.plot import COLOURS
from waitinfo.systems import System, build_system
from waitinfo.systems.veto import Veto
from waitinfo.systems.wait_info import WaitInfo

NAME, TITLE = "ratio", "Info ratio and length ratio"
DIFFERENCE_EDGES = tuple(np.linspace(-20, 20, 81).tolist())
RATIO_EDGES = tuple(np.linspace(0.4, 2.0, 33).tolist())
ORANGE, BLUE = COLOURS[0], COLOURS[1]


def compute(study: Study) -> Numbers:
    pairs = [pair for pair in study.infos if pair.source and pair.target]
    policy = wait_info_of(study.main.evaluation.loaded.system)
    study.progress.stage("paths of the references", len(study.main.dials))
    found, ends = ratios(pairs), []
    even = [evened(pair, **found["mean_info"]) for pair in pairs]
    for number, k in enumerate(study.main.dials, 1):
        paths = [path_of(pair, k, policy) for pair in pairs]
        steps = [path_of(pair, k, policy) for pair in even]
        unread = [len(p.source) + 1 - path[-1] for p, path in zip(pairs, paths, strict=True)]
        off = distances(paths, steps, [len(pair.source) + 1 for pair in pairs])
        ends.append(
            {
                "k": k,
                "before_end_of_sentence": float(np.mean([n > 0 for n in unread])),
                "before_last_token": float(np.mean([n > 1 for n in unread])),
                "from_even_path": {
                    "mean": float(np.mean(off)) if off else 0.0,
                    "within_1": float(np.mean([n <= 1 for n in off])) if off else 1.0,
                    "within_2": float(np.mean([n <= 2 for n in off])) if off else 1.0,
                },
            }
        )
        study.progress.advance(number)
    return {**found, "reference_path_ends": ends, "floor": policy.options.floor}


def ratios(pairs: Sequence[PairInfo]) -> Numbers:
    """Ratios of the corpus and of sentences; end-of-sentence counts on neither side."""
    n, m = (np.array([len(getattr(p, side)) for p in pairs]) for side in ("source", "target"))
    source, target = (
        np.array([sum(getattr(p, side)) for p in pairs]) for side in ("source", "target")
    )
    length, info = n / m, (target / m) / (source / n)
    both = np.histogram2d(
        np.clip(length, RATIO_EDGES[0], RATIO_EDGES[-1]),
        np.clip(info, RATIO_EDGES[0], RATIO_EDGES[-1]),
        np.asarray(RATIO_EDGES),
    )[0]
    return {
        "sentences": len(pairs),
        "length_ratio": float(n.sum() / m.sum()),
        "info_ratio": float((target.sum() / m.sum()) / (source.sum() / n.sum())),
        "totals_ratio": float(target.sum() / source.sum()),
        "of_sentences": {
            "length_ratio": describe(length, RATIO_EDGES),
            "info_ratio": describe(info, RATIO_EDGES),
            "correlation": correlation(length, info),
            "both": both.astype(int).tolist(),
            "edges": RATIO_EDGES,
        },
        "difference": {**describe(source - target, DIFFERENCE_EDGES), "edges": DIFFERENCE_EDGES},
        "mean_info": {
            "source": float(source.sum() / n.sum()),
            "target": float(target.sum() / m.sum()),
        },
    }


def wait_info_of(system: System) -> WaitInfo:
    """The system if it is wait-info, else wait-info: a veto's path is not that of sums alone."""
    if isinstance(system, WaitInfo) and not isinstance(system, Veto):
        return system
    floor = system.options.floor if isinstance(system, Veto) else False
    policy = build_system("wait-info", {"floor": floor})
    assert isinstance(policy, WaitInfo)
    return policy


def path_of(pair: PairInfo, k: float, policy: WaitInfo) -> list[int]:
    """Source tokens read, with end-of-sentence, at each token of the reference and at its end."""
    path = policy.info_path(
        torch.tensor([[*pair.source, pair.end]], dtype=torch.float64),
        torch.tensor([[1.0, *pair.target]], dtype=torch.float64),
        k,
        torch.tensor([len(pair.source) + 1]),
    )
    return path[0].tolist()


def evened(pair: PairInfo, source: float, target: float) -> PairInfo:
    """The same pair if all tokens of a side had the corpus mean of info."""
    return replace(
        pair, source=[source] * len(pair.source), target=[target] * len(pair.target), end=source
    )


def distances(
    paths: Sequence[list[int]], others: Sequence[list[int]], lengths: Sequence[int]
) -> list[int]:
    """How many tokens two paths are apart, wherever neither has read the whole source."""
    return [
        abs(a - b)
        for path, other, length in zip(paths, others, lengths, strict=True)
        for a, b in zip(path, other, strict=True)
        if max(a, b) < length
    ]


def tables(found: Numbers) -> list[Table]:
    per, difference = found["of_sentences"], found["difference"]
    rows = [
        ["length ratio, source to target", cell(found["length_ratio"], 3),
         cell(per["length_ratio"]["mean"], 3), cell(per["length_ratio"]["deviation"], 3)],
        ["info ratio per token, target to source", cell(found["info_ratio"], 3),
         cell(per["info_ratio"]["mean"], 3), cell(per["info_ratio"]["deviation"], 3)],
        ["mean info of a source token", cell(found["mean_info"]["source"], 3), "", ""],
        ["mean info of a target token", cell(found["mean_info"]["target"], 3), "", ""],
        ["total info, target to source", cell(found["totals_ratio"], 3), "", ""],
        ["total info of the source minus that of the reference", "",
         cell(difference["mean"]), cell(difference["deviation"])],
        ["correlation of the sentences' two ratios", cell(per["correlation"], 3), "", ""],
    ]  # fmt: skip
    ends = [
        [f"{e['k']:g}", percent(e["before_end_of_sentence"]), percent(e["before_last_token"])]
        for e in found["reference_path_ends"]
    ]
    apart = [
        [f"{e['k']:g}", cell(off["mean"]), percent(off["within_1"]), percent(off["within_2"])]
        for e in found["reference_path_ends"]
        if (off := e.get("from_even_path"))
    ]
    made = [
        Table(
            "Ratios, source and reference", ["", "corpus", "mean of sentences", "deviation"], rows
        ),
        Table(
            "Pairs whose reference would be complete before its source is, by the sums of info",
            ["K", "before end-of-sentence is read", "before the last token is read"],
            ends,
        ),
    ]
    if apart:
        title = "Tokens between the reference's path and the one with the mean info for every token"
        made.append(Table(title, ["K", "mean", "1 at most", "2 at most"], apart))
    return made


# Pictures


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
