"""Tables and pictures of the bundled models: written and spoken text, streams, held lags."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from experiments.pages.tables import Outputs, Panels, by_name, cell, picture, points_of, table
from waitinfo.evaluation.curves import make_curves
from waitinfo.evaluation.documents import ALL
from waitinfo.evaluation.points import Point

COLUMNS = ("BLEU", "chrF", "paper.AL")
CONDITION_HEADS = ("model", "set", "condition", "K", "BLEU", "of clean", "of sentences",
                   "words alone", "of clean", "chrF", "LAAL", "length",
                   "repeated 4-grams")  # fmt: skip
LAG_HEADS = ("model", "set", "stream", "lag asked for", "sentences: LAAL", "stream: LongLAAL",
             "within 10%", "stream: StreamLAAL", "BLEU of the stream",
             "BLEU of a fixed dial at its LongLAAL")  # fmt: skip
STREAMS = {"documents": "as written", "documents-lower": "no sentence ends"}
WINDOWS = ("32", "48", "64", "96", "128")  # source tokens
MARGIN = 0.1  # how far a held lag may be from its target
Conditions = dict[tuple[str, str], dict[str, list[Point]]]


def word_lag(point: Point) -> float:
    """LAAL in words; of documents that of the whole stream."""
    lag: float = (point.get("documents") or {}).get("LongLAAL", point["word"]["LAAL"])
    return lag


def bundled(results: Path) -> Outputs:
    """Every point of each bundled model, and curves of written and spoken text."""
    found: Outputs = {}
    panels = []
    points = points_of(results, "bundled")
    for model in sorted({point["run"] for point in points}):
        # Each test set is a curve; timed points and those in float32 are on the card only.
        here = [{**p, "name": p["set"]} for p in points if p["run"] == p["name"] == model]
        here = sorted((p for p in here if not p.get("timed")), key=lambda p: (p["name"], p["k"]))
        rows = [
            [p["name"], f"{p['k']:g}", *(cell(p, axis) for axis in COLUMNS),
             f"{word_lag(p):.2f}", f"{p['length_ratio']:.2f}"]
            for p in here
        ]  # fmt: skip
        heads = ["set", "K", "BLEU", "chrF", "AL", "LAAL (words)", "length / reference"]
        found[f"models/bundled.md#{model}"] = table(heads, rows)
        sentences = [p for p in here if not re.search("-(documents|errors)", p["name"])]
        title = f"{model}, written and in lower case without punctuation"
        panels.append(picture(by_name(sentences), title))
    return found | {"models/bundled.svg": Panels(panels)}


# Spoken text


def by_condition(points: list[Point]) -> Conditions:
    """Points by run, by set, and by the condition that the name of the set ends in."""
    found: Conditions = {}
    for point in points:
        ends = sorted((c for c in ALL if point["set"].endswith(f"-{c}")), key=len)
        condition = ends[-1] if ends else "clean"
        name = point["set"].removesuffix(f"-{condition}")
        found.setdefault((point["run"], name), {}).setdefault(condition, []).append(point)
    return found


def of(score: float | None, whole: float | None) -> str:
    return f"{100 * score / whole:.0f}%" if score is not None and whole else ""


def condition_rows(points: list[Point]) -> Iterator[list[str]]:
    """BLEU under each condition, to that of clean text, and of documents to that of sentences.

    Each with the same dial.
    """
    for (run, name), found in by_condition(points).items():
        scores, alone = (
            {(c, p["k"]): p["quality"].get(metric) for c, here in found.items() for p in here}
            for metric in ("BLEU", "BLEU_words")
        )
        for condition in (c for c in ALL if c in found):
            for point in found[condition]:
                quality, words, k = point["quality"], point["word"], point["k"]
                ends = condition.removeprefix("documents").removeprefix("-") or "clean"
                repeats = point.get("documents", {}).get("repeated_4grams")
                yield [
                    run, name, condition, f"{k:g}",
                    f"{quality['BLEU']:.2f} ± {quality['BLEU_interval']:.2f}",
                    of(quality["BLEU"], scores.get(("clean", k))),
                    of(quality["BLEU"], scores.get((ends, k))) if ends != condition else "",
                    f"{quality['BLEU_words']:.2f}" if "BLEU_words" in quality else "",
                    of(quality.get("BLEU_words"), alone.get(("clean", k))),
                    f"{quality['chrF']:.2f}", f"{words['LAAL']:.2f}",
                    f"{point['length_ratio']:.2f}",
                    "" if repeats is None else f"{100 * repeats:.1f}%",
                ]  # fmt: skip


def off(lag: float | None, target: float) -> str:
    return "" if lag is None else f"{lag:.2f} ({100 * (lag / target - 1):+.0f}%)"


def lag_rows(points: list[Point]) -> Iterator[list[str]]:
    """Lags asked for and achieved; BLEU beside that of a fixed dial at the same lag."""
    every = by_condition(points).items()
    for (run, name), condition, found in (
        (place, c, found) for place, found in every for c in STREAMS if c in found
    ):
        streams = found[condition]
        curves = make_curves([p for p in streams if p["dial"] != "lag"], "word.LAAL", "BLEU")
        alone = found.get("clean", []) if condition == "documents" else []
        single = {p["k"]: p["word"]["LAAL"] for p in alone if p["dial"] == "lag"}
        for point in sorted((p for p in streams if p["dial"] == "lag"), key=lambda p: p["k"]):
            target, held, quality = point["k"], point["documents"], point["quality"]
            fixed = curves[0].at(held["LongLAAL"]) if curves else None
            within = abs(held["LongLAAL"] / target - 1) <= MARGIN
            yield [
                run, name, STREAMS[condition], f"{target:g}", off(single.get(target), target),
                off(held["LongLAAL"], target), "yes" if within else "no",
                off(held["StreamLAAL"], target),
                f"{quality['BLEU']:.2f} ± {quality['BLEU_interval']:.2f}",
                "" if fixed is None else f"{fixed:.2f} ({quality['BLEU'] - fixed:+.2f})",
            ]  # fmt: skip


def window_rows(points: list[Point]) -> Iterator[list[str]]:
    """BLEU and lag by the size of the window, for streams without sentence ends."""
    for (run, name), found in by_condition(points).items():
        sizes = {p["name"]: p for p in found["documents-lower"]}
        cells = (
            f"{sizes[n]['quality']['BLEU']:.2f} at {sizes[n]['documents']['LongLAAL']:.2f}"
            if n in sizes else "" for n in WINDOWS
        )  # fmt: skip
        yield [run, name, *cells]


SPOKEN = {  # by the file of points: the page, the heads and the rows of its table
    "students": ("bundled", CONDITION_HEADS, condition_rows),  # before and after they went on
    "conditions": ("spoken", CONDITION_HEADS, condition_rows),
    "windows": ("spoken", ("model", "set", *WINDOWS), window_rows),
    "lag": ("spoken", LAG_HEADS, lag_rows),
}


def spoken(results: Path) -> Outputs:
    found: Outputs = {}
    for name, (page, heads, rows) in SPOKEN.items():
        if points := points_of(results, name):
            found[f"models/{page}.md#{name}"] = table(heads, rows(points))
    return found


MAKE = (bundled, spoken)
