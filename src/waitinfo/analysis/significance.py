"""Paired bootstrap of a system against others, at the same latency.

Each resample draws sentences, and both curves (quality against latency, over the dials) are
computed from the same sentences. Quality at a latency is interpolated between neighbouring dials,
as in `compare`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from waitinfo.analysis.study import Study, Translated
from waitinfo.analysis.summaries import GREY, LEGEND, Numbers, Table, cell, entry, short_title
from waitinfo.errors import WaitinfoError
from waitinfo.evaluation.curves import Curve, CurvePoint, default_grid
from waitinfo.evaluation.plot import curve_style, plain, style_numbers, to_the_right
from waitinfo.evaluation.quality import RESAMPLES, from_statistics, sentence_statistics

NAME, TITLE = "significance", "Paired bootstrap at equal latency"
SEED = 12345
METRIC = "BLEU"
FEWEST = 5  # sentences: of fewer, resamples say nothing
NONE_COMMON = (
    "the systems have no latency in common; give dial values whose latencies overlap "
    "(--k, --against-k)"
)
ASIDE, WIDEST = 4.0, 12.0  # points between systems at the same latency, and between all of them


@dataclass(frozen=True)
class Sampled:
    """A curve over the whole test set (first row) and over every resample."""

    latency: np.ndarray  # [1 + resamples, dials]
    quality: np.ndarray  # [1 + resamples, dials]

    def at(self, x: float) -> np.ndarray:
        """Quality at a latency, interpolated: [1 + resamples]."""
        found = []
        for xs, ys in zip(self.latency, self.quality, strict=True):
            order = np.argsort(xs, kind="stable")
            found.append(np.interp(x, xs[order], ys[order]))
        return np.array(found)


def draw_counts(sentences: int, resamples: int) -> np.ndarray:
    """How often each resample draws each sentence, after one row that draws each once."""
    draws = np.random.default_rng(SEED).integers(0, sentences, (resamples, sentences))
    counts = np.stack([np.bincount(row, minlength=sentences) for row in draws])
    return np.concatenate([np.ones((1, sentences), counts.dtype), counts])


def sampled(
    decoded: Sequence[Translated], references: Sequence[str], counts: np.ndarray
) -> Sampled:
    """Dial values at which the latency of no sentence is defined are left out."""
    latency, quality = [], []
    for each in decoded:
        known = ~np.isnan(each.latencies)
        if not known.any():
            continue
        statistics = counts @ sentence_statistics(METRIC, each.texts, references)
        quality.append([from_statistics(METRIC, row) for row in statistics])
        drawn = counts[:, known].sum(1)
        sums = counts[:, known] @ each.latencies[known]
        latency.append(np.where(drawn > 0, sums / np.maximum(drawn, 1), each.latency))
    return Sampled(np.array(latency).T, np.array(quality).T)


def p_value(differences: np.ndarray) -> float:
    """Two-sided: how often resamples are as far from their mean as the test set is from 0."""
    observed, drawn = differences[0], differences[1:]
    if observed == 0:
        return 1.0
    return float((1 + (np.abs(drawn - drawn.mean()) >= abs(observed)).sum()) / (1 + len(drawn)))


def compare(
    first: Sequence[Translated],
    second: Sequence[Translated],
    references: Sequence[str],
    resamples: int = RESAMPLES,
) -> list[Numbers]:
    """The difference at each latency of a grid that both curves cover."""
    counts = draw_counts(len(references), resamples)
    curves = [sampled(each, references, counts) for each in (first, second)]
    return differences(curves[0], curves[1], grid(curves))


def differences(first: Sampled, second: Sampled, latencies: Sequence[float]) -> list[Numbers]:
    """The difference at those latencies that both cover; at the middle if they are between two."""
    low, high = common(first, second)
    if not low < high:
        return []
    found = []
    for x in [x for x in latencies if low <= x <= high] or [(low + high) / 2]:
        scores = [curve.at(x) for curve in (first, second)]
        gap = scores[0] - scores[1]
        bounds = np.quantile(gap[1:], [0.025, 0.975])
        found.append(
            {
                "latency": x,
                METRIC: [float(each[0]) for each in scores],
                "difference": float(gap[0]),
                "interval": [float(bound) for bound in bounds],
                "p": p_value(gap),
            }
        )
    return found


def common(*curves: Sampled) -> tuple[float, float]:
    """From where to where all of them reach, on the whole test set."""
    if not all(curve.latency.size for curve in curves):
        return 0.0, 0.0
    ends = [(curve.latency[0].min(), curve.latency[0].max()) for curve in curves]
    return max(low for low, _ in ends), min(high for _, high in ends)


def grid(curves: Sequence[Sampled]) -> list[float]:
    """Round latencies that at least two of them cover."""
    made = [
        Curve("", [CurvePoint(x, 0.0, 0.0, 0.0, "") for x in sorted(curve.latency[0].tolist())])
        for curve in curves
        if curve.latency.size
    ]
    return default_grid(made) if len(made) > 1 else []


def compute(study: Study) -> Numbers:
    count = len(study.references)
    if count < FEWEST:
        raise WaitinfoError(f"{NAME}: needs at least {FEWEST} sentences")
    decoded = [
        [subject.decoded(k, "guard", study.progress) for k in subject.dials]
        for subject in (study.main, *study.others)
    ]
    study.progress.stage("bootstrap")
    counts = draw_counts(count, RESAMPLES)
    first, *others = (sampled(each, study.references, counts) for each in decoded)
    latencies = grid([first, *others])
    found = [differences(first, other, latencies) for other in others]
    if not any(found):
        raise WaitinfoError(f"{NAME}: {NONE_COMMON}")
    return {
        "subject": study.main.name,
        "latency": study.x,
        "resamples": RESAMPLES,
        "sentences": count,
        "points": points(decoded[0]),
        "against": [
            {"name": subject.name, "points": points(each), "at": at}
            for subject, each, at in zip(study.others, decoded[1:], found, strict=True)
        ],
    }


def points(decoded: Sequence[Translated]) -> list[Numbers]:
    return [{"k": each.k, "latency": each.latency} for each in decoded]


def tables(found: Numbers) -> list[Table]:
    """One for each system that the first is compared with."""
    return [
        Table(
            f"{found['subject']} and {other['name']}: paired bootstrap, "
            f"{found['resamples']:,} resamples of the sentences",
            [found["latency"], f"{found['subject']}, {METRIC}", f"{other['name']}, {METRIC}",
             "difference", "95% interval", "p"],
            [
                [f"{at['latency']:g}", *(cell(s) for s in at[METRIC]), f"{at['difference']:+.2f}",
                 f"{at['interval'][0]:+.2f} to {at['interval'][1]:+.2f}", cell(at["p"], 3)]
                for at in other["at"]
            ],
        )
        for other in found["against"]
    ]  # fmt: skip


# Pictures


def beside(axes: Any, number: int, count: int) -> Any:
    """Coordinates a few points beside the data, for one of several systems."""
    step = min(ASIDE, WIDEST / max(1, count - 1))
    return to_the_right(axes, step * (number - (count - 1) / 2))


def draw_significance(plt: Any, found: Numbers) -> Any:
    """Marks are filled where the difference is significant; several systems stand side by side."""
    figure, axes = plt.subplots(figsize=(7.2, 3.2), layout="constrained")
    count = len(found["against"])
    styles = style_numbers([found["subject"], *(other["name"] for other in found["against"])])[1:]
    for number, other in enumerate(found["against"]):
        if other["at"]:
            draw_against(axes, other, curve_style(styles[number]), beside(axes, number, count))
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


def draw_against(axes: Any, other: Numbers, style: dict[str, Any], place: Any) -> None:
    """place: the coordinates to draw in."""
    xs = np.array([at["latency"] for at in other["at"]])
    gaps = np.array([at["difference"] for at in other["at"]])
    bounds = np.array([at["interval"] for at in other["at"]])
    errors = np.maximum(0, [gaps - bounds[:, 0], bounds[:, 1] - gaps])
    axes.errorbar(
        xs, gaps, errors, capsize=3, zorder=2, transform=place, **{**style, "marker": "none"}
    )
    for x, gap, at in zip(xs, gaps, other["at"], strict=True):
        face = style["color"] if at["p"] < 0.05 else "white"
        point = {**style, "linestyle": "none", "markerfacecolor": face}
        axes.plot(x, gap, zorder=3, transform=place, **point)
    axes.plot([], [], label=plain(other["name"]), **style)
    axes.update_datalim(np.column_stack([np.repeat(xs, 2), bounds.ravel()]))  # not done elsewhere
