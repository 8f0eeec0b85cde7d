"""Prepared corpora: joined, swapped, packed for a journey; preparing again takes longer."""

from __future__ import annotations

import json
import lzma
import shutil
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from waitinfo.text.corpus import MANIFEST, ORIGINS, Corpus, Split

SIDES = ("source", "target")
COPIES = ("copies", "dropped_copies")
TOKENIZERS = ("tokenizer.model", "tokenizer.target.model")
PAIRS = 100_000  # compressed together
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 3, "lp": 1, "pb": 1}]  # 16-bit numbers
Sentences = tuple[np.ndarray, np.ndarray]  # concatenated tokens, and the length of each sentence


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder that takes its name when it is complete."""
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    partial.rename(out)


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    (folder / MANIFEST).write_text(text, "utf-8")


def write_shard(folder: Path, name: str, sources: Sentences, targets: Sentences) -> dict[str, Any]:
    """Write tokens of both sides, alternating, as `Split` reads them; the manifest's entry."""
    lengths = np.stack([sources[1], targets[1]], 1).ravel()
    offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.int64)
    flat = np.empty(offsets[-1], np.uint16)
    of_source = np.repeat(np.arange(len(lengths)) % 2 == 0, lengths)
    flat[of_source], flat[~of_source] = sources[0], targets[0]
    np.save(folder / f"{name}.tokens.npy", flat)
    np.save(folder / f"{name}.offsets.npy", offsets)
    return {"name": name, "pairs": len(lengths) // 2}


# Several corpora as one


def check_alike(first: Corpus, other: Corpus) -> None:
    for name in TOKENIZERS:
        paths = [corpus.folder / name for corpus in (first, other)]
        if len({path.read_bytes() if path.exists() else b"" for path in paths}) > 1:
            sys.exit(f"{other.folder}: its vocabulary is not that of {first.folder}")
    if first.languages != other.languages:
        sys.exit(f"{other.folder}: its languages are not those of {first.folder}")


def add_shards(corpora: list[Corpus], out: Path) -> list[dict[str, Any]]:
    """Copy the training shards; their entries in the manifest."""
    shards: list[dict[str, Any]] = []
    for corpus in corpora:
        for shard in corpus.manifest["splits"]["train"]["shards"]:
            name = f"train-{len(shards):05d}"
            for kind in ("tokens", "offsets"):
                shutil.copyfile(
                    corpus.folder / f"{shard['name']}.{kind}.npy", out / f"{name}.{kind}.npy"
                )
            shards.append({"name": name, "pairs": shard["pairs"]})
    return shards


def sum_counts(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def join(out: Path, folders: list[Path]) -> None:
    """Several corpora as one; dev text, options and inputs are those of the first."""
    corpora = [Corpus(folder) for folder in folders]
    first = corpora[0]
    for other in corpora[1:]:
        check_alike(first, other)
    others = [corpus.manifest for corpus in corpora[1:]]
    entries = [corpus.manifest["splits"]["train"] for corpus in corpora]
    with new_folder(out) as partial:
        for path in first.folder.iterdir():
            if not path.name.startswith("train-"):
                shutil.copyfile(path, partial / path.name)
        for side in SIDES:
            counts = sum(corpus.token_counts(side) for corpus in corpora)
            np.save(partial / f"counts.{side}.npy", counts)
        train = {
            **{key: sum(entry[key] for entry in entries)
               for key in ("pairs", "source_tokens", "target_tokens")},
            "shards": add_shards(corpora, partial),
        }  # fmt: skip
        joined = [
            {k: m[k] for k in ("dropped", "inputs", "options", *COPIES) if k in m} for m in others
        ]
        write_manifest(partial, first.manifest | {
            "splits": {**first.manifest["splits"], "train": train},
            "tagged": sum(corpus.manifest.get("tagged", 0) for corpus in corpora),
            **{key: sum_counts(c.manifest.get(key, {}) for c in corpora) for key in COPIES},
            "joined": joined,
        })  # fmt: skip


# The other direction


def swap_split(split: Split, entry: dict[str, Any], out: Path) -> dict[str, Any]:
    """Write the shards of a split; its entry in the manifest."""
    shards = []
    for number, shard in enumerate(entry["shards"]):
        indices = np.arange(split.starts[number], split.starts[number + 1])
        sides = [split.gather(indices, side) for side in (1, 0)]
        shards.append(write_shard(out, shard["name"], *sides))
    tokens = {"source_tokens": entry["target_tokens"], "target_tokens": entry["source_tokens"]}
    return {**entry, **tokens, "shards": shards}


def swap(corpus: Corpus, out: Path) -> None:
    """Source becomes target and target becomes source, in the same order."""
    manifest = dict(corpus.manifest)
    swapped = dict(zip(SIDES, SIDES[::-1], strict=True))
    with new_folder(out) as partial:
        manifest["splits"] = {
            name: swap_split(getattr(corpus, name), entry, partial)
            for name, entry in manifest["splits"].items()
        }
        for one, other in swapped.items():
            for name in ("dev.{}.txt", "counts.{}.npy"):
                shutil.copyfile(corpus.folder / name.format(one), partial / name.format(other))
        if corpus.origins() is not None:
            shutil.copyfile(corpus.folder / ORIGINS, partial / ORIGINS)
        known, sizes = manifest.get("languages", {}), manifest["vocabulary"]
        manifest["languages"] = {swapped[side]: code for side, code in known.items()}
        manifest["vocabulary"] = {**sizes, "source": sizes["target"], "target": sizes["source"]}
        vocabulary = corpus.vocabulary
        type(vocabulary)(vocabulary.target, vocabulary.source).save(partial)
        write_manifest(partial, manifest)


# To another machine: token ids by rank of frequency take an eighth less room than compressed text.


def by_frequency(folder: Path) -> np.ndarray:
    """Token ids, the most frequent first, whether or not both sides have the same vocabulary."""
    sides = [np.load(folder / f"counts.{side}.npy") for side in SIDES]
    counts = np.zeros(max(map(len, sides)), np.int64)
    for side in sides:
        counts[: len(side)] += side
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
    """PARTS/part0, part1, … of about the given size each, and everything else as rest.tar."""
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
    with new_folder(out) as partial:
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
        write_manifest(partial, manifest)
