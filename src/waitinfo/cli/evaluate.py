"""`waitinfo evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from waitinfo.cli.display import progress_bar
from waitinfo.cli.loading import check_beam, load
from waitinfo.errors import WaitinfoError
from waitinfo.evaluation.evaluate import TestSet, evaluate_point, write_point
from waitinfo.systems import check_dial

COLUMNS = {
    "BLEU": "BLEU", "BLEU_lowercase": "lower", "AL": "AL", "CW": "CW", "AP": "AP", "DAL": "DAL",
    "early_stop": "early", "info_ratio": "info",
}  # fmt: skip


def run(
    model: Path,
    source: Path,
    reference: Path,
    out: Path,
    k: str | None,
    ending: str,
    beam: int,
    name: str | None,
    save_text: bool,
    device: str,
) -> None:
    if out.exists() and not out.is_dir():
        raise WaitinfoError(f"{out}: is a file; --out must be a folder")
    test = TestSet.read(source, reference)
    loaded = load(model, device)
    check_beam(loaded.system, beam)
    if name and ("/" in name or name.startswith(".")):
        raise WaitinfoError(f"--name {name}: must be a plain file name")
    dials = [check_dial(loaded.system, value) for value in _numbers(k)]
    name = name or loaded.system.name
    points = []
    with progress_bar() as progress:
        for dial in dials:
            point, texts = evaluate_point(loaded, test, dial, ending, beam, progress)
            suffix = f"-{dial:g}" if loaded.system.dial else ""
            write_point(out, f"{name}{suffix}", point, texts if save_text else None)
            points.append(point)
    _table(name, points)


def _numbers(text: str | None) -> list[float | None]:
    if text is None:
        return [None]
    try:
        return list(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        raise WaitinfoError(f"--k {text}: give numbers separated by commas, as 1,3,5") from None


def _table(name: str, points: list[dict[str, Any]]) -> None:
    table = Table(title=f"{name}: latency in tokens, end-of-sentence counted")
    for column in (points[0]["dial"] or "", *COLUMNS.values()):
        table.add_column(column, justify="right")
    for point in points:
        dial = "" if point["k"] is None else f"{point['k']:g}"
        values = ("-" if point[c] is None else f"{point[c]:.2f}" for c in COLUMNS)
        table.add_row(dial, *values)
    Console().print(table)
