"""`waitinfo evaluate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from waitinfo.cli.display import note, print_table, progress_bar
from waitinfo.cli.loading import check_beam, load, use_threads
from waitinfo.cli.options import numbers
from waitinfo.errors import WaitinfoError
from waitinfo.evaluation.evaluate import Decoding, Evaluation, TestSet, Timing, evaluate_point
from waitinfo.evaluation.instances import read_instances
from waitinfo.evaluation.latency import METRICS, PROFILES, TIMED, Profile
from waitinfo.evaluation.output import Output
from waitinfo.evaluation.points import Point
from waitinfo.evaluation.quality import (
    COMET_MODEL,
    RESAMPLES,
    check_installed,
    comet,
    load_comet,
)
from waitinfo.progress import Progress
from waitinfo.systems import check_dial


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for on the command line."""

    model: Path | None
    source: Path
    reference: Path
    out: Path
    k: str | None
    system: str | None
    settings: list[str]
    ending: str
    beam: int
    name: str | None
    label: str | None
    run: str | None
    save_text: bool | None
    overwrite: bool
    rate: float | None
    timed: int
    comet: bool
    device: str
    dtype: str
    threads: int


def run(request: Request) -> None:
    output = Output.at(request.out, request.save_text, request.overwrite)
    test = TestSet.read(request.source, request.reference)
    _check_names(request)
    check_installed()
    timing = None if request.rate is None else Timing(request.rate, request.timed)
    if request.comet and not output.text:
        raise WaitinfoError("--comet: scores the saved text; give --save-text with it")
    if request.comet:
        load_comet(COMET_MODEL)
    use_threads(request.threads)
    loaded = load(request.model, request.device, request.dtype, request.system, request.settings)
    check_beam(loaded.system, request.beam)
    decodings = [
        Decoding(check_dial(loaded.system, k), request.ending, request.beam)
        for k in numbers("--k", request.k)
    ]
    if request.label is not None and len(decodings) > 1:
        raise WaitinfoError("--label: names one point; give one value of --k with it")
    if timing and request.beam > 1:
        raise WaitinfoError("--rate: streams translate greedily; leave --beam out")
    output.prepare()
    evaluation = Evaluation(loaded, test, request.name, request.run)
    try:
        with progress_bar() as progress:
            points = [_point(evaluation, d, output, timing, request, progress) for d in decodings]
    except KeyboardInterrupt:
        note("stopped; the same command continues from here")
        raise
    _tables(evaluation.name, points)


def _check_names(request: Request) -> None:
    for option, name in (("--name", request.name), ("--run", request.run)):
        if name and ("/" in name or name.startswith(".")):
            raise WaitinfoError(f"{option} {name}: must be a plain file name")


def _point(
    evaluation: Evaluation,
    decoding: Decoding,
    output: Output,
    timing: Timing | None,
    request: Request,
    progress: Progress,
) -> Point:
    point = evaluate_point(evaluation, decoding, output, timing, RESAMPLES, progress)
    changed = request.label is not None and point.get("label") != request.label
    if changed:
        point["label"] = request.label
    if request.comet and "COMET" not in point["quality"]:
        folder = output.text_folder(evaluation.key(decoding))
        texts = [found["prediction"] for found in read_instances(folder)]
        test = evaluation.test
        gpus = int(request.device.startswith("cuda"))
        point["quality"]["COMET"] = comet(test.sources, texts, test.references, gpus=gpus)
        point["quality"]["COMET_signature"] = COMET_MODEL
        changed = True
    if changed:
        output.write(point)
    return point


LEGEND = (
    "±: 95% interval of BLEU; lower: BLEU without case; early: ended before the source did; "
    "length: words, to the reference's; info: mean of the target's tokens, to the source's"
)


def _tables(name: str, points: list[Point]) -> None:
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


def _unit(profile: Profile, point: Point) -> str:
    """What a profile counts; of a point that names its units, in each language."""
    units = point.get("units", {})
    if profile.name != "word" or set(units.values()) <= {"words"}:
        return profile.unit
    return f"source in {units['source']}, target in {units['target']}"


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
