"""Training speed, and where the time is spent.

    python benchmarks/train_speed.py [CORPUS] --size base --batch-tokens 32768 --device cuda

Trains wait-info with its path masks in several modes: plain, with recorded CUDA graphs, with fused
kernels, compiled, or two of these. Prints, for each mode, target tokens per second (without
padding) and the share of the device's peak arithmetic; for the plain mode, the time of each part of
an update; and on a GPU, for each mode, the time by kind of kernel. Without a corpus, it uses random
tokens with sentence lengths as in parliamentary speech.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from measurements import save
from waitinfo.text.corpus import Corpus
from waitinfo.text.files import ParallelText
from waitinfo.text.prepare import PrepareOptions, prepare
from waitinfo.training.batches import UpdateBatches
from waitinfo.training.config import RunConfig
from waitinfo.training.display import SilentDisplay
from waitinfo.training.distributed import join_processes
from waitinfo.training.trainer import Trainer

PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}  # dense bfloat16, FLOP/s
MODES: dict[str, dict[str, Any]] = {
    name: {option: option in name.split("+") for option in ("kernels", "graphs", "compile")}
    for name in (
        "plain", "graphs", "compile", "compile+graphs", "kernels", "kernels+graphs",
    )
}  # fmt: skip
MODES["float32"] = {**MODES["plain"], "precision": "float32"}
KERNELS = {  # kinds of kernels and patterns of their names; the first match counts
    "attention": r"fmha|flash|_attention_",
    "matrix products": r"gemm|cutlass|nvjet|xmma|cublas|splitK|triton_tem|triton_mm|bmm",
    "optimizer": r"[aA]dam|multi_tensor|lerp|LpNorm",
    "copies": r"[mM]emcpy|[mM]emset",
    "rest (norms, dropout, softmax, bias)": r"",
}


def synthetic_corpus(folder: Path, sentences: int, vocabulary: int) -> Path:
    """Random words with log-normal lengths around 24, correlated between source and target."""
    draw = np.random.default_rng(1)
    words = [f"w{number}" for number in range(vocabulary)]
    lengths = np.exp(draw.normal(3.2, 0.6, sentences)).clip(3, 120).astype(int)
    with (folder / "text.tsv").open("w") as stream:
        for length in lengths:
            other = max(2, int(length * draw.normal(1.05, 0.12)))
            sides = (draw.integers(0, vocabulary, n) for n in (length, other))
            stream.write("\t".join(" ".join(words[i] for i in side) for side in sides) + "\n")
    options = PrepareOptions(vocab="words:1", holdout=10)
    prepare(ParallelText(tsv=[folder / "text.tsv"]), folder / "corpus", options)
    return folder / "corpus"


def trainer(arguments: argparse.Namespace, corpus: Path, mode: str, out: Path) -> Trainer:
    training = {
        "batch_tokens": arguments.batch_tokens, "device": arguments.device,
        "validate_sentences": 0, "threads": arguments.threads, **MODES[mode],
    }  # fmt: skip
    values = {
        "data": str(corpus), "size": arguments.size, "training": training,
        "model": {"norm": "post"},  # as in the paper
        "system": {"name": "wait-info", "whole_source_updates": 0},
    }  # fmt: skip
    run = RunConfig.from_values(values)
    with join_processes(arguments.device) as processes:
        return Trainer(run, Corpus(corpus), out, processes, SilentDisplay())


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def clock(device: torch.device, work: Callable[[], object]) -> float:
    synchronise(device)
    began = time.monotonic()
    work()
    synchronise(device)
    return time.monotonic() - began


def measure(made: Trainer, warm_up: int, updates: int) -> dict[str, float]:
    """Tokens per second, with batches prepared as in a real run."""
    tokens = padded = 0
    with made.batches() as stream:
        items = iter(stream)
        began = time.monotonic()
        for _ in range(warm_up):
            made.step(next(items))
        synchronise(made.device)
        warm = time.monotonic() - began
        began = time.monotonic()
        for _ in range(updates):
            item = next(items)
            made.step(item)
            tokens += item.tokens
            padded += sum(batch.target_in.numel() for _, batch in item.batches)
        synchronise(made.device)
        seconds = time.monotonic() - began
    return {
        "tokens_per_second": tokens / seconds,
        "milliseconds_per_update": 1000 * seconds / updates,
        "real_share_of_target_positions": tokens / padded,
        "warm_up_seconds": warm,
    }


def kernels(made: Trainer, updates: int, names: int) -> dict[str, Any]:
    """Milliseconds per update that the GPU spends in each kind of kernel, or idle ("nothing")."""
    with made.batches() as stream:
        ready = list(islice(stream, updates))
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            seconds = clock(made.device, lambda: [made.step(item) for item in ready])
    spent: dict[str, float] = dict.fromkeys(KERNELS, 0.0)
    slowest: dict[str, float] = {}
    for event in seen.events():
        if event.device_type != DeviceType.CUDA:
            continue
        kind = next(kind for kind, name in KERNELS.items() if re.search(name, event.name))
        milliseconds = event.device_time / 1000 / updates
        spent[kind] += milliseconds
        slowest[event.name] = slowest.get(event.name, 0.0) + milliseconds
    spent["nothing"] = max(0.0, 1000 * seconds / updates - sum(spent.values()))
    most = sorted(slowest.items(), key=lambda item: -item[1])[:names]
    return {"milliseconds": spent, "slowest": {name[:120]: value for name, value in most}}


def flops_per_token(made: Trainer, items: list[UpdateBatches]) -> float:
    """Matrix operations of updates, including padding, per real target token."""
    counter = FlopCounterMode(display=False)
    with counter:
        for item in items:
            made.step(item)
    return counter.get_total_flops() / sum(item.tokens for item in items)


def breakdown(made: Trainer, updates: int) -> dict[str, float]:
    """Milliseconds of each part of an update, with the device synchronised after each part."""
    parts = dict.fromkeys(("data", "forward", "backward", "optimizer", "average"), 0.0)
    device = made.device
    with made.batches() as stream:
        items = iter(stream)
        for number in range(updates + 2):
            began = time.monotonic()
            ((place, batch),) = next(items).batches
            ready = time.monotonic() - began
            batch = batch.to(device)
            context = made.updater.context(place, 10**6)
            found: dict[str, Any] = {}

            def forward() -> None:
                made.updater.optimizer.zero_grad(set_to_none=True)
                with made.updater.autocast():
                    found["loss"] = made.updater.objective(batch, context)[0] / batch.tokens  # noqa: B023

            spent = {
                "data": ready,
                "forward": clock(device, forward),
                "backward": clock(device, found["loss"].backward),
                "optimizer": clock(device, lambda: made.updater.apply({})),
                "average": clock(device, lambda: made.average.step(10)),
            }
            if number >= 2:
                parts = {name: parts[name] + spent[name] for name in parts}
    return {name: 1000 * seconds / updates for name, seconds in parts.items()}


def peak_of(device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for key, peak in PEAKS.items() if key in name), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path, nargs="?")
    parser.add_argument("--size", default="base")
    parser.add_argument("--batch-tokens", type=int, default=32_768)
    parser.add_argument("--vocabulary", type=int, default=16_000)
    parser.add_argument("--sentences", type=int, default=20_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--modes", default="plain,graphs,kernels,kernels+graphs")
    parser.add_argument("--warm-up", type=int, default=60)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--slowest", type=int, default=40, help="kernels to list by name")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for result in run(arguments, Path(folder)):
            save(arguments.out, result)


def run(arguments: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Measure every mode; yield the results so far after each."""
    corpus = arguments.corpus
    if corpus is None:
        corpus = synthetic_corpus(folder, arguments.sentences, arguments.vocabulary)
    first = trainer(arguments, corpus, "plain", folder / "plain-counted")
    with first.batches() as stream:
        counted = max(1, min(40, arguments.updates))
        flops = flops_per_token(first, list(islice(stream, counted)))
    parts = breakdown(first, max(1, min(20, arguments.updates)))
    peak = peak_of(first.device)
    device = str(first.device)
    if first.device.type == "cuda":
        device = torch.cuda.get_device_name(first.device)
    result: dict[str, Any] = {
        "device": device, "torch": torch.__version__, "size": arguments.size,
        "batch_tokens": arguments.batch_tokens, "parameters": first.model.parameter_count(),
        "flops_per_target_token": flops, "peak": peak, "plain_parts_ms": parts, "modes": {},
    }  # fmt: skip
    print("parts of a plain update (ms): "
          + ", ".join(f"{name} {ms:.1f}" for name, ms in parts.items()), flush=True)  # fmt: skip
    del first
    for mode in arguments.modes.split(","):
        made = trainer(arguments, corpus, mode, folder / mode)
        found: dict[str, Any] = dict(measure(made, arguments.warm_up, arguments.updates))
        share = found["tokens_per_second"] * flops / peak if peak else None
        found["share_of_peak"] = share
        result["modes"][mode] = found
        print(
            f"{mode:16} {found['tokens_per_second']:12,.0f} target tokens/s "
            f"{found['milliseconds_per_update']:8.1f} ms/update"
            + (f"  {100 * share:5.1f}% of peak" if share else "")
            + f"  (warm-up {found['warm_up_seconds']:.0f} s)",
            flush=True,
        )
        if made.device.type == "cuda":
            found["kernels"] = kernels(made, 10, arguments.slowest)
            spent = found["kernels"]["milliseconds"]
            print(
                "    " + ", ".join(f"{kind} {ms:.1f} ms" for kind, ms in spent.items()), flush=True
            )
        del made
        yield result


if __name__ == "__main__":
    main()
