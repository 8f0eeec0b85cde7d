"""Losses of the training modes on the same batches, to check that faster modes learn the same.

    python benchmarks/loss_curves.py CORPUS --device cuda --updates 400

Trains wait-info in several of the modes of train_speed.py, from the same weights, on the same
batches and dials. Kernels draw dropout in different orders, so losses differ a little. The mode
"float32 again", which is float32 with another dropout seed, shows how much of that is chance.
Prints the mean loss of each interval of updates, and the mean distance of each mode from float32.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from measurements import save
from train_speed import MODES, trainer
from waitinfo.training import updates

AGAIN = " again"


def curve(arguments: argparse.Namespace, mode: str, folder: Path) -> list[float]:
    """Mean loss per token in each interval of updates."""
    made = trainer(arguments, arguments.corpus, mode.removesuffix(AGAIN), folder)
    losses: list[float] = []
    with made.batches() as stream:
        for number, item in enumerate(stream, 1):
            made.step(item)
            if number % arguments.every == 0:
                means = made.tally.means(made.processes)
                losses.append(means["loss"] if means else float("nan"))
                made.tally.clear(made.now())
            if number == arguments.updates:
                return losses
    raise AssertionError("the batches never end")


def other_dropout(seed: int) -> None:
    """Seed dropout differently; batches and dials stay the same."""
    torch.default_generator.manual_seed(seed ^ 1)
    torch.cuda.manual_seed_all(seed ^ 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--size", default="base")
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--modes", default="float32,float32 again,plain,kernels+graphs")
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    curves: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for mode in arguments.modes.split(","):
            assert mode.removesuffix(AGAIN) in MODES, f"unknown mode {mode}"
            plain = updates.seed_everything
            if mode.endswith(AGAIN):
                updates.seed_everything = other_dropout
            curves[mode] = curve(arguments, mode, Path(folder) / mode)
            updates.seed_everything = plain
            print(f"{mode:24}", *(f"{loss:7.4f}" for loss in curves[mode]), flush=True)
    first = next(iter(curves.values()))
    apart = {
        mode: sum(abs(a - b) for a, b in zip(found, first, strict=True)) / len(first)
        for mode, found in curves.items()
    }
    for mode, distance in apart.items():
        print(f"{mode:24} {distance:.4f} from the first, on average")
    if arguments.out:
        result = {
            "size": arguments.size, "batch_tokens": arguments.batch_tokens,
            "every": arguments.every, "losses": curves, "mean_distance": apart,
        }  # fmt: skip
        save(arguments.out, result)


if __name__ == "__main__":
    main()
