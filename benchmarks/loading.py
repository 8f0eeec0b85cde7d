"""The time until a model can translate, measured in new processes.

    python benchmarks/loading.py [MODEL] [--dtype int8] [--times 5] [--out FILE.json]

Prints the median seconds of importing torch, of loading the model (by default the bundled one), and
of translating a first short sentence; and the memory that loading takes, at most and in the end
(Linux).
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
import json, resource, sys, time
marks = [time.perf_counter()]
def mark(): marks.append(time.perf_counter())
def used(): return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 2**20
import torch; mark()
from waitinfo.trained.folder import find_model
from waitinfo.trained.saving import load_model
import waitinfo.streaming.translator
name, dtype = sys.argv[1] or None, sys.argv[2]
before = used()
loaded = load_model(find_model(name), dtype=dtype); mark()
most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
memory = [most - before, used() - before]
translator = waitinfo.streaming.translator.Translator(loaded)
translator.translate("Guten Morgen, meine Damen und Herren."); mark()
print(json.dumps([*(after - before for before, after in zip(marks, marks[1:])), *memory]))
"""
PARTS = ("importing torch", "loading", "first sentence")
MEMORY = ("most memory", "memory")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a model folder or a bundled model's name")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    program = [sys.executable, "-c", PROGRAM, arguments.model or "", arguments.dtype]
    runs = []
    for _ in range(arguments.times):
        done = subprocess.run(program, capture_output=True, text=True, check=True)
        runs.append(json.loads(done.stdout))
    found = {part: median(run[i] for run in runs) for i, part in enumerate(PARTS)}
    for part, seconds in found.items():
        print(f"{part:16} {seconds:6.2f} s")
    taken = {part: median(run[len(PARTS) + i] for run in runs) for i, part in enumerate(MEMORY)}
    for part, amount in taken.items():
        print(f"{part:16} {amount:6.0f} MiB")
    if arguments.out:
        record = {
            "times": arguments.times, "dtype": arguments.dtype, "median_seconds": found,
            "mebibytes": taken,
        }  # fmt: skip
        save(arguments.out, record)


if __name__ == "__main__":
    main()
