"""Translate text in bulk on a GPU: `python experiments/translate_bulk.py MODEL OUT FILE …`.

For back-translation: MODEL is a full-sentence model, and every FILE (one sentence a line, plain or
compressed) becomes OUT/NAME.0000.xz, OUT/NAME.0001.xz, …, the translations of its lines in order,
CHUNK lines each. A chunk that exists is not made again, so the same command continues. Lines that
are too long for the model become empty lines.

Thousands of sentences of similar length are written together, each by its best token at every
step, or with --sample N by one drawn from the N best.
"""

from __future__ import annotations

import argparse
import json
import lzma
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor

from waitinfo.model.attention import CachePosition
from waitinfo.model.batch import pad_sources
from waitinfo.model.cache import Rows
from waitinfo.model.saving import load_model
from waitinfo.model.transformer import Transformer
from waitinfo.text.files import normalise, read_lines
from waitinfo.text.special import BOS, EOS, PAD
from waitinfo.text.tokenizer import Vocabulary

AHEAD = 2  # chunks tokenized before they are needed
LOOK = 8  # steps between looks at how many sentences have ended
LONGEST = 250  # source tokens


@dataclass(frozen=True)
class Options:
    rows: int = 4096  # sentences at a time
    tokens: int = 262_144  # and their source tokens, with padding
    sample: int = 0
    temperature: float = 1.0


def limit(source: int) -> int:
    """Most tokens written for so many source tokens."""
    return int(1.5 * source) + 10


def batches(lengths: list[int], options: Options) -> Iterator[list[int]]:
    """Indices of sentences of similar length, the longest first."""
    order = sorted(
        (i for i, n in enumerate(lengths) if 0 < n <= LONGEST), key=lambda i: -lengths[i]
    )
    while order:
        count = max(1, min(options.rows, options.tokens // (lengths[order[0]] + 1)))
        yield order[:count]
        order = order[count:]


@torch.inference_mode()
def write(model: Transformer, sources: list[list[int]], options: Options) -> list[list[int]]:
    """Translations of sources, as tokens."""
    device = model.device
    padded, lengths = (tensor.to(device) for tensor in pad_sources(sources))
    encoded = model.encode(model.embed_source(padded), lengths)
    most = limit(padded.shape[1])
    caches = model.new_caches(model.config.decoder_layers, len(sources), most + LOOK)
    written = torch.full((len(sources), most + 1), EOS, device=device)
    written[:, 0] = BOS
    alive = torch.arange(len(sources), device=device)
    rows, visible = Rows.of(range(len(alive)), device), lengths[:, None]
    for done in range(most):
        at = torch.full((len(alive), 1), done, device=device)
        position = CachePosition(rows, at, (done // LOOK + 1) * LOOK)
        target = model.embed_target(written[alive, done][:, None], at)
        states = model.step(target, encoded, visible, caches, position).states[:, -1]
        tokens = choose(model.logits(states).float(), options)
        ended = written[alive, done] == EOS
        written[alive, done + 1] = tokens.masked_fill(ended, EOS)
        if done % LOOK == LOOK - 1:
            open_ = (~(ended | (tokens == EOS))).nonzero()[:, 0]
            if not len(open_):
                break
            if len(open_) < 0.8 * len(alive):
                alive, visible = alive[open_], visible[open_]
                encoded = encoded.select(open_)
                rows = Rows.of(range(len(alive)), device)
                for cache in caches:
                    cache.reorder(open_)
    return [row[: row.index(EOS)] if EOS in row else row for row in written[:, 1:].tolist()]


def choose(logits: Tensor, options: Options) -> Tensor:
    logits[:, [PAD, BOS]] = -torch.inf
    if not options.sample:
        return logits.argmax(-1)
    best, tokens = (logits / options.temperature).topk(options.sample)
    drawn = torch.multinomial(best.softmax(-1), 1)
    return tokens.gather(1, drawn)[:, 0]


def save(out: Path, folder: Path, found: list[list[int]]) -> None:
    """Write a chunk under its final name only when it is complete."""
    vocabulary = Vocabulary.load(folder)
    partial = out.with_name(f".{out.name}")
    with lzma.open(partial, "wt", encoding="utf-8", preset=6) as stream:
        stream.writelines(f"{vocabulary.target.decode(tokens)}\n" for tokens in found)
    partial.rename(out)


def chunks(files: list[Path], out: Path, size: int) -> Iterator[tuple[Path, list[str]]]:
    """Chunks of lines that are not translated yet."""
    for file in files:
        lines = read_lines(file)
        name = file.name.split(".")[0]
        number = 0
        while chunk := list(islice(lines, size)):
            if not (path := out / f"{name}.{number:04d}.xz").exists():
                yield path, chunk
            number += 1


def tokenize(folder: Path, lines: list[str]) -> list[list[int]]:
    texts = [normalise(line) for line in lines]
    return Vocabulary.load(folder).source.encode_many(texts, threads=1)


def ahead(
    pool: ProcessPoolExecutor, folder: Path, given: Iterator[tuple[Path, list[str]]]
) -> Iterator[tuple[Path, list[list[int]]]]:
    """Tokenized chunks: others are prepared while one is translated."""
    waiting: deque[tuple[Path, Future[list[list[int]]]]] = deque()
    for path, lines in given:
        waiting.append((path, pool.submit(tokenize, folder, lines)))
        if len(waiting) > AHEAD:
            yield _result(*waiting.popleft())
    for entry in waiting:
        yield _result(*entry)


def _result(path: Path, job: Future[list[list[int]]]) -> tuple[Path, list[list[int]]]:
    return path, job.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", help="[default: bfloat16]")
    parser.add_argument("--sample", type=int, default=0, help="draw from the N best; 0: the best")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--rows", type=int, default=Options.rows)
    parser.add_argument("--tokens", type=int, default=Options.tokens)
    parser.add_argument("--chunk", type=int, default=100_000, help="lines in a file [100,000]")
    parser.add_argument("--jobs", type=int, help="processes that read and write text")
    parser.add_argument("--minutes", type=float, default=0, help="start no chunk after this time")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    options = Options(given.rows, given.tokens, given.sample, given.temperature)
    loaded = load_model(given.model, device=given.device, dtype=given.dtype)
    given.out.mkdir(parents=True, exist_ok=True)
    began, saved = time.monotonic(), []
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        todo = chunks(given.files, given.out, given.chunk)
        for path, sources in ahead(pool, loaded.folder, todo):
            if given.minutes and time.monotonic() - began > 60 * given.minutes:
                break
            start = time.monotonic()
            found = translate(loaded.model, sources, options)
            saved.append(pool.submit(save, path, loaded.folder, found))
            report(path, found, time.monotonic() - start)
        for job in saved:
            job.result()


def translate(model: Transformer, sources: list[list[int]], options: Options) -> list[list[int]]:
    """Translations of tokenized sentences, in their order."""
    found: list[list[int]] = [[] for _ in sources]
    for indices in batches(list(map(len, sources)), options):
        written = write(model, [sources[i] for i in indices], options)
        for index, tokens in zip(indices, written, strict=True):
            found[index] = tokens
    return found


def report(path: Path, found: list[list[int]], seconds: float) -> None:
    tokens = sum(map(len, found))
    record = {
        "chunk": path.name, "lines": len(found), "tokens": tokens,
              "seconds": round(seconds, 2), "tokens_per_second": round(tokens / seconds),
    }  # fmt: skip
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
