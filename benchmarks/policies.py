"""What it costs that a policy sees more than counts, as ratios measured side by side in one run.

    python benchmarks/policies.py SOURCE.txt [MODEL] [--sentences 60] [--rounds 5]

All policies here decide like wait-3, so that the same tokens are computed; each but the first asks
for something and looks at it. Prints the CPU time of each relative to the first, for one stream and
for 32 at once, on one thread.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from waitinfo.streaming.decoder import Decoder
from waitinfo.systems import System, for_arrays
from waitinfo.systems.interface import ASKS, OF_STATE
from waitinfo.systems.wait_k import WaitK
from waitinfo.trained.folder import find_model
from waitinfo.trained.saving import load_model

K = 3
STREAMS = (1, 32)


def asking(asked: str) -> System:
    """Wait-k that looks at something and decides as if it had not."""

    class Before(WaitK):
        name, asks = f"wait-k and {asked}", (asked,)

        @for_arrays
        def ready(self, state):
            getattr(state, asked)
            return WaitK.ready(self, state)

    class After(WaitK):
        name, asks = f"wait-k and {asked}", (asked,)

        @for_arrays
        def accept(self, state, step):
            getattr(step, asked)
            return state.complete | True

    return Before() if asked in OF_STATE else After()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="sentences, one per line")
    parser.add_argument("model", nargs="?", help="a model folder or a bundled model's name")
    parser.add_argument("--sentences", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    loaded = load_model(find_model(arguments.model), "cpu", "auto")
    lines = arguments.source.read_text("utf-8").splitlines()[: arguments.sentences]
    sentences = [loaded.vocabulary.source.encode(line) for line in lines]
    systems: dict[str, System] = {"nothing": WaitK()} | {name: asking(name) for name in ASKS}
    for system in systems.values():
        system.prepare(loaded.vocabulary)
    for streams in STREAMS:
        least = dict.fromkeys(systems, float("inf"))
        for _ in range(arguments.rounds):
            for name, system in systems.items():
                began = time.process_time()
                Decoder(loaded.model, system, slots=streams).decode(sentences, K)
                least[name] = min(least[name], time.process_time() - began)
        for name, seconds in least.items():
            print(f"{streams:3} streams  {name:14} {seconds / least['nothing']:5.2f}")


if __name__ == "__main__":
    main()
