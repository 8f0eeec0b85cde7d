"""A prepared corpus: memory-mapped token shards and a `corpus.json` that describes them.

A shard has two arrays: the concatenated tokens of its sentences, source and target alternating, and
the offsets between sentences. Sentence pair i of a shard is `tokens[offsets[2i]:offsets[2i+1]]` and
`tokens[offsets[2i+1]:offsets[2i+2]]`, without special tokens. Tokens are loaded only when they are
used.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from waitinfo.errors import WaitinfoError
from waitinfo.text.files import Pair, read_aligned
from waitinfo.text.languages import Languages
from waitinfo.text.tokenizer import Vocabulary

MANIFEST = "corpus.json"
FORMAT = 1
ORIGINS = "origins.npy"  # where each training pair comes from, if the corpus is a mixture

Ints = npt.NDArray[np.int64]


class ShardWriter:
    """Collects tokenized pairs of a split and writes them in shards of bounded size."""

    def __init__(self, folder: Path, split: str, vocabulary: int, shard_bytes: int) -> None:
        self.folder, self.split = folder, split
        self.dtype = np.dtype(np.uint16 if vocabulary <= 1 << 16 else np.int32)
        self.limit = max(1, shard_bytes // self.dtype.itemsize)
        self.shards: list[dict[str, Any]] = []
        self.pairs = self.source_tokens = self.target_tokens = 0
        self._clear()

    def _clear(self) -> None:
        self._packed: list[npt.NDArray[Any]] = []  # arrays of tokens, to be concatenated
        self._loose: list[int] = []  # tokens that are not in an array yet
        self._lengths: list[int] = []  # of each sentence, source and target alternating
        self._size = 0

    def add(self, source: list[int], target: list[int]) -> None:
        self._loose += source
        self._loose += target
        self._lengths += (len(source), len(target))
        self._size += len(source) + len(target)
        if len(self._loose) > 1 << 20:  # Python integers take many times the memory
            self._pack()
        self.pairs += 1
        self.source_tokens += len(source)
        self.target_tokens += len(target)
        if self._size >= self.limit:
            self._flush()

    def _pack(self) -> None:
        self._packed.append(np.array(self._loose, self.dtype))
        self._loose = []

    def _flush(self) -> None:
        if not self._lengths:
            return
        self._pack()
        name = f"{self.split}-{len(self.shards):05d}"
        offsets = np.cumsum([0, *self._lengths], dtype=np.int64)
        np.save(self.folder / f"{name}.tokens.npy", np.concatenate(self._packed))
        np.save(self.folder / f"{name}.offsets.npy", offsets)
        self.shards.append({"name": name, "pairs": len(self._lengths) // 2})
        self._clear()

    def close(self) -> dict[str, Any]:
        """Write the remaining pairs; return the manifest entry of the split."""
        self._flush()
        return {
            "pairs": self.pairs,
            "source_tokens": self.source_tokens,
            "target_tokens": self.target_tokens,
            "shards": self.shards,
        }


@dataclass(frozen=True)
class Split:
    """All sentence pairs of one split, indexed from 0 across its shards."""

    tokens: list[npt.NDArray[Any]]
    offsets: list[Ints]
    starts: Ints  # [shards + 1]: index of each shard's first pair
    source_lengths: Ints  # [pairs]
    target_lengths: Ints  # [pairs]

    @classmethod
    def open(cls, folder: Path, entry: dict[str, Any]) -> Split:
        tokens, offsets, counts, sizes = [], [], [0], [np.zeros((0, 2), np.int64)]
        for shard in entry["shards"]:
            try:
                tokens.append(np.load(folder / f"{shard['name']}.tokens.npy", mmap_mode="r"))
                offsets.append(np.load(folder / f"{shard['name']}.offsets.npy"))
            except (OSError, ValueError) as error:
                raise WaitinfoError(f"{folder}: shard {shard['name']}: {error}") from None
            counts.append(shard["pairs"])
            sizes.append(np.diff(offsets[-1]).reshape(-1, 2))
        lengths = np.concatenate(sizes)
        return cls(tokens, offsets, np.cumsum(counts), lengths[:, 0], lengths[:, 1])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def gather(self, indices: Ints, side: int) -> tuple[npt.NDArray[Any], Ints]:
        """Concatenated tokens of the source (side 0) or target (side 1) of pairs, and lengths."""
        shard_of = np.searchsorted(self.starts, indices, side="right") - 1
        lengths = (self.source_lengths, self.target_lengths)[side][indices]
        flat = np.empty(int(lengths.sum()), np.int64)
        ends = np.cumsum(lengths)
        for shard in np.unique(shard_of):
            rows = np.flatnonzero(shard_of == shard)
            first = self.offsets[shard][2 * (indices[rows] - self.starts[shard]) + side]
            read = _ranges(first, lengths[rows])
            write = _ranges(ends[rows] - lengths[rows], lengths[rows])
            flat[write] = self.tokens[shard][read]
        return flat, lengths


def _ranges(starts: Ints, lengths: Ints) -> Ints:
    """Concatenation of arange(start, start + length) over all rows."""
    ends = np.cumsum(lengths)
    return np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(
        starts - ends + lengths, lengths
    )


class Corpus:
    """A folder written by `waitinfo prepare`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text("utf-8"))
        except OSError:
            raise WaitinfoError(
                f"{folder}: not a prepared corpus (no {MANIFEST}); make one with: waitinfo prepare"
            ) from None
        except ValueError as error:
            raise WaitinfoError(f"{folder / MANIFEST}: damaged ({error})") from None
        if self.manifest.get("format") != FORMAT:
            raise WaitinfoError(
                f"{folder}: written by another version of waitinfo; prepare the corpus again"
            )
        self.languages = Languages.read(self.manifest, folder / MANIFEST)
        self.vocabulary = Vocabulary.load(folder)
        self.train = self._split("train")
        self.dev = self._split("dev")

    def _split(self, name: str) -> Split:
        return Split.open(self.folder, self.manifest["splits"][name])

    def dev_text(self) -> list[Pair]:
        """The dev split as text, for scoring translations."""
        return list(read_aligned(self.folder / "dev.source.txt", self.folder / "dev.target.txt"))

    def origins(self) -> tuple[list[str], npt.NDArray[np.uint8]] | None:
        """Names of origins, and the number of its origin for each training pair, if recorded."""
        if "origins" not in self.manifest:
            return None
        return list(self.manifest["origins"]), np.load(self.folder / ORIGINS)

    def token_counts(self, side: str) -> Ints:
        """Counts of each token in one side ("source" or "target") of the training data: [V]."""
        return np.load(self.folder / f"counts.{side}.npy")
