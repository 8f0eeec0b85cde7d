"""Quality and lag by sentence length and by word order, where two policies differ most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from waitinfo.analysis.forced_decoding import ForcedGroup, Weights, decode_given
from waitinfo.analysis.study import Study, Translated
from waitinfo.analysis.summaries import (
    Numbers,
    Table,
    bin_of,
    cell,
    correlation,
    legend_below,
    mean_of_known,
    quantile_bins,
    short_title,
    titled,
)
from waitinfo.evaluation.plot import curve_style, plain, style_numbers
from waitinfo.evaluation.quality import score, sentence_scores
from waitinfo.evaluation.trace import Units
from waitinfo.progress import Progress, Silent
from waitinfo.trained.saving import LoadedModel

NAME, TITLE = "difficulty", "Sentence length and word order"
BINS = 4
SHOWN = 10  # sentences where two policies differ most
READ = 3  # of these, for each policy, those whose text is shown


def alignments(
    loaded: LoadedModel,
    sources: Sequence[list[int]],
    targets: Sequence[list[int]],
    progress: Progress | None = None,
) -> list[list[int]]:
    """The source token that each target token attends to most, with the whole source visible.

    Attention is averaged over heads and layers; end-of-sentence is never chosen.
    """
    progress = progress or Silent()
    progress.stage("alignments", len(sources))
    found: dict[int, list[int]] = {}
    layers: list[Tensor] = []
    first = 0  # of the tokens of the text
    if opening := loaded.opening:
        first = 1
        sources = [[opening.source, *tokens] for tokens in sources]
        targets = [[opening.target, *tokens] for tokens in targets]

    def keep(_: ForcedGroup, weights: Weights) -> None:
        if weights.kind == "cross":
            layers.append(weights.biased.mean(1))

    for forced in decode_given(loaded, sources, targets, keep):
        mean = torch.stack(layers).mean(0)  # [B, T, S]
        layers.clear()
        for row, i in enumerate(forced.index):
            n, m = len(sources[i]), len(targets[i])
            # The position that is given token i - 1 writes token i.
            found[i] = mean[row, first:m, first:n].argmax(-1).tolist() if n > first else []
        progress.advance(len(found))
    return [found[i] for i in range(len(sources))]


def crossing_share(alignment: Sequence[int]) -> float:
    """Share of pairs of target tokens whose source tokens come in the opposite order.

    Pairs with the same source token are left out; 0 where there is no other pair.
    """
    at = np.asarray(alignment)
    earlier, later = np.triu_indices(len(at), 1)
    crossed, parallel = (at[earlier] > at[later]).sum(), (at[earlier] < at[later]).sum()
    return float(crossed / (crossed + parallel)) if crossed + parallel else 0.0


def compute(study: Study) -> Numbers:
    tokens = study.main.evaluation.tokenized
    lines = alignments(study.float_model, tokens, study.reference_tokens, study.progress)
    units = Units.of([], study.sources).reference_length  # words, or characters without spaces
    features = {
        "length": np.array([units(text) for text in study.sources], np.float64),
        "crossings": np.array([crossing_share(line) for line in lines]),
    }
    pair = study.matched()
    for decoded in pair:
        study.require_latency(NAME, decoded)
    found: Numbers = {
        "latency": study.x,
        "subjects": [
            {"name": subject.name, "k": subject.shown(decoded.k), "latency": decoded.latency,
             "BLEU": score("BLEU", decoded.texts, study.references).score}
            for subject, decoded in zip(study.subjects, pair, strict=True)
        ],
    }  # fmt: skip
    for name, values in features.items():
        found[name] = by_bin(values, pair, study.references)
    if len(pair) == 2:
        found["differences"] = differences(study, pair, features)
    return found


def by_bin(
    values: np.ndarray, pair: Sequence[Translated], references: Sequence[str]
) -> list[Numbers]:
    """Scores of both subjects in each bin of a feature."""
    edges = quantile_bins(values, BINS)
    bins = bin_of(values, edges) if len(edges) > 2 else np.zeros(len(values), int)
    found = []
    for b in np.unique(bins):
        at = np.flatnonzero(bins == b).tolist()
        here = [references[i] for i in at]
        found.append(
            {
                "from": float(values[at].min()),
                "to": float(values[at].max()),
                "mean": float(values[at].mean()),
                "sentences": len(at),
                "subjects": [
                    {
                        "BLEU": score("BLEU", [decoded.texts[i] for i in at], here).score,
                        "latency": mean_of_known(decoded.latencies[at]),
                    }
                    for decoded in pair
                ],
            }
        )
    return found


def differences(
    study: Study, pair: Sequence[Translated], features: dict[str, np.ndarray]
) -> Numbers:
    """How the difference of sentence chrF depends on the features, and where it is largest."""
    first, second = (sentence_scores("chrF", each.texts, study.references) for each in pair)
    gap = first - second
    order = np.argsort(gap, kind="stable")

    def shown(index: int) -> Numbers:
        return {"line": study.line(index), "chrF": [float(first[index]), float(second[index])],
                **{name: float(values[index]) for name, values in features.items()},
                "source": study.sources[index], "reference": study.references[index],
                "written": [each.texts[index] for each in pair]}  # fmt: skip

    return {
        "chrF": float(gap.mean()),
        "correlation": {name: correlation(values, gap) for name, values in features.items()},
        "best_for_first": [shown(i) for i in order[::-1][:SHOWN].tolist() if gap[i] > 0],
        "best_for_second": [shown(i) for i in order[:SHOWN].tolist() if gap[i] < 0],
    }


def tables(found: Numbers) -> list[Table]:
    names = [titled(s["name"], s["k"]) for s in found["subjects"]]
    lags = ", ".join(
        f"{name} at {cell(s['latency'])}" for name, s in zip(names, found["subjects"], strict=True)
    )
    heads = ["", "sentences"] + [
        f"{name}, {what}" for name in names for what in ("BLEU", found["latency"])
    ]
    made = []
    for feature, title, digits in (
        ("length", "By source length in words", 0),
        ("crossings", "By word order: share of token pairs whose alignments cross", 2),
    ):
        rows = [
            [f"{b['from']:.{digits}f}–{b['to']:.{digits}f}", f"{b['sentences']:,}",
             *(cell(v) for s in b["subjects"] for v in (s["BLEU"], s["latency"]))]
            for b in found[feature]
        ]  # fmt: skip
        made.append(Table(f"{title} ({found['latency']}: {lags})", heads, rows))
    if "differences" in found:
        made.append(largest(found["differences"], names))
        made += texts(found["differences"], names)
    return made


def texts(found: Numbers, names: Sequence[str]) -> list[Table]:
    """The text of the sentences that differ most; nothing if the numbers come without text."""
    rows = []
    for group in ("best_for_first", "best_for_second"):
        for each in found[group][:READ]:
            if "written" not in each:
                return []
            said = [each["source"], each["reference"], *each["written"]]
            whose = zip(("source", "reference", *names), said, strict=True)
            rows += [[str(each["line"]), who, text] for who, text in whose]
    title = "Texts of the sentences that differ most"
    return [Table(title, ["line", "", "text"], rows, textual=True)] if rows else []


def largest(found: Numbers, names: Sequence[str]) -> Table:
    rows = [
        [str(each["line"]), *(cell(score, 1) for score in each["chrF"]), f"{each['length']:.0f}",
         cell(each["crossings"])]
        for group in ("best_for_first", "best_for_second")
        for each in found[group]
    ]  # fmt: skip
    related = ", ".join(
        f"{name} {cell(value) or '–'}" for name, value in found["correlation"].items()
    )
    title = (
        f"Sentences where the two differ most, by chrF (mean difference {found['chrF']:+.2f}; "
        f"correlation of the difference with {related})"
    )
    return Table(title, ["line", *names, "words", "crossings"], rows)


# Pictures


def draw_difficulty(plt: Any, found: Numbers) -> Any:
    figure, panels = plt.subplots(2, 2, figsize=(7.2, 5.2), layout="constrained", sharex="col")
    styles = style_numbers([subject["name"] for subject in found["subjects"]])
    titles = {"length": "words of the source", "crossings": "share of crossing alignments"}
    for column, (feature, label) in enumerate(titles.items()):
        bins = found[feature]
        for number, subject in enumerate(found["subjects"]):
            for row, field in enumerate(("BLEU", "latency")):
                panels[row, column].plot(
                    [b["mean"] for b in bins], [b["subjects"][number][field] for b in bins],
                    label=plain(titled(subject["name"], subject["k"])),
                    **curve_style(styles[number]),
                )  # fmt: skip
        panels[1, column].set_xlabel(f"{label} (quarters)")
    panels[0, 0].set_ylabel("BLEU")
    panels[1, 0].set_ylabel(short_title(found["latency"]))
    for axes in panels.flat:
        axes.grid(alpha=0.25, linewidth=0.6)
    legend_below(figure, panels[0, 0].get_legend_handles_labels()[0], 2)
    return figure
