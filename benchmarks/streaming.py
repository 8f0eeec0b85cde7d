"""Speed of the streaming engine: python benchmarks/streaming.py [--size base] [--out FILE.json]

All ratios are measured in one run, on a model with random weights, or on the bundled one:

1. the time of one READ and one WRITE at source lengths 10, 50, 100 and 200, and of reading the
   weights of both once, in turn with them;
2. the time of whole 40-word sentences, compared with decoding without caches, which recomputes the
   whole prefix at every step, as published implementations do;
3. throughput with 1, 8, 32 and 128 streams, and the memory of a stream;
4. the time from the arrival of a word to the last word that it releases, for 1 and 32 streams;
5. with integers on a CPU, where the time goes: in which kernels, and outside of them, for many
   streams and for one.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from measurements import save
from waitinfo.model import SIZES, IntegerModel, ModelConfig, Network, Transformer
from waitinfo.model.integers.conversion import IntegerLayer
from waitinfo.model.integers.in_torch import in_torch
from waitinfo.model.integers.matrix import IntegerMatrix
from waitinfo.model.integers.measuring import with_integers
from waitinfo.model.native import NativeModel
from waitinfo.model.native.weights import weight_memory
from waitinfo.streaming.engine import WRITE, Engine, new_engine
from waitinfo.streaming.engine.plain import PlainBackend
from waitinfo.streaming.recorded import RecordedBackend
from waitinfo.streaming.recorded.memory import WRITTEN
from waitinfo.systems import System, build_system
from waitinfo.text.special import BOS, EOS, PAD
from waitinfo.trained.folder import find_model
from waitinfo.trained.saving import load_model

VOCABULARY = 16_000  # also of the bundled model
BUNDLED = "bundled"
LENGTHS = (10, 50, 100, 200)
STREAMS = (1, 8, 32, 128)


class Uncached:
    """Decoding that recomputes the whole prefix at every step, as published implementations do."""

    def __init__(self, model: Network) -> None:
        self.model = in_torch(model)

    def _row(self, tokens: list[int]) -> torch.Tensor:
        return torch.tensor([tokens], device=self.model.device)

    @torch.inference_mode()
    def step(self, read: list[int], written: list[int], path: list[int]) -> int:
        """The best next token."""
        model = self.model
        encoded = model.encode(model.embed_source(self._row(read)), self._row([len(read)])[0])
        target = model.embed_target(self._row([BOS, *written]))
        decoded = model.decode(target, encoded, self._row(path))
        logits = model.logits(decoded.states[:, -1])
        logits[:, [PAD, BOS]] = -torch.inf
        return int(logits.argmax(-1))


def uncached_sentence(model: Network, source: list[int], k: int, count: int, reads: bool) -> None:
    """Wait-k without caches. With `reads`, every READ also recomputes everything, to decide."""
    reference = Uncached(model)
    tokens, written, path = [*source, EOS], [], []
    read = 0
    while len(written) < count:
        if read < min(k + len(written), len(tokens)):
            read += 1
            if reads:
                reference.step(tokens[:read], written, [*path, read])
            continue
        path.append(read)
        written.append(reference.step(tokens[:read], written, path))


def native_model(model: Network) -> NativeModel | None:
    """The layers of a model in compiled code, if there are any."""
    return model.native if isinstance(model, IntegerModel) else None


def build(size: str, device: str, dtype: str) -> Network:
    if size == BUNDLED:
        return load_model(find_model(None), device, dtype).model
    torch.manual_seed(0)
    config = ModelConfig(VOCABULARY, VOCABULARY, **SIZES[size], info="attention")
    model = Transformer(config)
    if dtype == "int8":
        return with_integers(model)
    return model.to(device, getattr(torch, dtype)).eval()


def make_engine(model: Network, system: System, slots: int, capacity: int) -> Engine:
    """The fastest engine for the model's device. Random weights loop, which is not cut here."""
    Engine.cuts_loops = False
    return new_engine(model, system, slots, capacity, "guard", 8192)


def pretend_written(engine: Engine, slot: int, count: int) -> None:
    """Let an engine go on as if so many target tokens were written."""
    engine.state.written[slot] = count
    if isinstance(engine.backend, RecordedBackend):
        engine.backend.steps.state.counts[slot, WRITTEN] = count


def sentence(draw: random.Random, length: int) -> list[int]:
    return [draw.randrange(4, VOCABULARY) for _ in range(length)]


def clock(model: Network) -> float:
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def step_costs(
    model: Network, repeats: int
) -> tuple[dict[str, dict[int, float]], dict[str, float]]:
    """Median milliseconds of a READ and of a WRITE, by the number of tokens read before.

    Beside them, the lower bound of both: reading each of their matrices once.
    """
    draw = random.Random(1)
    system = build_system("wait-k", {"k": 1})
    costs: dict[str, dict[int, list[float]]] = {"READ": {}, "WRITE": {}}
    weights, readings = weights_like(model), []
    engine = make_engine(model, system, 1, max(LENGTHS) + 8)
    slot = engine.open(1)
    for _ in range(repeats):
        for length in LENGTHS:  # interleaved, so that other load affects all lengths
            engine.reset(slot, 10_000)  # never writes by itself
            engine.feed(slot, sentence(draw, length))
            engine.run()
            for _ in range(3):
                engine.feed(slot, sentence(draw, 1))
                began = clock(model)
                engine.run()
                costs["READ"].setdefault(length, []).append(clock(model) - began)
            # Pretend that nearly as many tokens are written as read, then time single WRITEs.
            pretend_written(engine, slot, length)
            engine.set_dial(slot, 1)
            for _ in range(3):
                began = clock(model)
                written = sum(event.kind == WRITE for event in engine.advance())
                seconds = clock(model) - began
                if written == 1:  # not refused, as end-of-sentence is before the source's end
                    costs["WRITE"].setdefault(length, []).append(seconds)
            for _ in range(3):
                began = clock(model)
                weights.sum()
                readings.append(clock(model) - began)
    medians = {
        kind: {length: 1000 * statistics.median(times) for length, times in by_length.items()}
        for kind, by_length in costs.items()
    }
    return medians, lower_bound(model, medians, readings)


def engine_sentence(model: Network, engine: Engine, source: list[int], count: int) -> None:
    """Translate a sentence with the engine, which gets one token at a time."""
    slot = engine.open(3)
    written = 0
    for token in source:
        engine.feed(slot, [token])
        written += sum(event.kind == WRITE for event in engine.run())
    engine.feed(slot, [], complete=True)
    while written < count and engine.busy:
        written += sum(event.kind == WRITE for event in engine.advance())
    engine.close(slot)


def against_uncached(model: Network, sentences: int) -> dict[str, float]:
    """Time a sentence of 40 words (56 tokens, 50 written) with the engine and without caches."""
    draw = random.Random(2)
    engine = make_engine(model, build_system("wait-k", {"k": 3}), 1, 64)
    seconds: dict[str, list[float]] = {"engine": [], "every_step": [], "every_write": []}
    for _ in range(sentences):
        source = sentence(draw, 56)
        for name, run in (
            ("engine", lambda s=source: engine_sentence(model, engine, s, 50)),
            ("every_step", lambda s=source: uncached_sentence(model, s, 3, 50, True)),
            ("every_write", lambda s=source: uncached_sentence(model, s, 3, 50, False)),
        ):
            began = clock(model)
            run()
            seconds[name].append(clock(model) - began)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return medians | {
        "ratio_every_step": medians["every_step"] / medians["engine"],
        "ratio_every_write": medians["every_write"] / medians["engine"],
    }


def fill(model: Network, streams: int) -> tuple[Engine, list[int], random.Random]:
    """An engine whose streams are at different positions in their sentences."""
    draw = random.Random(3)
    engine = make_engine(model, build_system("wait-k", {"k": 3}), streams, 128)
    slots = [engine.open(3) for _ in range(streams)]
    for slot in slots:
        engine.feed(slot, sentence(draw, draw.randint(3, 25)))
    engine.run()
    return engine, slots, draw


def throughput(model: Network, rounds: int) -> dict[int, dict[str, float]]:
    """Target tokens per second with many streams, each of which gets one token per round."""
    results = {}
    for streams in STREAMS:
        engine, slots, draw = fill(model, streams)
        count = 0
        began = clock(model)
        for _ in range(rounds):
            for slot in slots:
                engine.feed(slot, sentence(draw, 1))
            count += sum(event.kind == WRITE for event in engine.run())
        seconds = clock(model) - began
        results[streams] = {"tokens_per_second": count / seconds, "written": count}
    one = results[1]["tokens_per_second"]
    for result in results.values():
        result["ratio"] = result["tokens_per_second"] / one
    return results


@contextmanager
def timed_kernels(model: Network) -> Iterator[dict[str, list[float]]]:
    """Seconds of every call of a kernel, by its name."""
    native = native_model(model)
    assert native is not None
    code, spent = native.code, defaultdict[str, list[float]](list)
    call = code.call

    def timed(name: str, *arguments: object) -> None:
        began = time.perf_counter()
        call(name, *arguments)
        spent[name.removeprefix("waitinfo_")].append(time.perf_counter() - began)

    code.call = timed  # type: ignore[method-assign]
    try:
        yield spent
    finally:
        del code.call  # the method is there again


def shares(model: Network, rounds: int) -> dict[int, dict[str, float]]:
    """Shares of the time of a round that its kernels take, and that the rest takes."""
    found = {}
    for streams in STREAMS:
        engine, slots, draw = fill(model, streams)
        with timed_kernels(model) as spent:
            began = time.perf_counter()
            for _ in range(rounds):
                for slot in slots:
                    engine.feed(slot, sentence(draw, 1))
                engine.run()
            total = time.perf_counter() - began
        found[streams] = {name: sum(times) / total for name, times in spent.items()}
        found[streams]["rest"] = 1 - sum(found[streams].values())
    return found


def kernel_costs(model: Network, repeats: int) -> dict[str, float]:
    """Median microseconds of each kernel for one row after 50 tokens, in turn."""
    native, draw = native_model(model), random.Random(5)
    engine = make_engine(model, build_system("wait-k", {"k": 1}), 1, 64)
    assert native is not None and isinstance(engine.backend, PlainBackend)
    back = engine.backend
    slot = engine.open(1)
    engine.feed(slot, sentence(draw, 51))
    engine.run()
    states = back.source_positions[:1].copy()
    info, bias = np.ones(1, np.float32), np.zeros((1, 51), np.float32)
    row, at, seen = (np.array([number], np.int32) for number in (slot, 50, 51))
    tokens, place = np.array([sentence(draw, 1)]), np.array([[50]])
    with timed_kernels(model) as spent:
        for _ in range(repeats):
            model.embed_source(tokens, place, back.source_positions)
            native.encode(states.copy(), row, at, info, back.source_caches, back.memory)
            native.decode(states.copy(), row, at, seen, info, bias, back.target_caches, back.memory)
            native.best(states, False)
    return {name: 1e6 * statistics.median(times) for name, times in spent.items()}


def release_times(model: Network, streams: int, words: int) -> dict[str, float]:
    """Milliseconds from the arrival of a word (1.4 tokens) to the last word that it releases."""
    draw = random.Random(4)
    system = build_system("wait-k", {"k": 3})
    engine = make_engine(model, system, streams, 160)
    slots = [engine.open(3) for _ in range(streams)]
    for slot in slots:
        engine.feed(slot, sentence(draw, draw.randint(5, 40)))
    engine.run()
    times = []
    for _ in range(words):
        for slot in slots:
            engine.feed(slot, sentence(draw, 1 + (draw.random() < 0.4)))
        began = clock(model)
        last = dict.fromkeys(slots, 0.0)
        while events := engine.advance():
            now = clock(model) - began
            for event in events:
                last[event.slot] = now
        times += last.values()
    times.sort()
    return {
        "median_ms": 1000 * statistics.median(times),
        "p95_ms": 1000 * times[int(0.95 * (len(times) - 1))],
    }


def weight_bytes(model: Network) -> tuple[int, int]:
    """Bytes of the matrices that a READ and a WRITE multiply with."""
    sizes = {"scores": model.config.target_vocabulary * model.config.width}
    if isinstance(model, IntegerModel):
        assert model.parts.memory is not None
        read = sum(map(layer_bytes, model.parts.encoder)) + model.parts.memory.project.size
        return read, sum(map(layer_bytes, model.parts.decoder)) + sizes["scores"]
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            sizes[name] = module.weight.nbytes
    sizes["scores"] *= model.target_embedding.weight.element_size()
    layers = {name: size for name, size in sizes.items() if "info" not in name}
    # Keys and values of the source for the decoder are made at a READ.
    read = [n for n in layers if n.startswith("encoder") or "cross.project" in n]
    return sum(layers[n] for n in read), sum(layers[n] for n in layers if n not in read)


def layer_bytes(layer: IntegerLayer) -> int:
    """Bytes of the matrices of a layer."""
    parts = [layer.attention, layer.feed_forward, *([layer.cross] if layer.cross else [])]
    matrices = [matrix for part in parts for matrix in vars(part).values()]
    return sum(matrix.size for matrix in matrices if isinstance(matrix, IntegerMatrix))


def weights_like(model: Network) -> torch.Tensor:
    """As many bytes as a READ and a WRITE multiply with, in the same kind of memory."""
    numbers = torch.ones(sum(weight_bytes(model)) // 4, device=str(model.device))
    if native_model(model) is not None:
        numbers = torch.from_numpy(weight_memory(numbers.nbytes).view(np.float32))
        numbers.fill_(1)
    return numbers


def lower_bound(
    model: Network, costs: dict[str, dict[int, float]], readings: list[float]
) -> dict[str, float]:
    """What reading the weights takes, and how many times as long a READ and a WRITE take."""
    read, write = weight_bytes(model)
    speed, best = (
        (read + write) / seconds for seconds in (statistics.median(readings), min(readings))
    )
    both = (costs["READ"][50] + costs["WRITE"][50]) / 1000
    return {
        "gigabytes_per_second": speed / 1e9, "best_gigabytes_per_second": best / 1e9,
        "read_megabytes": read / 1e6, "write_megabytes": write / 1e6,
        "read_ms": 1000 * read / speed, "write_ms": 1000 * write / speed,
        "ratio": both * speed / (read + write), "ratio_to_best": both * best / (read + write),
    }  # fmt: skip


def show(title: str, rows: list[str]) -> None:
    print(f"\n{title}")
    for row in rows:
        print(f"  {row}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="base", choices=[*SIZES, BUNDLED])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--quick", action="store_true", help="few repeats, to check that it runs")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    model = build(options.size, options.device, options.dtype)
    few = options.quick
    results: dict[str, Any] = {
        "size": options.size, "device": options.device, "dtype": options.dtype,
        "threads": torch.get_num_threads(), "torch": torch.__version__,
    }  # fmt: skip
    print(f"{options.size}, {options.dtype} on {options.device}, {results['threads']} threads")

    costs, bound = step_costs(model, 2 if few else 12)
    results["step_ms"], results["weights"] = costs, bound
    show("1. milliseconds by source length", [
        f"{kind}: " + ", ".join(f"{n}: {ms:.2f}" for n, ms in by_length.items())
        + f"; 200 takes {by_length[200] / by_length[10]:.2f} times as long as 10"
        for kind, by_length in costs.items()
    ])  # fmt: skip

    results["uncached"] = found = against_uncached(model, 1 if few else 5)
    show("2. a sentence of 40 words, word by word", [
        f"engine {found['engine']:.2f} s",
        f"recomputing at every READ and WRITE {found['every_step']:.2f} s: "
        f"{found['ratio_every_step']:.1f} times as long",
        f"recomputing at every WRITE {found['every_write']:.2f} s: "
        f"{found['ratio_every_write']:.1f} times as long",
    ])  # fmt: skip

    show("   lower bound for one stream", [
        f"a READ reads {bound['read_megabytes']:.0f} MB of weights, a WRITE "
        f"{bound['write_megabytes']:.0f} MB: {bound['read_ms']:.2f} and {bound['write_ms']:.2f} ms "
        f"at {bound['gigabytes_per_second']:.0f} GB/s; both together took {bound['ratio']:.2f} "
        f"times that, and {bound['ratio_to_best']:.2f} times the fastest reading",
    ])  # fmt: skip

    results["throughput"] = streams = throughput(model, 3 if few else 30)
    system = build_system("wait-k")
    per_stream = make_engine(model, system, 1, 256).bytes_per_slot
    results["bytes_per_stream"] = per_stream
    show("3. target tokens per second", [
        f"{n} streams: {r['tokens_per_second']:.0f}, {r['ratio']:.1f} times one stream"
        for n, r in streams.items()
    ] + [f"memory per stream of 256 source tokens: {per_stream / 2**20:.1f} MiB"])  # fmt: skip

    results["release_ms"] = {n: release_times(model, n, 5 if few else 60) for n in (1, 32)}
    show("4. milliseconds from a word to the words that it releases", [
        f"{n} streams: median {r['median_ms']:.1f}, 95th percentile {r['p95_ms']:.1f}"
        for n, r in results["release_ms"].items()
    ])  # fmt: skip
    if native_model(model) is not None:
        results["shares"] = shares(model, 3 if few else 30)
        show("5. where the time goes", [
            f"{n} streams: " + ", ".join(f"{name} {share:.0%}" for name, share in found.items())
            for n, found in results["shares"].items()
        ])  # fmt: skip
        results["kernel_us"] = kernels = kernel_costs(model, 5 if few else 60)
        show("   microseconds of kernels for one row", [
            ", ".join(f"{name} {cost:.0f}" for name, cost in kernels.items())
        ])  # fmt: skip
    save(options.out, results)


if __name__ == "__main__":
    main()
