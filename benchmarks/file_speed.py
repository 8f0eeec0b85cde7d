"""Speed of whole files: python benchmarks/file_speed.py [--device cuda] [--beam 4] [--rows 4096]

Translates a file from beginning to end, as `waitinfo translate --input --out` does: reading,
tokenizing, searching, joining words and writing. The model has random weights of a given size and
vocabulary, and searches whole sentences. Random weights do not know where to end, so the length of
every translation is set: that of its source, changed at random as much as in Europarl.

Without --text, the sentences are random words whose numbers of tokens are distributed as in
Europarl, with a mean of 28. With --text, they are the first lines of a file, each one sentence.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from measurements import save
from waitinfo.model import SIZES, ModelConfig, Network, Transformer
from waitinfo.model.integers.measuring import with_integers
from waitinfo.streaming.engine import Engine
from waitinfo.streaming.engine.plain import PlainBackend
from waitinfo.systems import build_system
from waitinfo.text.files import read_lines
from waitinfo.text.special import EOS, SPECIALS
from waitinfo.text.tokenizer import SOURCE_FILE, Tokenizer, Vocabulary
from waitinfo.trained.folder import find_model
from waitinfo.trained.saving import LoadedModel
from waitinfo.translation.decoding import TranslationOptions
from waitinfo.translation.file_translation import translate_file
from waitinfo.translation.search import Search

MEAN = 28  # tokens of a sentence
# Lengths in Europarl (German, joint BPE) divided by their mean: the 0th, 5th, … 100th percentile.
LENGTHS = (
    0.060, 0.269, 0.358, 0.448, 0.507, 0.597, 0.657, 0.687, 0.746, 0.806, 0.896, 0.955, 1.015,
    1.105, 1.194, 1.314, 1.433, 1.582, 1.761, 2.120, 4.150,
)  # fmt: skip
SPREAD = 0.19  # standard deviation of log(target length / source length) in Europarl


class WideTokenizer(Tokenizer):
    """The bundled tokenizer for a larger vocabulary: further tokens stand for earlier ones."""

    def decode_many(self, sentences: Iterable[Iterable[int]], threads: int = -1) -> list[str]:
        own = len(self) - SPECIALS
        folded = [[SPECIALS + (t - SPECIALS) % own for t in tokens] for tokens in sentences]
        return super().decode_many(folded, threads)


def build(size: str, vocabulary: int, device: str, dtype: str) -> LoadedModel:
    torch.manual_seed(0)
    config = ModelConfig(vocabulary, vocabulary, **SIZES[size], encoder="bidirectional")
    model = Transformer(config).eval()
    network = with_integers(model) if dtype == "int8" else model.to(device, getattr(torch, dtype))
    folder = find_model(None)
    tokenizer = WideTokenizer((folder / SOURCE_FILE).read_bytes())
    return LoadedModel(network, build_system("full"), Vocabulary(tokenizer, tokenizer), folder)


_lengths: dict[tuple[int, ...], int] = {}


def wanted_length(source: Sequence[int]) -> int:
    """The length of a translation, with end-of-sentence; the same for the same source.

    Lengths are drawn before the clock starts, where they are needed first.
    """
    key = tuple(source)
    if key not in _lengths:
        seed = zlib.crc32(np.asarray(source, np.int64).tobytes())
        factor = np.exp(SPREAD * np.random.default_rng(seed).standard_normal())
        _lengths[key] = max(1, round((len(source) + 1) * factor))
    return _lengths[key]


def set_lengths() -> None:
    """Let every search, and the engine, end its translations at the wanted lengths."""
    start, keep, restrict = Search.__init__, Search.keep, Search.restrict

    def start_wanted(
        self: Any, model: Network, sources: Sequence[Sequence[int]], copies: int, *others: Any
    ) -> None:
        start(self, model, sources, copies, *others)
        wanted = [wanted_length(source) for source in sources for _ in range(copies)]
        self.wanted = torch.tensor(wanted).to(self.model.device)

    def keep_wanted(self: Any, index: torch.Tensor | None) -> None:
        keep(self, index)
        if index is not None:
            self.wanted = self.wanted[index]

    def restrict_wanted(self: Any, logits: torch.Tensor) -> torch.Tensor:
        logits = restrict(self, logits)
        ends = self.wanted <= self.written
        logits[:, EOS] = torch.where(ends, 1e4, -1e4).to(logits.dtype)
        return logits

    compute = PlainBackend._compute

    def compute_wanted(self: Any, rows: Any, state: Any, *given: Any) -> Any:
        found, slots = compute(self, rows, state, *given), self.slots
        sources = [slots.sources[s, : slots.length[s] - 1].tolist() for s in rows.tolist()]
        ends = state.written + 1 >= np.array([wanted_length(source) for source in sources])
        tokens = np.where(np.array(found.tokens) == EOS, SPECIALS, found.tokens)
        return found._replace(tokens=np.where(ends, EOS, tokens).tolist())

    Engine.cuts_loops = False  # random weights loop
    PlainBackend._compute = compute_wanted  # type: ignore[method-assign]
    Search.__init__ = start_wanted  # type: ignore[method-assign]
    Search.keep = keep_wanted  # type: ignore[method-assign]
    Search.restrict = restrict_wanted  # type: ignore[method-assign]


def generated(tokenizer: Tokenizer, count: int) -> list[str]:
    """Random words in sentences of Europarl's lengths."""
    draw = np.random.default_rng(1)
    words = [t for t in range(SPECIALS, len(tokenizer)) if tokenizer.starts_word(t)]
    positions = np.linspace(0, 1, len(LENGTHS))
    lengths = MEAN * np.interp(draw.random(count), positions, LENGTHS)
    lengths = np.maximum(1, np.round(lengths * MEAN / lengths.mean())).astype(int)
    flat = draw.choice(words, int(lengths.sum())).tolist()
    ends = np.cumsum(lengths).tolist()
    starts = [0, *ends[:-1]]
    return tokenizer.decode_many(flat[a:b] for a, b in zip(starts, ends, strict=True))


def measure(
    loaded: LoadedModel, lines: list[str], beam: int, rows: int | None
) -> dict[str, float | int | None]:
    tokenizer = loaded.vocabulary.source
    encoded = tokenizer.encode_many(lines)
    tokens = sum(wanted_length(source[:255]) for source in encoded)
    if loaded.model.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "source", Path(folder) / "out"
        source.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        options = TranslationOptions(beam=beam, segment="whole")
        began = time.perf_counter()
        translate_file(loaded, source, out, options, rows=rows)
        seconds = time.perf_counter() - began
        found = out.read_bytes().split(b"\n")
        assert len(found) == len(lines) + 1
    result: dict[str, float | int | None] = {
        "beam": beam, "rows": rows, "lines": len(lines), "seconds": seconds,
        "mean_source_tokens": sum(map(len, encoded)) / len(encoded),
        "lines_per_second": len(lines) / seconds, "tokens_per_second": tokens / seconds,
        "minutes_for_a_million_lines": 1e6 / len(lines) * seconds / 60,
    }  # fmt: skip
    if loaded.model.device.type == "cuda":
        result["gigabytes"] = torch.cuda.max_memory_allocated() / 1e9
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="base", choices=SIZES)
    parser.add_argument("--vocabulary", type=int, default=16_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default=None, help="default: int8 on a CPU, bfloat16 on a GPU")
    parser.add_argument("--beam", default="1", help="one or more, for example 1,4")
    parser.add_argument("--rows", default=None, help="one or more, for example 2048,4096")
    parser.add_argument("--lines", type=int, default=None, help="default: 500, on a GPU 200,000")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    on_gpu = options.device.startswith("cuda")
    dtype = options.dtype or ("bfloat16" if on_gpu else "int8")
    loaded = build(options.size, options.vocabulary, options.device, dtype)
    count = options.lines or (200_000 if on_gpu else 500)
    if options.text:
        lines = list(itertools.islice(read_lines(options.text), count))
    else:
        lines = generated(loaded.vocabulary.source, count)
    set_lengths()
    measure(loaded, lines[: min(count, 20 if not on_gpu else 20_000)], 1, None)  # warm up
    print(f"{options.size}, {dtype} on {options.device}, {len(lines):,} lines")
    results: list[dict[str, Any]] = []
    for beam in map(int, options.beam.split(",")):
        for rows in options.rows.split(",") if options.rows else [None]:
            found = measure(loaded, lines, beam, None if rows is None else int(rows))
            results.append(found)
            print(
                f"  beam {beam}, rows {rows or 'by the device'}: "
                f"{found['lines_per_second']:,.0f} lines and "
                f"{found['tokens_per_second']:,.0f} tokens a second, "
                f"a million lines in {found['minutes_for_a_million_lines']:.1f} minutes"
                + (f", {found['gigabytes']:.1f} GB" if on_gpu else ""),
                flush=True,
            )
    save(options.out, {
        "size": options.size, "vocabulary": options.vocabulary, "device": options.device,
        "dtype": dtype, "threads": options.threads, "torch": torch.__version__,
        "text": options.text.name if options.text else None, "results": results,
    })  # fmt: skip


if __name__ == "__main__":
    main()
