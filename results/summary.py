"""Tables and curves of the points in these folders: `python results/summary.py`.

Writes each folder's table.md, in the form of the paper's appendix, and curves.png from the JSON of
every point; for German-English one of each a test set. Points of several seeds are averaged. The
early-stop rate is that of the same model at the same dial where it may end before its source does
(curves named -allow). The ablations' table.md has BLEU at equal latency.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from waitinfo.evaluation.curves import Curve, CurvePoint, make_curves, read_points, value
from waitinfo.evaluation.plot import draw

HERE = Path(__file__).resolve().parent
COLUMNS = ("paper.CW", "paper.AP", "paper.AL", "paper.DAL", "BLEU", "word.AL", "word.LAAL")
HEADS = ("CW", "AP", "AL", "DAL", "BLEU", "AL (words)", "LAAL (words)", "early stop, if allowed")
ORDER = ("full", "full-beam5", "wait-k", "multipath", "adaptive-wait-k", "moe-wait-k", "mma", "gma",
         "gsimt", "wait-info")  # fmt: skip
ALLOW = "-allow"
ABLATION_AL, ABLATION_DAL = range(2, 8), range(4, 10)  # latencies that all of them have


def place(name: str) -> tuple[int, str]:
    """Systems in the paper's order, then others by name."""
    return (ORDER.index(name) if name in ORDER else len(ORDER)), name


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
    for name in sorted((n for n in curves if not n.endswith(ALLOW)), key=place):
        ends = {setting(p): p for p in curves.get(name + ALLOW, Curve("", [])).points}
        for point in curves[name].points:
            allowed = ends.get(setting(point))
            cells = [f"{mean(point, column):.2f}" for column in COLUMNS]
            cells.append("" if allowed is None else f"{100 * mean(allowed, 'early_stop'):.1f}%")
            lines.append(
                f"| {name} | {point.label} | " + " | ".join(cells) + f" | {len(point.points)} |"
            )
    return "\n".join(lines) + "\n"


def costs(path: Path) -> str:
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


def write(points: list[Path], table_at: Path, figure: Path, title: str, cost: str = "") -> None:
    curves = {c.name: c for c in make_curves(read_points(points), "paper.AL", "BLEU")}
    table_at.write_text(table(curves) + cost, "utf-8")
    shown = [n for n in sorted(curves, key=place) if not n.endswith(ALLOW) and n != "full-beam5"]
    shown.sort(key=lambda name: name != "wait-info")  # the first colour and mark
    draw([curves[n] for n in shown], "paper.AL", "BLEU", figure, title, labels=False, bands=False)


def ablations(folder: Path) -> None:
    """BLEU at equal AL, and its mean distance to multipath's there and at equal DAL."""
    points = read_points(sorted(folder.glob("*/newstest2013")))
    by_al, by_dal = (
        {c.name: [c.at(x) for x in at] for c in make_curves(points, axis, "BLEU")}
        for axis, at in (("paper.AL", ABLATION_AL), ("paper.DAL", ABLATION_DAL))
    )
    lines = [
        f"| AL | {' | '.join(map(str, ABLATION_AL))} | over AL | over DAL |",
        "|---" * (len(ABLATION_AL) + 3) + "|",
    ]
    for name, found in sorted(by_al.items(), key=lambda row: place(row[0])):
        gaps = (
            f"{np.subtract(rows[name], rows['multipath']).mean():+.2f}" for rows in (by_al, by_dal)
        )
        lines.append(f"| {name} | " + " | ".join([*(f"{b:.2f}" for b in found), *gaps]) + " |")
    (folder / "table.md").write_text("\n".join(lines) + "\n", "utf-8")


def main() -> None:
    ablations(HERE / "de-en-ablations")
    folder = HERE / "multi30k"
    title = "Multi30k German → English, test 2016"
    seeds = sorted(folder.glob("seed-*"))
    cost = costs(folder / "cost.json")
    write(seeds, folder / "table.md", folder / "curves.png", title, cost)
    folder = HERE / "de-en"
    packed = HERE / "de-en-packed"  # the German part: of runs that were scored on it as packed only
    only_packed = [
        ("wait-info", packed / "base-europarl.test-german"),
        ("wait-info-small", packed / "europarl.test-german"),
    ]
    for name in ("newstest2015", "europarl.test", "europarl.test-german"):
        points = sorted(folder.glob(f"*/{name}"))
        if name == "europarl.test-german":
            points += [at for run, at in only_packed if not (folder / run / name).exists()]
        at = folder / f"table.{name}.md", folder / f"curves.{name}.png"
        write(points, *at, f"German → English, {name}")


if __name__ == "__main__":
    main()
