"""What each ingredient of the students gives: tables and picture of de-en-ingredients.

BLEU is compared at equal Average Lagging, on written text and in lower case without punctuation,
and at K = 5 on documents that are one stream.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from experiments.pages.figures import student
from experiments.pages.tables import Outputs, by_name, picture, points_of, table
from waitinfo.evaluation.curves import make_curves
from waitinfo.evaluation.points import Point, select

DEV, TEST = "newstest2013", "newstest2015"
AT = (3, 5, 8)  # AL
TEST_AT = {"AL": (3, 4, 5, 6), "DAL": (5, 6, 7, 8)}
BASE = "all"
# Text: every run adds to the one before it.
TEXT = ("europarl", "parallel", "back-translated", "distilled", "spoken", BASE)
SAME = ("same-original", "same-distilled", "same-monotone")
TITLES = {
    "europarl": "Europarl alone",
    "parallel": "all parallel text",
    "back-translated": "+ back-translated text",
    "distilled": "+ the teacher's translations",
    "spoken": "+ spoken copies",
    BASE: "+ windows: all text",
    "confidence-prefix": "`system.confidence=prefix`, power 1",
    "confidence-relative": "`system.confidence=relative`, power 1",
    "curriculum": "`system.curriculum_updates=1000`",
    "four-draws": "`system.draws=4`",
    "no-info-dropout": "`model.info_dropout=false`",
    "info-from-context": "`model.info_from=context`",
    "same-original": "original targets",
    "same-distilled": "the teacher's, full sentences",
    "same-monotone": "a student's, while it reads (K = 7)",
}
REMOVED = (
    "confidence-prefix",
    "confidence-relative",
    "curriculum",
    "info-from-context",
)  # after 0.3.0
OPTIONS = tuple(run for run in TITLES if run not in (*TEXT, *SAME))
SYSTEMS = {
    BASE: "wait-info",
    "multipath": "multipath",
    f"{BASE}-by-wait-k": "wait-info's weights, read by wait-k",
    "multipath-cold": "multipath, never the whole source",
}
Table = tuple[str, list[str], list[list[str]]]  # title, heads, rows


@dataclass(frozen=True)
class Gains:
    """The points of the experiment, by set, curve and seed."""

    found: dict[tuple[str, str], dict[int, list[Point]]]

    @classmethod
    def of(cls, points: Sequence[Point]) -> Gains:
        found: dict[tuple[str, str], dict[int, list[Point]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for point in points:
            found[point["set"], point["name"]][point["seed"]].append(point)
        return cls(found)

    def at(self, name: str, run: str, lag: float, axis: str = "AL") -> list[float]:
        """BLEU at a lag, of every seed whose curve reaches it."""
        seeds = self.found.get((name, run), {})
        curves = [make_curves(seeds[seed], f"paper.{axis}", "BLEU")[0] for seed in sorted(seeds)]
        return [score for curve in curves if (score := curve.at(lag)) is not None]

    def documents(self, condition: str, run: str) -> list[float]:
        """BLEU of documents, of every seed."""
        seeds = self.found.get((f"{DEV}-{condition}", run), {})
        return [point["quality"]["BLEU"] for seed in sorted(seeds) for point in seeds[seed]]

    def scores(self, run: str) -> list[list[float]]:
        """BLEU of every seed: written, then lower case at each AL, then documents of both kinds."""
        sets = (DEV, f"{DEV}-lower")
        streams = ("documents", "documents-lower")
        return [
            *(self.at(name, run, lag) for name in sets for lag in AT),
            *(self.documents(condition, run) for condition in streams),
        ]


HEADS = [
    *(f"{kind}AL {lag}" for kind in ("", "lower, ") for lag in AT),
    "documents", "documents, lower",
]  # fmt: skip


def cell(values: Sequence[float]) -> str:
    return f"{mean(values):.2f}" if values else ""


def change(values: Sequence[float], before: Sequence[float]) -> str:
    return f"{mean(values) - mean(before):+.2f}" if values and before else ""


def interval(values: Sequence[float]) -> str:
    """The mean with its 95% interval over seeds (Student's t)."""
    if len(values) < 2:
        return cell(values)
    half = student(len(values) - 1) * stdev(values) / len(values) ** 0.5
    return f"{mean(values):.2f} ± {half:.2f}"


def lead(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """The difference of two means with its 95% interval; the seeds are not paired."""
    if len(ours) < 2 or len(theirs) < 2:
        return change(ours, theirs)
    degrees = len(ours) + len(theirs) - 2
    squares = sum((len(values) - 1) * stdev(values) ** 2 for values in (ours, theirs))
    half = student(degrees) * (squares / degrees * (1 / len(ours) + 1 / len(theirs))) ** 0.5
    return f"{mean(ours) - mean(theirs):+.2f} ± {half:.2f}"


def group(gains: Gains, title: str, runs: Sequence[str], base: str | None) -> Table | None:
    """Scores of some runs, and what changes against `base`, or else against the run before."""
    rows: list[list[str]] = []
    before = gains.scores(base) if base else None
    for run in runs:
        scores = gains.scores(run)
        if not any(scores):
            continue
        rows.append([TITLES[run], *map(cell, scores)])
        if before is not None and run != base:
            pairs = zip(scores, before, strict=True)
            rows.append(["", *(change(now, then) for now, then in pairs)])
        before = before if base else scores
    return (title, ["", *HEADS], rows) if rows else None


def noise(gains: Gains) -> Table | None:
    """The spread over seeds, where there are several."""
    scores = gains.scores(BASE)
    seeds = max(map(len, scores))
    cells = (f"{stdev(values):.2f}" if len(values) > 1 else "" for values in scores)
    title = f"Standard deviation over the {seeds} seeds of all text:"
    return (title, ["", *HEADS], [["all text", *cells]]) if seeds > 1 else None


def systems(gains: Gains, axis: str) -> Table | None:
    at = TEST_AT[axis]
    found = {run: [gains.at(TEST, run, lag, axis) for lag in at] for run in SYSTEMS}
    rows = [
        [title, *map(interval, found[run])] for run, title in SYSTEMS.items() if any(found[run])
    ]
    pairs = list(zip(found[BASE], found["multipath"], strict=True))
    if any(ours and theirs for ours, theirs in pairs):
        rows.append(["wait-info − multipath", *(lead(*pair) for pair in pairs)])
    title = f"Wait-info and multipath, {TEST}, BLEU at equal {axis} with 95% intervals over seeds:"
    return (title, [axis, *map(str, at)], rows) if rows else None


def tables(points: Sequence[Point]) -> list[Table]:
    """All tables that the points allow."""
    gains = Gains.of(points)
    where = f"{DEV}, BLEU at equal AL; documents at K = 5"
    made = [
        group(gains, f"Text, each run with that of the run before it ({where}):", TEXT, None),
        noise(gains),
        group(gains, "Training options, each against all text without it:", OPTIONS, BASE),
        group(gains, "The same sources with other targets, against the original:", SAME, SAME[0]),
        *(systems(gains, axis) for axis in TEST_AT),
    ]
    return [table for table in made if table is not None]


def ingredients(results: Path) -> Outputs:
    points = points_of(results, "de-en-ingredients")
    if not points:
        return {}
    parts = (f"{title}\n\n{table(heads, rows)}" for title, heads, rows in tables(points))
    here = select(points, [f"set={TEST}"])
    shown = [{**p, "name": SYSTEMS[p["name"]]} for p in here if p["name"] in SYSTEMS]
    title = f"German → English, {TEST}, the same text and 3,000 updates"
    return {
        "ablations/de-en-ingredients.md#de-en-ingredients": "\n".join(parts),
        "ablations/de-en-ingredients.svg": picture(by_name(shown), title),
    }


MAKE = (ingredients,)
