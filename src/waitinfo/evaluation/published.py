"""The results in the paper's appendix, for comparison.

They use the `paper` profile and lower-cased tokenised BLEU. Two AP values are left out, because the
paper repeats the previous column there.
"""

from __future__ import annotations

import csv
from importlib.resources import files

from waitinfo.errors import WaitinfoError, unknown
from waitinfo.evaluation.curves import Curve, CurvePoint

COLUMNS = ("CW", "AP", "AL", "DAL")


def _rows() -> list[dict[str, str]]:
    text = (files("waitinfo.evaluation") / "data" / "published.csv").read_text("utf-8")
    return list(csv.DictReader(text.splitlines()))


def settings() -> list[str]:
    """Language pairs and sizes with published results, as `de-en base`."""
    return list(dict.fromkeys(row["setting"] for row in _rows()))


def published_curves(setting: str, x: str, y: str) -> list[Curve]:
    """Every system of one setting; full-sentence translation is a curve of one point."""
    known = settings()
    if setting not in known:
        raise unknown("--published", setting, known)
    profile, _, metric = x.rpartition(".")
    if profile != "paper" or metric not in COLUMNS:
        raise WaitinfoError(
            f"--x {x}: the paper published only {', '.join(f'paper.{c}' for c in COLUMNS)}, "
            "in tokens; other metrics cannot be compared with them"
        )
    if y != "BLEU_lowercase":
        raise WaitinfoError(f"--y {y}: the paper published only BLEU_lowercase")
    curves: dict[str, Curve] = {}
    for row in _rows():
        if row["setting"] != setting or not row[metric]:
            continue
        curve = curves.setdefault(row["system"], Curve(row["system"], [], published=True))
        score = float(row["BLEU"])
        curve.points.append(CurvePoint(float(row[metric]), score, score, score, row["value"]))
    for curve in curves.values():
        curve.points.sort(key=lambda p: p.x)
    return list(curves.values())
