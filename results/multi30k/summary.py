"""Table and curves of the points in this folder: `python results/multi30k/summary.py`.

Writes table.md, in the form of the paper's appendix, and curves.png from the JSON of every point.
Points of several seeds are averaged. The early-stop rate is that of the same model at the same dial
where it may end before its source does (curves named -allow).
"""

from __future__ import annotations

import json
from pathlib import Path

from waitinfo.evaluation.curves import Curve, CurvePoint, make_curves, read_points, value
from waitinfo.evaluation.plot import draw

HERE = Path(__file__).resolve().parent
COLUMNS = ("paper.CW", "paper.AP", "paper.AL", "paper.DAL", "BLEU", "word.AL", "word.LAAL")
HEADS = ("CW", "AP", "AL", "DAL", "BLEU", "AL (words)", "LAAL (words)", "early stop, if allowed")
ORDER = ("full", "full-beam5", "wait-k", "multipath", "adaptive-wait-k", "moe-wait-k", "mma", "gma",
         "gsimt", "wait-info")  # fmt: skip
ALLOW = "-allow"


def mean(point: CurvePoint, axis: str) -> float:
    values = [found for p in point.points if (found := value(p, axis)) is not None]
    return sum(values) / len(values)


def setting(point: CurvePoint) -> str:
    """What the model was trained and decoded with, but for how it may end."""
    settings = point.points[0]["settings"]
    return json.dumps([settings["options"], settings["k"]])


def table(curves: dict[str, Curve]) -> str:
    lines = [
        "| system | dial | " + " | ".join(HEADS) + " | seeds |",
        "|---" * (len(HEADS) + 3) + "|",
    ]
    for name in ORDER:
        if name not in curves:
            continue
        ends = {setting(p): p for p in curves.get(name + ALLOW, Curve("", [])).points}
        for point in curves[name].points:
            allowed = ends.get(setting(point))
            cells = [f"{mean(point, column):.2f}" for column in COLUMNS]
            cells.append("" if allowed is None else f"{100 * mean(allowed, 'early_stop'):.1f}%")
            lines.append(
                f"| {name} | {point.label} | " + " | ".join(cells) + f" | {len(point.points)} |"
            )
    return "\n".join(lines) + "\n"


def costs() -> str:
    path = HERE / "cost.json"
    if not path.exists():
        return ""
    found = json.loads(path.read_text("utf-8"))
    lines = [
        f"\nTraining cost, {found['device']} (`benchmarks/training_cost.py`):\n",
        "| system | seconds per 1,000 updates | relative to wait-k |",
        "|---|---|---|",
    ]
    for name, cost in found["systems"].items():
        seconds, relative = cost["seconds_per_1000_updates"], cost["relative"]
        lines.append(f"| {name} | {seconds:.1f} | {relative:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    folders = sorted(HERE.glob("seed-*"))
    curves = {c.name: c for c in make_curves(read_points(folders), "paper.AL", "BLEU")}
    (HERE / "table.md").write_text(table(curves) + costs(), "utf-8")
    drawn = [curves[name] for name in ORDER if name in curves and name != "full-beam5"]
    drawn.sort(key=lambda curve: curve.name != "wait-info")  # the first colour and mark
    title = "Multi30k German → English, test 2016"
    draw(drawn, "paper.AL", "BLEU", HERE / "curves.png", title, labels=False, bands=False)


if __name__ == "__main__":
    main()
