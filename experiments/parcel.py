"""A corpus in compressed parts, to bring it to another machine: `python experiments/parcel.py`.

    python experiments/parcel.py pack CORPUS PARTS [--mib 32]
    python experiments/parcel.py unpack PARTS CORPUS

`pack` writes PARTS/part0, PARTS/part1, … with about the given size of compressed tokens each, and
everything else of the corpus as PARTS/rest.tar. Token ids are stored by rank of frequency, which
takes an eighth less room than the compressed text.
"""

from __future__ import annotations

import argparse
import json
import lzma
import shutil
import tarfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from swap import SIDES, Sentences, write_shard

from waitinfo.text.corpus import MANIFEST, Corpus

PAIRS = 100_000  # compressed together
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 3, "lp": 1, "pb": 1}]  # 16-bit numbers


def by_frequency(folder: Path) -> np.ndarray:
    """Token ids, the most frequent first."""
    counts = sum(np.load(folder / f"counts.{side}.npy") for side in SIDES)
    return np.argsort(-counts, kind="stable").astype(np.uint16)


def compress(folder: Path, first: int, out: Path) -> None:
    """Sizes, then lengths and tokens of the sources from `first` on, then of their targets."""
    split = Corpus(folder).train
    tokens = by_frequency(folder)
    ranks = np.empty_like(tokens)
    ranks[tokens] = np.arange(len(tokens), dtype=np.uint16)
    indices = np.arange(first, min(first + PAIRS, len(split)))
    sides = [split.gather(indices, side) for side in (0, 1)]
    with lzma.open(out, "wb", filters=FILTERS) as stream:
        np.save(stream, np.array([len(indices), *(len(flat) for flat, _ in sides)]))
        for flat, lengths in sides:
            np.save(stream, lengths.astype(np.uint16))
            np.save(stream, ranks[flat].astype(">u2"))


def decompress(part: Path, folder: Path, tokens: np.ndarray) -> dict[str, Any]:
    """Write the shard of a part; its entry in the manifest."""
    sides: list[Sentences] = []
    with lzma.open(part, "rb") as stream:
        pairs, *sizes = np.load(stream).tolist()
        for size in sizes:
            lengths = np.load(stream).astype(np.int64)
            sides.append((tokens[np.load(stream).astype(np.uint16)], lengths))
            if (len(lengths), len(sides[-1][0])) != (pairs, size):
                raise SystemExit(f"{part}: damaged")
    return write_shard(folder, f"train-{part.stem}", *sides)


def pack(corpus: Path, out: Path, mib: float) -> None:
    out.mkdir(parents=True)
    with tarfile.open(out / "rest.tar", "w") as tar:
        for path in sorted(corpus.iterdir()):
            if not path.name.startswith("train-"):
                tar.add(path, path.name)
    firsts = range(0, len(Corpus(corpus).train), PAIRS)
    files = [out / f"{first // PAIRS:04d}.xz" for first in firsts]
    with ProcessPoolExecutor() as pool:
        list(pool.map(compress, [corpus] * len(files), firsts, files))
    size, number = 0, 0
    for path in files:
        size += path.stat().st_size
        if size > mib * 2**20:
            size, number = path.stat().st_size, number + 1
        place = out / f"part{number}"
        place.mkdir(exist_ok=True)
        path.rename(place / path.name)


def unpack(parts: Path, out: Path) -> None:
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with tarfile.open(parts / "rest.tar") as tar:
        tar.extractall(partial, filter="data")
    tokens = by_frequency(partial)
    files = sorted(parts.glob("**/*.xz"), key=lambda path: path.name)
    with ProcessPoolExecutor() as pool:
        count = len(files)
        shards = list(pool.map(decompress, files, [partial] * count, [tokens] * count))
    manifest = json.loads((partial / MANIFEST).read_text("utf-8"))
    entry = manifest["splits"]["train"]
    if (found := sum(shard["pairs"] for shard in shards)) != entry["pairs"]:
        raise SystemExit(f"{parts}: {found:,} of {entry['pairs']:,} pairs; parts are missing")
    entry["shards"] = shards
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    (partial / MANIFEST).write_text(text, "utf-8")
    partial.rename(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    packing = verbs.add_parser("pack")
    packing.add_argument("corpus", type=Path)
    packing.add_argument("parts", type=Path)
    packing.add_argument("--mib", type=float, default=32)
    unpacking = verbs.add_parser("unpack")
    unpacking.add_argument("parts", type=Path)
    unpacking.add_argument("corpus", type=Path)
    given = parser.parse_args()
    if given.verb == "pack":
        pack(given.corpus, given.parts, given.mib)
    else:
        unpack(given.parts, given.corpus)


if __name__ == "__main__":
    main()
