"""Training time of each system per update, relative to wait-k, measured in one run.

    python benchmarks/training_cost.py CORPUS --device cuda --warm-up 200

Every system trains the same network on the same batches. The systems take turns, one block of
updates each, so that a slow phase of the machine affects all of them. The result is the median
block. The first updates of a system, with the whole source visible, are skipped. On a GPU, choose
enough warm-up updates to record the shapes of all batches.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from measurements import save
from waitinfo.config import read_toml
from waitinfo.text.corpus import Corpus
from waitinfo.training.config import RunConfig
from waitinfo.training.display import SilentDisplay
from waitinfo.training.distributed import join_processes
from waitinfo.training.run_folder import merge
from waitinfo.training.trainer import Trainer

# Options of each system; cheaper first stages of training are turned off.
SYSTEMS: dict[str, dict] = {
    "wait-k": {},
    "full": {},
    "multipath": {},
    "wait-info": {"whole_source_updates": 0},
    "moe-wait-k": {"equal_updates": 0},
    "gma": {},
    "mma": {"latency_after": 0},
    "gsimt": {"zeta": 4.0, "positions_at_once": 1_000_000},
}


class Timed:
    """A trainer of one system, which times blocks of updates."""

    def __init__(self, name: str, values: dict, corpus: Corpus, out: Path, processes) -> None:  # type: ignore[no-untyped-def]
        system = {"name": name, **SYSTEMS[name]}
        run = RunConfig.from_values(merge(values, {"system": system}))
        self.trainer = Trainer(run, corpus, out, processes, SilentDisplay())
        self.stream = self.trainer.batches()
        self.batches = iter(self.stream.__enter__())
        self.blocks: list[float] = []

    def block(self, updates: int, keep: bool = True) -> None:
        # Batches are prepared before the clock starts: this time is the same for all systems.
        items = [next(self.batches) for _ in range(updates)]
        synchronise(self.trainer.device)
        began = time.monotonic()
        for item in items:
            self.trainer.step(item)
        synchronise(self.trainer.device)
        if keep:
            self.blocks.append((time.monotonic() - began) / updates)


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--config", type=Path, default=Path("recipes/multi30k.toml"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--updates", type=int, default=20, help="updates per block")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=5, help="first updates, not timed")
    parser.add_argument("--batch-tokens", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    values = read_toml(arguments.config)
    training = {"device": arguments.device}
    if arguments.batch_tokens:
        training["batch_tokens"] = arguments.batch_tokens
    values = merge(values, {"data": str(arguments.corpus.absolute()), "training": training})
    corpus = Corpus(arguments.corpus)
    with tempfile.TemporaryDirectory() as folder, join_processes(arguments.device) as processes:
        timed = {
            name: Timed(name, values, corpus, Path(folder) / name, processes)
            for name in arguments.systems.split(",")
        }
        for each in timed.values():
            each.block(arguments.warm_up, keep=False)
        for _ in range(arguments.blocks):
            for each in timed.values():
                each.block(arguments.updates)
        for each in timed.values():
            each.stream.__exit__(None, None, None)
    report(arguments, timed)


def report(arguments: argparse.Namespace, timed: dict[str, Timed]) -> None:
    medians = {name: statistics.median(each.blocks) for name, each in timed.items()}
    base = medians.get("wait-k")
    device = arguments.device
    if device.startswith("cuda"):
        device = torch.cuda.get_device_name(0)
    result = {"device": device, "torch": torch.__version__, "updates_a_block": arguments.updates,
              "blocks": arguments.blocks, "systems": {}}  # fmt: skip
    print("| system | seconds per 1,000 updates | relative to wait-k |\n|---|---|---|")
    for name, seconds in medians.items():
        relative = seconds / base if base else None
        result["systems"][name] = {"seconds_per_1000_updates": 1000 * seconds, "relative": relative}
        print(
            f"| {name} | {1000 * seconds:.1f} | {'' if relative is None else f'{relative:.2f}'} |"
        )
    save(arguments.out, result)


if __name__ == "__main__":
    main()
