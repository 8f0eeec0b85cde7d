"""The tables that the verbs print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from waitinfo.cli.console import print_table, progress_bar
from waitinfo.cli.options import note
from waitinfo.errors import WaitinfoError
from waitinfo.evaluation.curves import Curve, CurvePoint, closest, difference, value
from waitinfo.evaluation.latency import METRICS, PROFILES, TIMED, Profile
from waitinfo.evaluation.output import LOG, read_instances, text_folder
from waitinfo.evaluation.points import UNLIKE, Point, unlike
from waitinfo.evaluation.quality import SETTINGS, paired_bootstrap

if TYPE_CHECKING:
    from waitinfo.analysis.summaries import Table as Summary
    from waitinfo.evaluation.documents import Condition
    from waitinfo.systems import System
    from waitinfo.trained.calibration import Calibration

LEGEND = (
    "±: 95% interval of BLEU; lower: BLEU without case; early: ended before the source did; "
    "length: words, to the reference's; info: mean of the target's tokens, to the source's"
)


# evaluate


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
    from waitinfo.evaluation.documents import LONG

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
    for column in (system.dial.name if system.dial else "", f"LAAL, {calibration.source}", "BLEU"):
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


# compare


def _name(curve: Curve) -> str:
    return f"{curve.name} (published)" if curve.published else curve.name


def interpolated(curves: Sequence[Curve], grid: Sequence[float], x: str, y: str) -> None:
    table = Table()
    table.add_column("system", no_wrap=True)
    for at in grid:
        table.add_column(f"{at:g}", justify="right")
    table.add_column("covers", justify="right", no_wrap=True)
    for curve in curves:
        cells = ("" if (found := curve.at(at)) is None else f"{found:.2f}" for at in grid)
        ends = f"{curve.xs[0]:.2f}"
        if len(curve.points) > 1:
            ends += f"–{curve.xs[-1]:.2f}"
        else:
            ends += f": {curve.ys[0]:.2f}"
        table.add_row(escape(_name(curve)), *cells, ends)
    print_table(table, f"{y} at {x}, interpolated")


def models(curves: Sequence[Curve]) -> None:
    """How each curve's models were trained, and a note if that differs."""
    own = [curve for curve in curves if not curve.published]
    table = Table()
    for column in ("system", "runs", "seeds", "parameters", "updates × tokens"):
        table.add_column(column, justify="left" if column == "system" else "right")
    for curve in own:
        trained = ", ".join(f"{n:,} × {tokens:,}" for n, tokens in sorted(curve.trainings))
        size = "" if curve.parameters is None else f"{curve.parameters:,}"
        seeds = ", ".join(map(str, curve.seeds))
        table.add_row(escape(curve.name), str(curve.runs), seeds, size, trained)
    print_table(table, "models")
    if unlike(point["model"] for curve in own for made in curve.points for point in made.points):
        note(UNLIKE)


def differences(curves: Sequence[Curve], baseline: Curve, x: str, y: str) -> None:
    rows = [
        (curve, found)
        for curve in curves
        if curve is not baseline and len(curve.points) > 1
        if (found := difference(curve, baseline))
    ]
    if not rows:
        return
    table = Table()
    for column, justify in (("system", "left"), (f"over {x}", "right"), ("mean", "right"),
                            ("area", "right")):  # fmt: skip
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for curve, found in rows:
        table.add_row(
            escape(_name(curve)), f"{found.low:.2f}–{found.high:.2f}", f"{found.mean:+.2f}",
            f"{found.area:+.2f}",
        )  # fmt: skip
    print_table(table, f"{y} above {_name(baseline)}")


def paired(curves: Sequence[Curve], baseline: Curve | None, x: str, y: str) -> None:
    """Each point of the other curves against the baseline's point of nearest latency."""
    if y not in SETTINGS:
        raise WaitinfoError(f"--paired: not for {y}; choose --y from {', '.join(SETTINGS)}")
    if baseline is None or baseline.published:
        raise WaitinfoError("--paired: needs a curve of your own, of several points, as baseline")
    pairs = [
        (curve, point, closest(baseline, point.x))
        for curve in curves
        if curve is not baseline and not curve.published
        for point in curve.points
    ]
    table = Table()
    for column in ("system", x, y, f"{baseline.name} {x}", y, "p"):
        table.add_column(escape(column), justify="left" if column == "system" else "right")
    if any(len(p.points) > 1 for c in curves for p in c.points):
        note("--paired: of several runs, the first")
    with progress_bar() as progress:
        progress.stage("paired tests", len(pairs))
        for number, (curve, point, other) in enumerate(pairs, 1):
            texts, references = _texts(point)
            base, base_references = _texts(other)
            if references != base_references:
                raise WaitinfoError("--paired: the two systems have different references")
            found = paired_bootstrap(y, base, texts, references)
            at, there = value(point.points[0], x), value(other.points[0], x)
            table.add_row(
                escape(f"{curve.name} {point.label}"), f"{at:.2f}", f"{found.other:.2f}",
                escape(f"{other.label}: {there:.2f}"), f"{found.baseline:.2f}",
                f"{found.p_value:.3f}",
            )  # fmt: skip
            progress.advance(number)
    heading = f"paired bootstrap of {y} against {baseline.name} at the nearest {x}"
    print_table(table, heading)


def _texts(point: CurvePoint) -> tuple[list[str], list[str]]:
    """Translations and references of a point; of several runs, the first."""
    folder = text_folder(point.points[0])
    if not (folder / LOG).exists():
        raise WaitinfoError(f"--paired: {folder} holds no translations (evaluate --save-text)")
    found = read_instances(folder)
    return [i["prediction"] for i in found], [i["reference"] for i in found]


# analyse


def summary_table(table: Summary) -> None:
    """As narrow as its words; names of systems are never cut."""
    made = Table(padding=(0, 0), pad_edge=False)
    for number, head in enumerate(table.heads):
        text = number == 0 or table.textual
        made.add_column(
            escape(head), justify="left" if text else "right", overflow="fold",
            no_wrap=number == 0,
        )  # fmt: skip
    for row in table.rows:
        made.add_row(*map(escape, row))
    print_table(made, table.title)
