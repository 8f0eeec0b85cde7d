"""Memory and time of one loss and backward pass of gsimt, by band and group size.

python benchmarks/gsimt_memory.py [--size base] [--batch 32] [--length 60] [--out FILE.json]

All sentences have the same length and random tokens. Band 0 is the whole lattice. The first line is
wait-k on the same batch. The last line computes the whole lattice at once and keeps all
activations, as plain autograd would. Memory is the peak of the pass minus the memory of the
weights: from the allocator on a GPU, from the process on a CPU. Each case runs in its own process.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from measurements import save
from waitinfo.model import SIZES, ModelConfig, Transformer
from waitinfo.model.batch import Batch
from waitinfo.systems import LossContext, System, build_system
from waitinfo.systems.networks.generative import prefix_groups
from waitinfo.systems.networks.lattice import lattice_points
from waitinfo.text.special import BOS, EOS

EVERYTHING = 10**9  # positions in one group


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    system: str
    band: int = 0
    positions: int = EVERYTHING


def build_batch(pairs: int, length: int, vocabulary: int) -> Batch:
    """Pairs of `length` tokens on both sides, including end-of-sentence."""
    torch.manual_seed(1)
    source = torch.randint(4, vocabulary, (pairs, length))
    target = torch.randint(4, vocabulary, (pairs, length))
    source[:, -1] = target[:, -1] = EOS
    lengths = torch.full((pairs,), length)
    return Batch(
        source=source,
        source_lengths=lengths,
        target_in=torch.cat([torch.full((pairs, 1), BOS), target[:, :-1]], 1),
        target_out=target,
        target_lengths=lengths,
        pairs=pairs,
        tokens=pairs * length,
        longest_source=length,
        lengths=((length, length),) * pairs,
    )


def one_pass(model: Transformer, system: System, batch: Batch) -> float:
    """Run a loss and its backward pass; return the seconds."""
    half = model.device.type == "cuda"
    began = time.perf_counter()
    with torch.autocast(model.device.type, torch.bfloat16, enabled=half):
        losses = system.loss(model, batch, LossContext(0, random.Random(0), label_smoothing=0.1))
    (losses.total / batch.tokens).backward()
    if half:
        torch.cuda.synchronize()
    return time.perf_counter() - began


def measure(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(0)
    chosen = {"band": case.band, "zeta": options.zeta, "positions_at_once": case.positions}
    system = build_system(case.system, chosen if case.system == "gsimt" else {})
    config = ModelConfig(
        options.vocabulary, options.vocabulary, **SIZES[options.size], **system.model_defaults
    )
    model = Transformer(config).to(options.device).train()
    batch = build_batch(options.batch, options.length, options.vocabulary).to(model.device)
    if model.device.type == "cuda":
        one_pass(model, system, batch)  # warm up: load kernels and allocate workspaces
        model.zero_grad(set_to_none=True)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        seconds = one_pass(model, system, batch)
        peak = torch.cuda.max_memory_allocated()
    else:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        seconds = one_pass(model, system, batch)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"mib": (peak - before) / 2**20, "seconds": seconds, **work(case, batch, options.zeta)}


def work(case: Case, batch: Batch, zeta: float) -> dict[str, int]:
    """Number of lattice points, of computed decoder positions (with padding), and of groups."""
    if case.system != "gsimt":
        return {"points": batch.tokens, "computed": batch.tokens, "groups": 1}
    n, m = torch.tensor(batch.lengths).unbind(-1)
    points = lattice_points(n, m, zeta, case.band)
    groups = prefix_groups(points, case.positions)
    computed = sum(group.positions for group in groups)
    return {"points": int(points.sum()), "computed": computed, "groups": len(groups)}


def measure_in_process(case: Case) -> dict[str, Any]:
    """Measure in a new process; a failure, such as out of memory, is a result as well."""
    command = [sys.executable, __file__, *sys.argv[1:], "--case", json.dumps(asdict(case))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    reason = (done.stderr.strip().splitlines() or [f"ended with status {done.returncode}"])[-1]
    return {"failed": reason[:200]}


def cases(options: argparse.Namespace) -> list[Case]:
    sizes = [int(size) for size in options.positions.split(",")]
    bands = [int(band) for band in options.bands.split(",")]
    banded = [Case("gsimt", band, size) for size in sizes for band in bands]
    return [Case("wait-k"), *banded, Case("gsimt", 0)]


def line(case: Case, found: dict[str, Any]) -> str:
    band = "-" if case.system != "gsimt" else str(case.band or "all")
    group = "all" if case.positions == EVERYTHING else f"{case.positions:,}"
    start = f"{case.system:8} {band:>5} {group:>9}"
    if "failed" in found:
        return f"{start}  failed: {found['failed']}"
    return (
        f"{start} {found['groups']:>7,} {found['points']:>10,} {found['computed']:>11,} "
        f"{found['mib']:>10,.0f} {found['seconds']:>9.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--batch", type=int, default=32, help="sentence pairs")
    parser.add_argument("--length", type=int, default=60, help="tokens on each side")
    parser.add_argument("--vocabulary", type=int, default=16_000)
    parser.add_argument("--zeta", type=float, default=4.0)
    parser.add_argument("--bands", default="4,8,16,0", help="0 for the whole lattice")
    parser.add_argument("--positions", default="4096,8192,32768", help="decoder positions at once")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(Case(**json.loads(options.case)), options)))
        return
    print(
        f"{'system':8} {'band':>5} {'at once':>9} {'groups':>7} {'points':>10} {'computed':>11} "
        f"{'peak MiB':>10} {'seconds':>9}"
    )
    results = []
    for case in cases(options):
        found = measure_in_process(case)
        print(line(case, found), flush=True)
        results.append({**asdict(case), **found})
    if options.out:
        settings = {
            name: value for name, value in vars(options).items() if name not in ("out", "case")
        }
        settings["torch"] = torch.__version__
        save(options.out, {"settings": settings, "cases": results})


if __name__ == "__main__":
    main()
