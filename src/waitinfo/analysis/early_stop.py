"""Early stop: how often a translation ends before its source does, and what that costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from waitinfo.analysis.study import Study, Subject, Translated
from waitinfo.analysis.summaries import (
    Numbers,
    Table,
    cell,
    dial,
    entry,
    legend_above,
    percent,
    say,
    short_title,
)
from waitinfo.evaluation.plot import curve_style, plain, style_numbers
from waitinfo.evaluation.quality import score
from waitinfo.evaluation.trace import Units

NAME, TITLE = "early-stop", "Early stop"
ENOUGH = 20  # sentences for a BLEU that is worth drawing


def compute(study: Study) -> Numbers:
    return {
        "latency": study.x,
        "subjects": [
            {"name": subject.name, "dials": [at_dial(study, subject, k) for k in subject.dials]}
            for subject in study.subjects
        ],
    }


def at_dial(study: Study, subject: Subject, k: float) -> Numbers:
    """Numbers of one dial value, with endings allowed and with the guard."""
    allowed = subject.decoded(k, "allow", study.progress)
    guarded = subject.decoded(k, "guard", study.progress)
    study.require_latency(NAME, allowed)
    study.require_latency(NAME, guarded)
    early = allowed.early
    last = np.array([h.path[-1] < h.source_length - 1 for h in allowed.hypotheses])
    return {
        "k": subject.shown(k),
        "latency": {"allow": allowed.latency, "guard": guarded.latency},
        "early_stop": float(early.mean()),
        "before_last_token": float(last.mean()),
        "sentences": {"early": int(early.sum()), "complete": int((~early).sum())},
        "BLEU": {
            "allow": part(allowed, study.references, np.ones_like(early)),
            "guard": part(guarded, study.references, np.ones_like(early)),
        },
        "split": {
            "early": split(allowed, guarded, study.references, early),
            "complete": split(allowed, guarded, study.references, ~early),
        },
    }


def split(
    allowed: Translated, guarded: Translated, references: Sequence[str], chosen: np.ndarray
) -> Numbers | None:
    """Scores of the chosen sentences; None if there are none."""
    if not chosen.any():
        return None
    length = Units.of([], references).reference_length
    words = sum(length(r) for r, c in zip(references, chosen, strict=True) if c)
    return {
        "allow": part(allowed, references, chosen),
        "guard": part(guarded, references, chosen),
        "length_ratio": {
            found.ending: sum(length(t) for t, c in zip(found.texts, chosen, strict=True) if c)
            / words
            for found in (allowed, guarded)
        },
    }


def part(found: Translated, references: Sequence[str], chosen: np.ndarray) -> float:
    """BLEU of the chosen sentences."""
    texts = [text for text, c in zip(found.texts, chosen, strict=True) if c]
    return score("BLEU", texts, [r for r, c in zip(references, chosen, strict=True) if c]).score


def tables(found: Numbers) -> list[Table]:
    heads = ["system", "dial", found["latency"], "early stop", "before the last token",
             "BLEU, allowed", "BLEU, guard", "early: BLEU", "with guard",
             "complete: BLEU"]  # fmt: skip
    rows = []
    for subject in found["subjects"]:
        for at in subject["dials"]:
            early, complete = at["split"]["early"] or {}, at["split"]["complete"] or {}
            rows.append(
                [subject["name"], dial(at["k"]), cell(at["latency"]["allow"]),
                 percent(at["early_stop"]), percent(at["before_last_token"]),
                 cell(at["BLEU"]["allow"]), cell(at["BLEU"]["guard"]), cell(early.get("allow")),
                 cell(early.get("guard")), cell(complete.get("allow"))]
            )  # fmt: skip
    return [
        Table(
            "Translations that end before end-of-sentence has been read, if that is allowed",
            heads,
            rows,
        )
    ]


# Pictures


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
    for number, subject in zip(style_numbers([s["name"] for s in subjects]), subjects, strict=True):
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
    for number, subject in zip(style_numbers([s["name"] for s in subjects]), subjects, strict=True):
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
