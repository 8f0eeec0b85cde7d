"""Tables of pages, worked by hand: ingredients, held lags."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.pages import bundled
from experiments.pages import ingredients as gains
from experiments.pages.tables import RESULTS, points_of
from waitinfo.evaluation.points import Point


def test_every_run_of_the_ingredients_has_a_title() -> None:
    runs = {point["run"] for point in points_of(RESULTS, "de-en-ingredients")}
    assert runs <= {*gains.TITLES, *gains.SYSTEMS}


def point(run: str, name: str, k: float, lag: float, bleu: float, seed: int = 1) -> Point:
    settings: dict[str, Any] = {"system": "s", "options": {}, "k": k}
    return {
        "name": run, "run": run, "set": name, "seed": seed, "k": k, "settings": settings,
        "model": {"parameters": 1}, "paper": {"AL": lag, "DAL": lag + 2}, "quality": {"BLEU": bleu},
    }  # fmt: skip


def line(run: str, name: str, start: float, seed: int = 1) -> list[Point]:
    """BLEU start + AL, at AL 2 and 10."""
    return [point(run, name, k, lag, start + lag, seed) for k, lag in ((3, 2), (9, 10))]


def test_text_is_compared_with_the_run_before() -> None:
    points = [*line("europarl", gains.DEV, 10), *line("parallel", gains.DEV, 12.5)]
    points += [point("parallel", f"{gains.DEV}-documents", 5, 5, 17.25)]
    ((_, heads, rows),) = gains.tables(points)
    assert heads[1:4] == ["AL 3", "AL 5", "AL 8"] and len({len(row) for row in rows}) == 1
    assert rows[0][1:5] == ["13.00", "15.00", "18.00", ""]
    assert rows[1][1:4] == ["15.50", "17.50", "20.50"] and rows[1][7] == "17.25"
    assert rows[2][:5] == ["", "+2.50", "+2.50", "+2.50", ""] and rows[2][7] == ""


def test_options_are_compared_with_all_text() -> None:
    points = [p for seed, start in ((1, 10), (2, 11)) for p in line("all", gains.DEV, start, seed)]
    points += line("four-draws", gains.DEV, 10)
    tables = {title.split(",")[0]: rows for title, _, rows in gains.tables(points)}
    deviation = f"{np.std([10, 11], ddof=1):.2f}"
    ((_, *spread),) = tables["Standard deviation over the 2 seeds of all text:"]
    assert spread == [deviation] * 3 + [""] * 5
    rows = tables["Training options"]
    assert rows[0][:2] == ["`system.draws=4`", "13.00"] and rows[1][:2] == ["", "-0.50"]


def test_the_lead_over_multipath_has_its_interval() -> None:
    """Against the pooled two-sample interval from numpy's variances; t(4) = 2.776."""
    starts = {"all": (10.0, 11.0, 12.6), "multipath": (9.0, 9.5, 9.1)}
    points = [
        p
        for run, values in starts.items()
        for seed, start in enumerate(values, 1)
        for p in line(run, gains.TEST, start, seed)
    ]
    *_, (_, heads, rows), (_, heads_by_dal, _) = gains.tables(points)
    assert heads_by_dal == ["DAL", "5", "6", "7", "8"]
    assert heads == ["AL", "3", "4", "5", "6"] and [row[0] for row in rows] == [
        "wait-info", "multipath", "wait-info − multipath",
    ]  # fmt: skip
    ours, theirs = map(np.array, starts.values())
    pooled = (ours.var(ddof=1) + theirs.var(ddof=1)) / 2
    half = 2.776 * np.sqrt(pooled * (1 / 3 + 1 / 3))
    assert rows[2][1] == f"{ours.mean() - theirs.mean():+.2f} ± {half:.2f}"
    alone = 4.303 * ours.std(ddof=1) / np.sqrt(3)
    assert rows[0][2] == f"{ours.mean() + 4:.2f} ± {alone:.2f}"


def test_held_lags_beside_fixed_dials() -> None:
    """By hand: a fixed dial had BLEU 20 at 3 words and 30 at 5, so 25 at 4."""

    def point(k: float, lag: float, score: float, dial: str, name: str) -> dict[str, Any]:
        base = points_of(RESULTS, "lag")[0]
        return {**base, "k": k, "dial": dial, "set": name, "run": "r",
                "name": f"w-{dial}", "settings": {**base["settings"], "k": k},
                "quality": {**base["quality"], "BLEU": score, "BLEU_interval": 1.0},
                "word": {**base["word"], "LAAL": lag},
                "documents": {"LongLAAL": lag, "StreamLAAL": lag}}  # fmt: skip

    points = [point(3, 3, 20, "K", "t-documents"), point(5, 5, 30, "K", "t-documents"),
              point(4.5, 4, 26, "lag", "t-documents"), point(4.5, 4.5, 26, "lag", "t")]  # fmt: skip
    (row,) = bundled.lag_rows(points)
    assert row == ["r", "t", "as written", "4.5", "4.50 (+0%)", "4.00 (-11%)", "no", "4.00 (-11%)",
                   "26.00 ± 1.00", "25.00 (+1.00)"]  # fmt: skip
