"""What is distilled and what comes out: pairs of a corpus or a TSV file, and their mixture."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np

from waitinfo.errors import WaitinfoError, unknown
from waitinfo.text.corpus import MANIFEST, ORIGINS, Corpus, ShardWriter
from waitinfo.text.files import check_readable, normalise, read_lines, sha256
from waitinfo.text.languages import UNKNOWN, Languages
from waitinfo.text.tokenizer import Vocabulary

ORIGINAL, DISTILLED, MONOTONE = "original", "distilled", "monotone"
KNOWN = (ORIGINAL, DISTILLED, MONOTONE)
CHUNK = 20_000  # pairs at a time
SHARD_BYTES = 64 * 2**20


class Row(NamedTuple):
    """A pair of the data, or a source alone."""

    source: str
    target: str | None
    origin: str


class Data:
    """A corpus folder or a TSV file, and further text without translations."""

    def __init__(self, path: Path | None, texts: Sequence[Path] = ()) -> None:
        if path is None and not texts:
            raise WaitinfoError("nothing to translate was given; use --data or --text")
        self.path, self.texts = path, list(texts)
        self.corpus = None if path is None or path.is_file() else Corpus(path)
        for file in self.texts if path is None or self.corpus else [path, *self.texts]:
            check_readable(file)

    @property
    def languages(self) -> Languages:
        return UNKNOWN if self.corpus is None else self.corpus.languages

    def identity(self) -> list[str | None]:
        """Checksums of everything that is read."""
        first = [] if self.path is None else [self.path / (MANIFEST if self.corpus else "")]
        return [sha256(file) for file in (*first, *self.texts)]

    def __iter__(self) -> Iterator[Row]:
        if self.corpus is not None:
            yield from self._of_corpus(self.corpus)
        elif self.path is not None:
            yield from self._of_file(self.path)
        for path in self.texts:
            for line in read_lines(path):
                yield Row(normalise(line), None, ORIGINAL)

    @staticmethod
    def _of_file(path: Path) -> Iterator[Row]:
        for number, line in enumerate(read_lines(path), 1):
            columns = line.split("\t")
            if len(columns) < 2:
                raise WaitinfoError(
                    f"{path}, line {number}: no tab; each line is source<TAB>target"
                )
            origin = columns[2] if len(columns) > 2 and columns[2] in KNOWN else ORIGINAL
            yield Row(normalise(columns[0]), normalise(columns[1]), origin)

    def _of_corpus(self, corpus: Corpus) -> Iterator[Row]:
        names, origins = corpus.origins() or ([ORIGINAL], np.zeros(len(corpus.train), np.uint8))
        tokenizers = (corpus.vocabulary.source, corpus.vocabulary.target)
        for start in range(0, len(corpus.train), CHUNK):
            indices = np.arange(start, min(start + CHUNK, len(corpus.train)))
            sides = []
            for side, tokenizer in enumerate(tokenizers):
                flat, lengths = corpus.train.gather(indices, side)
                rows = np.split(flat, np.cumsum(lengths)[:-1])
                sides.append(tokenizer.decode_many([row.tolist() for row in rows]))
            for source, target, origin in zip(*sides, origins[indices], strict=True):
                yield Row(source, target, names[origin])


def parse_mix(given: Sequence[str]) -> dict[str, float]:
    """Shares written as `original=0.5`."""
    mix: dict[str, float] = {}
    for entry in given:
        name, _, value = entry.partition("=")
        if name not in KNOWN:
            raise unknown("--mix", entry, [f"{origin}=SHARE" for origin in KNOWN])
        try:
            mix[name] = float(value)
        except ValueError:
            raise WaitinfoError(f"--mix {entry}: '{value}' is not a number from 0 to 1") from None
        if not 0 <= mix[name] <= 1:
            raise WaitinfoError(f"--mix {entry}: a share is from 0 to 1")
    return mix


class Draw:
    """Draws which sources are translated and which pairs are kept; always the same for a seed."""

    def __init__(self, mix: Mapping[str, float], made: str, seed: int) -> None:
        self.mix, self.made = mix, made
        self.origins = {made}  # what there is to draw from
        self._translated = random.Random(f"translated {seed}")
        self._kept = random.Random(f"kept {seed}")

    def __call__(self, row: Row) -> tuple[bool, bool]:
        """Whether the source of a row is translated, and whether the row itself is kept."""
        self.origins.add(row.origin)
        first, second = self._translated.random(), self._kept.random()
        translated = row.origin == ORIGINAL and first < self.mix.get(self.made, 1.0)
        return translated, row.target is not None and second < self.mix.get(row.origin, 1.0)

    def check(self) -> None:
        """After all rows: raise an error where a share is of pairs that do not exist."""
        if missing := sorted(self.mix.keys() - self.origins - {ORIGINAL}):
            raise WaitinfoError(
                f"--mix {missing[0]}={self.mix[missing[0]]:g}: there are no such pairs; those of "
                f"this teacher are called {self.made}"
            )


class Mixture(Protocol):
    """Takes pairs with their origins, and writes them."""

    def add(self, pairs: Sequence[tuple[str, str, str]]) -> None:
        """Pairs as (source, target, origin)."""

    def close(self, record: dict[str, Any]) -> None:
        """All pairs were added; `record` says how they were made."""


class TextMixture:
    """Writes lines of source, tab, target, tab, origin."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream

    def add(self, pairs: Sequence[tuple[str, str, str]]) -> None:
        self.stream.write("".join("\t".join(pair) + "\n" for pair in pairs).encode())

    def close(self, record: dict[str, Any]) -> None:
        pass


class CorpusMixture:
    """Writes a corpus folder with the vocabulary and the dev text of another."""

    def __init__(self, corpus: Corpus, folder: Path) -> None:
        self.corpus, self.folder = corpus, folder
        vocabulary = corpus.vocabulary
        self.sizes = len(vocabulary.source), len(vocabulary.target)
        self.shards = ShardWriter(folder, "train", max(self.sizes), SHARD_BYTES)
        self.counts = [np.zeros(size, np.int64) for size in self.sizes]
        self.origins: list[bytes] = []

    def add(self, pairs: Sequence[tuple[str, str, str]]) -> None:
        vocabulary = self.corpus.vocabulary
        sources = vocabulary.source.encode_many([source for source, _, _ in pairs])
        targets = vocabulary.target.encode_many([target for _, target, _ in pairs])
        for source, target in zip(sources, targets, strict=True):
            self.shards.add(source, target)
        for number, side in enumerate((sources, targets)):
            tokens = np.fromiter(chain.from_iterable(side), np.int64)
            self.counts[number] += np.bincount(tokens, minlength=self.sizes[number])
        self.origins.append(bytes(KNOWN.index(origin) for _, _, origin in pairs))

    def close(self, record: dict[str, Any]) -> None:
        origins = np.frombuffer(b"".join(self.origins), np.uint8)
        np.save(self.folder / ORIGINS, origins)
        for side, count in zip(("source", "target"), self.counts, strict=True):
            np.save(self.folder / f"counts.{side}.npy", count)
        for path in self.corpus.folder.iterdir():
            if path.name.startswith(("dev", "tokenizer")):
                shutil.copyfile(path, self.folder / path.name)
        pairs = {name: int((origins == number).sum()) for number, name in enumerate(KNOWN)}
        old = self.corpus.manifest
        splits = {**old["splits"], "train": self.shards.close()}
        manifest = {**old, "splits": splits, "origins": pairs, "distillation": record}
        text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
        (self.folder / MANIFEST).write_text(text, "utf-8")


def token_lengths(vocabulary: Vocabulary, side: str, texts: Sequence[str]) -> list[int]:
    """Numbers of tokens of normalised texts."""
    tokenizer = getattr(vocabulary, side)
    return [len(tokens) for tokens in tokenizer.encode_many(texts)]


def chunks(data: Data) -> Iterator[list[Row]]:
    """The rows of the data, some thousands at a time."""
    rows = iter(data)
    while some := list(islice(rows, CHUNK)):
        yield some
