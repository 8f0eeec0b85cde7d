"""Simulate many seeds, or one again."""

from __future__ import annotations

import argparse
import multiprocessing
import time

from tests.simulation.scene import Scene

PART = 1_000  # seeds of one process at a time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    if options.seed is not None:
        Scene(options.seed).run()
        return
    began, steps, done = time.perf_counter(), 0, 0
    end = options.first + options.seeds
    parts = [range(at, min(at + PART, end)) for at in range(options.first, end, PART)]
    with multiprocessing.Pool(options.jobs) as pool:
        for part, taken in zip(parts, pool.imap(run, parts), strict=True):
            steps, done = steps + taken, done + len(part)
            seconds = time.perf_counter() - began
            print(f"to {part.stop:,}: {done:,} seeds, {steps:,} steps, {seconds:.0f} s", flush=True)


def run(seeds: range) -> int:
    """How many steps they took."""
    steps = 0
    for seed in seeds:
        scene = Scene(seed)
        try:
            scene.run()
        except BaseException:
            print(f"seed {seed}", flush=True)
            raise
        steps += scene.world.steps
    return steps


if __name__ == "__main__":
    main()
