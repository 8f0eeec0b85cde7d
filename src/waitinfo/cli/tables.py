"""The tables that `waitinfo evaluate` prints."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from waitinfo.cli.display import note, print_table
from waitinfo.evaluation.conditions import Condition
from waitinfo.evaluation.documents import LONG
from waitinfo.evaluation.latency import METRICS, PROFILES, TIMED, Profile
from waitinfo.evaluation.points import Point
from waitinfo.systems import System
from waitinfo.trained.calibration import Calibration

LEGEND = (
    "±: 95% interval of BLEU; lower: BLEU without case; early: ended before the source did; "
    "length: words, to the reference's; info: mean of the target's tokens, to the source's"
)


def point_tables(name: str, points: list[Point]) -> None:
    dial = points[0]["dial"] or ""
    quality = [
        {
            "BLEU": p["quality"]["BLEU"],
            "±": p["quality"].get("BLEU_interval"),
            "lower": p["quality"]["BLEU_lowercase"],
            "chrF": p["quality"]["chrF"],
            "COMET": p["quality"].get("COMET"),
            "early %": 100 * p["early_stop"],
            "length": p["length_ratio"],
            "empty": p["empty"],
            "info": p["info_ratio"],
        }
        for p in points
    ]
    _table(f"{name}: quality", dial, points, quality)
    note(LEGEND)
    for profile in PROFILES.values():
        title = f"latency, profile {profile.name}: {_unit(profile, points[0])}, {profile.summary}"
        _table(title, dial, points, [{m: p[profile.name][m] for m in METRICS} for p in points])
    _warn(points)
    timed = [p["timed"] for p in points]
    if all(timed):
        rate = timed[0]["words_per_second"]
        rows = [
            {
                **{f"{m}": t["computation_aware_ms"][m] for m in TIMED},
                "ms a word": t["ms_per_source_word"],
                "95th": t["ms_per_source_word_95th"],
            }
            for t in timed
        ]
        _table(f"latency in ms, computation included, at {rate:g} words per second",
               dial, points, rows)  # fmt: skip


def _table(title: str, dial: str, points: list[Point], rows: list[dict[str, Any]]) -> None:
    """Rows by dial value; columns that no row has a value for are left out."""
    columns = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    table = Table()
    for column in (dial, *columns):
        table.add_column(column, justify="right")
    for point, row in zip(points, rows, strict=True):
        value = "" if point["k"] is None else f"{point['k']:g}"
        table.add_row(value, *(_cell(row[column]) for column in columns))
    print_table(table, title)


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.2f}"


def document_tables(name: str, points: list[Point]) -> None:
    """Quality after realignment, and the latency of long streams."""
    rows = [
        {
            "BLEU": p["quality"]["BLEU"],
            "±": p["quality"].get("BLEU_interval"),
            "chrF": p["quality"]["chrF"],
            **{metric: p["documents"][metric] for metric in LONG},
            "length": p["length_ratio"],
            "repeated %": 100 * p["documents"]["repeated_4grams"],
        }
        for p in points
    ]
    count = points[0]["documents"]["count"]
    _table(f"{name}: {count} documents, latency in words", points[0]["dial"] or "", points, rows)
    _warn(points)


CONDITION_LEGEND = (
    "of clean: BLEU, to that of clean text; words: BLEU of the words alone, without case and "
    "punctuation; LAAL: of documents LongLAAL; "
    "repeated: 4-grams written before in the same document"
)


def condition_table(found: dict[Condition, list[Point]]) -> None:
    """One row for each condition and dial value."""
    dial = next(iter(found.values()))[0]["dial"]
    columns = ("condition", dial or "", "BLEU", "±", "of clean", "words", "chrF", "LAAL", "YAAL",
               "length", "repeated")  # fmt: skip
    table = Table()
    for column in columns:
        table.add_column(column, justify="left" if column == "condition" else "right")
    clean = {
        p["k"]: p["quality"]["BLEU"] for c, ps in found.items() if c.name == "clean" for p in ps
    }
    for condition, points in found.items():
        for point in points:
            quality, whole = point["quality"], clean.get(point["k"])
            repeats = point.get("documents", {}).get("repeated_4grams")
            table.add_row(
                condition.name,
                "" if point["k"] is None else f"{point['k']:g}",
                _cell(quality["BLEU"]),
                _cell(quality.get("BLEU_interval")),
                f"{100 * quality['BLEU'] / whole:.0f}%" if whole else "-",
                _cell(quality.get("BLEU_words")),
                _cell(quality["chrF"]),
                _cell(point["word"]["LAAL"]),
                _cell(point["word"]["YAAL"]),
                _cell(point["length_ratio"]),
                "-" if repeats is None else f"{100 * repeats:.1f}%",
            )
    print_table(table, "the same test set under several conditions")
    note(CONDITION_LEGEND)
    _warn([point for points in found.values() for point in points])


def calibration_table(system: System, calibration: Calibration) -> None:
    table = Table()
    for column in (system.dial.name if system.dial else "", "LAAL, words", "BLEU"):
        table.add_column(column, justify="right")
    for point in calibration.points:
        table.add_row(f"{point.k:g}", _cell(point.lag), _cell(point.BLEU))
    print_table(table, f"{system.name}: dial and lag")


def _warn(points: list[Point]) -> None:
    """Name the points whose latency says little."""
    for point in points:
        if point.get("degeneracy", {}).get("degenerate"):
            note(
                f"{point['set']}, {point['name']} at {point['k']}: likely a degenerate policy: few "
                "words are written early, and the rest after the source (docs/metrics.md)"
            )


def _unit(profile: Profile, point: Point) -> str:
    """What a profile counts; of a point that names its units, in each language."""
    units = point.get("units", {})
    if profile.name != "word" or set(units.values()) <= {"words"}:
        return profile.unit
    return f"source in {units['source']}, target in {units['target']}"
