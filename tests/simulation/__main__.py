"""Simulate many seeds, or one again."""

from __future__ import annotations

import argparse
import time

from tests.simulation.scene import Scene


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    if options.seed is not None:
        Scene(options.seed).run()
        return
    began, steps = time.perf_counter(), 0
    for seed in range(options.first, options.first + options.seeds):
        scene = Scene(seed)
        try:
            scene.run()
        except BaseException:
            print(f"seed {seed}", flush=True)
            raise
        steps += scene.world.steps
        if (seed + 1) % 1000 == 0:
            seconds = time.perf_counter() - began
            print(f"{seed + 1:,} seeds, {steps:,} steps, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
