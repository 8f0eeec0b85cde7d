"""The time until a model can translate, measured in new processes.

    python benchmarks/loading.py [MODEL] [--times 5] [--out FILE.json]

Prints the median seconds of importing torch, of loading the model (by default the bundled one), and
of translating a first short sentence.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median

from measurements import save

PROGRAM = """
import json, sys, time
marks = [time.perf_counter()]
def mark(): marks.append(time.perf_counter())
import torch; mark()
import waitinfo; translator = waitinfo.load(*sys.argv[1:]); mark()
translator.translate("Guten Morgen, meine Damen und Herren."); mark()
print(json.dumps([after - before for before, after in zip(marks, marks[1:])]))
"""
PARTS = ("importing torch", "loading", "first sentence")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a model folder or a bundled model's name")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    program = [sys.executable, "-c", PROGRAM, *([arguments.model] if arguments.model else [])]
    runs = []
    for _ in range(arguments.times):
        done = subprocess.run(program, capture_output=True, text=True, check=True)
        runs.append(json.loads(done.stdout))
    found = {part: median(run[i] for run in runs) for i, part in enumerate(PARTS)}
    for part, seconds in found.items():
        print(f"{part:16} {seconds:6.2f} s")
    if arguments.out:
        record = {"times": arguments.times, "median_seconds": found}
        save(arguments.out, record)


if __name__ == "__main__":
    main()
