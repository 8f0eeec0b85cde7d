"""The figures of docs/paper.md: they are those of the results, and their statistics are right."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.pages import __main__ as drawing
from experiments.pages import analyses, claims, figures, leads
from experiments.pages.tables import RESULTS
from tests.evaluations import point

ROOT = Path(__file__).resolve().parents[1]


def test_own_results_beside_published_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run of one's own, 10 BLEU lower: it is drawn, and only the figures it is in are printed."""
    monkeypatch.setattr(figures, "MINE", mine := [])
    monkeypatch.setattr(claims, "MINE", mine)
    published = (RESULTS / "ablations" / "multi30k-ablations.jsonl").read_text("utf-8")
    own = [p for p in map(json.loads, published.splitlines()) if p["run"] == "lambda-1"]
    lower = [{**p, "quality": {**p["quality"], "BLEU": p["quality"]["BLEU"] - 10}} for p in own]
    folder = tmp_path / "ablations"
    folder.mkdir()
    own_file = folder / "multi30k-ablations.jsonl"
    folder.joinpath("multi30k-ablations.jsonl").write_text(
        "".join(json.dumps(p) + "\n" for p in lower)
    )
    before = claims.claims()
    monkeypatch.setattr(sys, "argv", ["claims.py", "--results", str(tmp_path)])
    claims.main()
    lines = capsys.readouterr().out.splitlines()
    (line,) = (each for each in lines if each.startswith("lambda 1, captions  "))
    published_figure = before["lambda 1, captions"]
    gap = float(published_figure.split()[0].replace("−", "-"))
    assert f"{gap - 10:+.1f}".replace("-", "−") in line and published_figure in line
    changed = [name for name in before if any(line.startswith(f"{name} ") for line in lines)]
    assert changed and len(changed) == len(lines)
    assert all("lambda 1" in name or "all together" in name for name in changed), changed
    # Runs that are not complete take no place, and those of other seeds harm nothing.
    mine.clear()
    more = [{**p, "run": "wait-info", "name": "wait-info", "seed": 4} for p in lower]
    for kept in (lower[:3], more):
        text = "".join(json.dumps(p) + "\n" for p in kept)
        own_file.write_text(text)
        claims.main()
        mine.clear()
    assert "no figure differs" in capsys.readouterr().out
    folder.joinpath("multi30k-ablations.jsonl").write_text(
        "".join(json.dumps(p) + "\n" for p in lower)
    )
    monkeypatch.setattr(sys, "argv", ["pages", str(tmp_path)])
    drawing.main()
    assert capsys.readouterr().out.split() == [
        "ablations/multi30k-ablations.md#multi30k-ablations", "ablations/multi30k-ablations.svg",
    ]  # fmt: skip
    last = [p["quality"]["BLEU"] for p in lower if p["k"] == 11]  # of three seeds
    assert f"{np.mean(last):.2f}" in (folder / "multi30k-ablations.md").read_text("utf-8")
    assert "<svg" in (folder / "multi30k-ablations.svg").read_text("utf-8")


def test_a_lead_is_over_the_best_curve_at_each_latency() -> None:
    """By hand: 30 at AL 2 and 34 at AL 6, over curves of 29 to 35 and of constant 31."""
    catch_up = "multipath-by-catch-up-of-6"
    heights = {
        "own": {2: 30, 6: 34}, "multipath": {2: 29, 6: 35}, catch_up: {2: 31, 4: 31, 6: 31},
    }  # fmt: skip
    found = [
        {**point(name, al, al, bleu), "seed": 1}
        for name, curve in heights.items()
        for al, bleu in curve.items()
    ]
    found.append({**point("own", 4, 4, 60), "seed": 2})  # a seed that only one of them has
    made = leads.lead(found, "own", r"multipath(-by-catch-up-of-\d+)?")
    assert made == "−1.0 to +0.2, largest at AL 3.5"
    assert leads.lead(found, "absent", "multipath") == "no common latency"


def test_a_lead_is_not_looked_for_beside_a_steep_curve() -> None:
    """By hand: 26 everywhere, over 20 and 25 at AL 1 and 2, then 25.5 at AL 3 and 6."""
    catch_up = "multipath-by-catch-up-of-6"
    others = {1: 20, 2: 25, 3: 25.5, 6: 25.5}
    heights = {"own": {1: 26, 6: 26}, "multipath": others, catch_up: others}
    found = [
        {**point(name, al, al, bleu), "seed": 1}
        for name, curve in heights.items()
        for al, bleu in curve.items()
    ]
    made = leads.lead(found, "own", r"multipath(-by-catch-up-of-\d+)?")
    assert made == "+0.5 to +0.8, largest at AL 2.5"
    dials = ((1, 1, 20), (2, 2, 25), (3, 3, 26))
    steps = [{**point("multipath", k, al, bleu), "seed": 1} for k, al, bleu in dials]
    assert leads.above_the_line(steps, "multipath") == pytest.approx([2.0])


def test_early_stops_at_equal_latency() -> None:
    """By hand: 30% at AL 1 and 10% at AL 3 are 20% at AL 2; a second seed has 40%."""
    found = [
        {**point("own", al, al, 30), "seed": seed, "early_stop": share}
        for seed, shares in ((1, {1: 0.3, 3: 0.1}), (2, {1: 0.5, 3: 0.3}))
        for al, share in shares.items()
    ]
    assert figures.early_at(found, ["own", "own"], [2, 3]) == "30, 20% and 30, 20%"


def test_differences_of_all_changes_together() -> None:
    """Three systems and four seeds, against least squares with an effect for each."""
    names = ("wait-info", "zeta-source", "zeta-target")
    scores = np.array([[30, 31, 29, 32], [33, 33, 31, 34], [30, 32, 30, 31]], float)
    found = [
        {**point(name, al, al, score), "seed": seed}
        for name, row in zip(names, scores, strict=True)
        for seed, score in enumerate(row)
        for al in (2, 9)
    ]
    effects = np.zeros((12, 7))  # of each system and each seed
    for place, (system, seed) in enumerate(np.ndindex(3, 4)):
        effects[place, [system, 3 + seed]] = 1
    fitted = effects @ np.linalg.lstsq(effects, scores.ravel(), rcond=None)[0]
    half = claims.student(6) * (2 / 4 * ((scores.ravel() - fitted) ** 2).sum() / 6) ** 0.5
    assert claims.pooled(found).startswith(f"±{half:.1f} (3 systems, 4 seeds), p = 0.0")
    known = {10: 2.228, 12: 2.179, 20: 2.086}  # from a printed table
    assert all(abs(claims.student(free) - t) < 0.005 for free, t in known.items())


def test_where_differences_lie() -> None:
    def at(latency: float, difference: float, p: float) -> dict[str, float]:
        return {"latency": latency, "difference": difference, "p": p}

    span = analyses.span
    found = [at(3, 0.51, 0.01), at(4, -0.22, 0.3), at(5.5, 0.1, 0.04)]
    assert span(found, "word.LAAL") == "−0.2 to +0.5, significant at LAAL 3, 5.5"
    assert span(found[1:2], "paper.AL") == "−0.2, significant nowhere"
    assert span(found[:1], "paper.AL") == "+0.5, significant at AL 3"


def test_leads_of_two_analyses_are_over_the_best_of_both() -> None:
    def analysed(*others: dict[float, float]) -> dict[str, Any]:
        against = [
            {"at": [{"latency": x, "difference": y, "interval": [y - 1, y + 1]}
                    for x, y in other.items()]}
            for other in others
        ]  # fmt: skip
        return {"significance": {"against": against}}

    lead = leads.lead_on_same_weights
    one, other = analysed({3: 0.5, 4: 0.4}, {4: 0.9}), analysed({4: -0.2, 5: -3})
    assert lead(one) == "+0.4 to +0.5, largest: +0.5 (−0.5 to +1.5) at AL 3"
    assert lead(one, other) == "−0.2 to +0.5, largest: +0.5 (−0.5 to +1.5) at AL 3"


def test_the_page_has_the_figures_of_the_results() -> None:
    page = " ".join((ROOT / "docs" / "paper.md").read_text("utf-8").split())  # lines are wrapped
    for name, figure in claims.claims().items():
        assert figure in page, f"{name}: {figure} (python -m experiments.pages.claims)"
