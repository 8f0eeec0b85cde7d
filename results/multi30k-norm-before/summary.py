"""Table and curves of the points in this folder: `python results/multi30k-norm-before/summary.py`.

Writes table.md and curves.png beside itself from the JSON of every point.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent
COLUMNS = ("k", "CW", "AP", "AL", "DAL", "BLEU", "early_stop")
MARKS = {"wait-info": "o-C3", "multipath": "s--C0", "wait-k": "^:C7"}


def points() -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Points by name and seed; separate wait-k models are one curve."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for path in HERE.glob("seed-*/*.json"):
        point = json.loads(path.read_text("utf-8"))
        name = re.sub(r"-[\d.]+$", "", path.stem)
        name = re.sub(r"^wait-k\d+", "wait-k", name)
        found[name, int(path.parent.name.split("-")[1])].append(point)
    return {key: sorted(found[key], key=lambda p: p["AL"]) for key in sorted(found)}


def table(found: dict[tuple[str, int], list[dict[str, Any]]]) -> str:
    lines = ["| system | seed | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 2) + "|"]
    for (name, seed), curve in found.items():
        for point in curve:
            cells = ("" if point[c] is None else f"{point[c]:.3g}" if c == "k" else
                     f"{100 * point[c]:.1f}%" if c == "early_stop" else f"{point[c]:.2f}"
                     for c in COLUMNS)  # fmt: skip
            lines.append(f"| {name} | {seed} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def draw(found: dict[tuple[str, int], list[dict[str, Any]]]) -> None:
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for (name, seed), curve in found.items():
        if name not in MARKS or len(curve) < 2:
            continue
        lags, scores = zip(*((p["AL"], p["BLEU"]) for p in curve), strict=True)
        seeds = sum(other == name for other, _ in found)
        label = f"{name} ({seeds} seed{'s' * (seeds > 1)})" if seed == 1 else None
        axes.plot(lags, scores, MARKS[name], label=label, markersize=5, linewidth=1.2)
    full = [p["BLEU"] for (name, _), curve in found.items() if name == "full" for p in curve]
    mean = sum(full) / len(full)
    axes.axhline(mean, color="grey", linewidth=1)
    axes.annotate("full sentence, greedy", (axes.get_xlim()[1], mean), ha="right", va="bottom")
    axes.set_xlabel("Average Lagging (tokens, end-of-sentence counted)")
    axes.set_ylabel("BLEU")
    axes.set_title("Multi30k German → English, test 2016")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(HERE / "curves.png", dpi=130)


def main() -> None:
    found = points()
    (HERE / "table.md").write_text(table(found), "utf-8")
    draw(found)


if __name__ == "__main__":
    main()
