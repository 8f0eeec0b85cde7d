"""Puts the points that queue.sh wrote into one file, and what training them took into another.

    python experiments/paper/collect.py RESULTS OUT

RESULTS has seed-SEED/RUN/*.json. OUT/points.jsonl gets one point a line: what `evaluate` wrote, with
the run and the seed. OUT/training.jsonl gets one run a line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

NOT_POINTS = ("run.json",)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def training(folder: Path, names: dict[str, Any]) -> dict[str, Any]:
    """How long a model trained, and what came of it on the development set."""
    metrics = records(folder / "metrics.jsonl")
    updates = [record for record in metrics if "loss" in record]
    found = [record for record in metrics if "validation_loss" in record][-1]
    speeds = sorted(record["tokens_per_second"] for record in updates)
    resolved = json.loads((folder / "run.json").read_text("utf-8"))["resolved"]
    return {
        **names,
        "system": resolved["system"],
        "model": resolved["model"],
        "updates": updates[-1]["update"],
        "epochs": updates[-1]["epoch"],
        "minutes": found["minutes"],
        "tokens_per_second_median": speeds[len(speeds) // 2],
        "dev_loss": found["validation_loss"],
        "dev_bleu": found["bleu"],
        "dev_dial": found["k"] if found["dial"] else None,
    }


def main() -> None:
    results, out = map(Path, sys.argv[1:])
    points, trainings = [], []
    for folder in sorted(results.glob("seed-*/*")):
        names = {"run": folder.name, "seed": int(folder.parent.name.removeprefix("seed-"))}
        files = [f for f in sorted(folder.glob("*.json")) if f.name not in NOT_POINTS]
        points += [{**json.loads(file.read_text("utf-8")), **names} for file in files]
        if (folder / "metrics.jsonl").exists():
            trainings.append(training(folder, names))
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in (("points", points), ("training", trainings)):
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (out / f"{name}.jsonl").write_text(text, "utf-8")
    print(f"{len(points)} points of {len(trainings)} runs")


if __name__ == "__main__":
    main()
