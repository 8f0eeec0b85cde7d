"""Early stop: how often a translation ends before its source does, and what that costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from waitinfo.analysis.study import Decoded, Study, Subject
from waitinfo.analysis.summaries import Numbers, Table, cell, dial, percent
from waitinfo.evaluation.quality import score
from waitinfo.evaluation.trace import Units

NAME, TITLE = "early-stop", "Early stop"


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
    allowed: Decoded, guarded: Decoded, references: Sequence[str], chosen: np.ndarray
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


def part(found: Decoded, references: Sequence[str], chosen: np.ndarray) -> float:
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
