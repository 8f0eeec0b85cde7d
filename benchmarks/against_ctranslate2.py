"""Speed beside CTranslate2: python benchmarks/against_ctranslate2.py [--size base] [--out FILE]

Both compute the same shape with 8-bit integers on the same threads, with random weights and
sentences of 40 tokens in and 40 out, one after the other in each repeat. Of waitinfo two ways are
measured:

- files: the whole source is there, and is read before the first word is written, as CTranslate2
  does it;
- words: words of one or two tokens (1.4 on average) come one at a time, and words are written in
  between (wait-3). This pays a pass over the encoder's weights for every word.

With --clients, the public interface is measured on a model folder as well: so many clients of one
AsyncTranslator, each of which pushes its next word as soon as the last one was served.

Needs the extra `bench`. Output: target tokens per second, medians of the repeats, and ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from measurements import save
from waitinfo import AsyncTranslator, load
from waitinfo.model import SIZES, ModelConfig, Transformer
from waitinfo.model.integers.measuring import with_integers
from waitinfo.model.native import KINDS, find_kernels
from waitinfo.streaming.engine import WRITE, Engine
from waitinfo.systems import build_system
from waitinfo.trained.folder import find_model
from waitinfo.trained.saving import load_model

LENGTH = 40  # tokens of a source, and of its translation
NEVER = 10_000.0  # a lag that no source reaches


def words(draw: random.Random, vocabulary: int) -> list[list[int]]:
    """A source as words of one or two tokens."""
    tokens = [draw.randrange(4, vocabulary) for _ in range(LENGTH)]
    found: list[list[int]] = []
    while tokens:
        count = 1 + (draw.random() < 0.4)
        found.append(tokens[:count])
        tokens = tokens[count:]
    return found


class Endless(Engine):
    """Random weights loop, and lengths are fixed."""

    cuts_loops = False


class Ours:
    """The engine with `rows` streams."""

    def __init__(self, model: Transformer, rows: int) -> None:
        self.engine = Endless(model, build_system("wait-k", {"k": 3}), rows, LENGTH + 8)
        self.draw = random.Random(rows)
        self.rows, self.vocabulary = rows, model.config.source_vocabulary

    def run(self, by_word: bool) -> float:
        """Target tokens per second."""
        engine = self.engine
        slots = [engine.open(3 if by_word else NEVER) for _ in range(self.rows)]
        sources = {slot: words(self.draw, self.vocabulary) for slot in slots}
        self.missing = dict.fromkeys(slots, LENGTH)
        began = time.perf_counter()
        while any(sources.values()):
            for slot, rest in sources.items():
                if rest:
                    some = [rest.pop(0)] if by_word else [rest.pop(0) for _ in range(len(rest))]
                    engine.feed(slot, [t for word in some for t in word], complete=not rest)
            while by_word and any(sources.values()) and self._round():
                pass
        while any(self.missing.values()):
            self._round()
        seconds = time.perf_counter() - began
        for slot in slots:
            engine.close(slot)
        return self.rows * LENGTH / seconds

    def _round(self) -> int:
        """The number of tokens read and written by streams that have something left to write."""
        events = self.engine.advance([slot for slot, left in self.missing.items() if left])
        for event in events:
            if event.kind == WRITE:
                self.missing[event.slot] -= 1
        return len(events)


def ctranslate2_model(config: ModelConfig, folder: Path, stored: str | None = None) -> None:
    """Write a model of the same shape, with random weights, in CTranslate2's format."""
    from ctranslate2.specs import TransformerSpec, common_spec

    draw = np.random.default_rng(0)
    width, vocabulary = config.width, config.source_vocabulary
    layers = (config.encoder_layers, config.decoder_layers)
    spec = TransformerSpec.from_config(
        layers, config.heads, pre_norm=False, activation=common_spec.Activation.RELU
    )

    def linear(to: Any, outputs: int, inputs: int) -> None:
        to.weight = (0.05 * draw.standard_normal((outputs, inputs))).astype(np.float32)
        to.bias = np.zeros(outputs, np.float32)

    def norm(to: Any) -> None:
        to.gamma, to.beta = np.ones(width, np.float32), np.zeros(width, np.float32)

    def attention(to: Any, *sizes: int) -> None:
        for part, outputs in zip(to.linear, sizes, strict=True):
            linear(part, outputs, width)
        norm(to.layer_norm)

    embedding = (width**-0.5 * draw.standard_normal((vocabulary, width))).astype(np.float32)
    for side in (spec.encoder, spec.decoder):
        to = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        to.weight = embedding
        side.position_encodings.encodings = draw.standard_normal((512, width)).astype(np.float32)
        for layer in side.layer:
            attention(layer.self_attention, 3 * width, width)
            if side is spec.decoder:
                attention(layer.attention, width, 2 * width, width)
            linear(layer.ffn.linear_0, config.ffn, width)
            linear(layer.ffn.linear_1, width, config.ffn)
            norm(layer.ffn.layer_norm)
    spec.decoder.projection.weight = embedding
    spec.decoder.projection.bias = np.zeros(vocabulary, np.float32)
    names = ["<blank>", "<unk>", "<s>", "</s>", *(f"w{i}" for i in range(4, vocabulary))]
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.validate()
    spec.optimize(quantization=stored)
    spec.save(str(folder))


def theirs(translator: Any, rows: int, vocabulary: int) -> float:
    draw = random.Random(rows)
    sources = [[f"w{draw.randrange(4, vocabulary)}" for _ in range(LENGTH)] for _ in range(rows)]
    began = time.perf_counter()
    found = translator.translate_batch(
        sources, beam_size=1, max_batch_size=rows,
        min_decoding_length=LENGTH, max_decoding_length=LENGTH,
    )  # fmt: skip
    seconds = time.perf_counter() - began
    return sum(len(result.hypotheses[0]) for result in found) / seconds


def clients(text: list[str], count: int, seconds: float) -> float:
    """Target tokens per second with `count` clients of the bundled model."""
    translator = load(streams=count)

    async def client(server: AsyncTranslator, number: int, end: float) -> int:
        written, line = 0, number
        while True:
            async with server.stream() as stream:
                for word in text[line % len(text)].split():
                    written += sum(event.kind == "WRITE" for event in await stream.push(word))
                    if time.perf_counter() > end:
                        return written
                written += sum(event.kind == "WRITE" for event in await stream.finish())
            line += count

    async def everyone() -> float:
        async with AsyncTranslator(translator) as server:
            rates = []
            for duration in (seconds / 4, seconds):  # the first to warm up
                began = time.perf_counter()
                end = began + duration
                done = await asyncio.gather(*(client(server, i, end) for i in range(count)))
                rates.append(sum(done) / (time.perf_counter() - began))
            return rates[-1]

    return asyncio.run(everyone())


def measure(ways: dict[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """The median of each way, measured by turns."""
    for run in ways.values():
        run()
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, run in ways.items():
            found[name].append(run())
    return {name: statistics.median(rates) for name, rates in found.items()}


def main() -> None:
    import ctranslate2

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="base", help="or `bundled`: that model's shape")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", default="1,8,32,128")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clients", default="", help="numbers of clients, such as 1,32,128,256")
    parser.add_argument("--text", type=Path, help="text for the clients, a sentence a line")
    parser.add_argument("--seconds", type=float, default=20, help="for each number of clients")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    if options.size == "bundled":
        config = load_model(find_model(None), "cpu").model.config
    else:
        config = ModelConfig(16_000, 16_000, **SIZES[options.size], info="attention")
    model = with_integers(Transformer(config))
    code = find_kernels()
    results: dict[str, Any] = {
        "size": options.size, "threads": options.threads, "torch": torch.__version__,
        "ctranslate2": ctranslate2.__version__, "kernels": KINDS[code.kind] if code else "none",
        "rows": {},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        ctranslate2_model(config, Path(folder))
        other = ctranslate2.Translator(
            folder, compute_type="int8", inter_threads=1, intra_threads=options.threads
        )
        for rows in [int(number) for number in options.rows.split(",")]:
            ours = Ours(model, rows)
            found = measure({
                "files": lambda ours=ours: ours.run(by_word=False),
                "words": lambda ours=ours: ours.run(by_word=True),
                "ctranslate2": lambda rows=rows: theirs(other, rows, config.source_vocabulary),
            }, options.repeats)  # fmt: skip
            results["rows"][rows] = found
            base = found["ctranslate2"]
            print(
                f"{rows:4} rows: files {found['files']:.0f} ({found['files'] / base:.2f}), words "
                f"{found['words']:.0f} ({found['words'] / base:.2f}), CTranslate2 {base:.0f}",
                flush=True,
            )
        if options.clients:
            text = options.text.read_text("utf-8").splitlines()
            base = measure({"": lambda: theirs(other, 32, config.source_vocabulary)}, 3)[""]
            results["clients"] = {"ctranslate2": base}
            for count in [int(number) for number in options.clients.split(",")]:
                rate = clients(text, count, options.seconds)
                results["clients"][count] = rate
                print(f"{count:4} clients: {rate:.0f} tokens/s, {rate / base:.2f} of {base:.0f}")
    save(options.out, results)


if __name__ == "__main__":
    main()
