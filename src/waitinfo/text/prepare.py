"""`waitinfo prepare`: from text files to a corpus folder.

There are two passes. The first reads and normalises every pair, drops pairs that are empty,
repeated or also in a dev or test file, writes the rest to a temporary file, and draws a sample for
the vocabulary. The second tokenizes the temporary file, adds copies as they are spoken and windows
of sentences, drops what is too long or differs too much in length, and writes shards. The folder
gets its final name only when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from waitinfo.errors import WaitinfoError
from waitinfo.progress import Progress, Silent
from waitinfo.text.corpus import FORMAT, MANIFEST, ShardWriter
from waitinfo.text.files import Pair, ParallelText, normalise, sha256
from waitinfo.text.languages import UNKNOWN, Languages
from waitinfo.text.speech.copies import SAMPLE, SPOKEN, Copies
from waitinfo.text.tokenizer import Vocabulary, VocabularySpec, train_tokenizer

CHUNK = 20_000  # pairs tokenized at a time
REPEATED = "duplicate"
MEASURED = 10_000  # pairs of the sample whose tokens are counted against their words
SPARE = 1.15  # a window may have more tokens for its words than the text on average


@dataclass(frozen=True, kw_only=True)
class PrepareOptions:
    """Options of `waitinfo prepare` other than the files."""

    vocab: str = "bpe"  # with a size that fits the text
    separate: bool = False
    vocabulary_from: Path | None = None  # a corpus or model folder whose vocabulary is used
    max_tokens: int = 250  # per side, after tokenization
    max_ratio: float = 4.0  # tokens of the longer side to the shorter, for ten tokens or more
    keep_duplicates: bool = False
    holdout: int = 1000  # dev pairs taken from the training text if no dev files are given
    sample: int = 400_000  # pairs from which the vocabulary is learned
    shard_mib: float = 64.0
    spoken: float = 0.0  # share of the pairs that get a copy with a source as it is spoken
    word_errors: float = 0.05  # recognition errors of these copies, for each word
    windows: float = 0.0  # share of the pairs of ordered inputs that become part of a window
    spoken_windows: float = 0.5  # share of the windows without punctuation
    seed: int = 1
    languages: Languages = UNKNOWN


@dataclass
class PairCounts:
    """Numbers of pairs read, kept and dropped."""

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    dropped_copies: Counter[str] = field(default_factory=Counter)
    tagged: int = 0  # pairs with a tag at the front of the source, copies included
    notes: list[str] = field(default_factory=list)


class _Item(NamedTuple):
    """A pair to train on."""

    kind: str  # of copy; "" for the pair itself
    pair: Pair
    tagged: bool = False


def prepare(
    train: ParallelText,
    out: Path,
    options: PrepareOptions | None = None,
    dev: ParallelText | None = None,
    exclude: ParallelText | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write the corpus folder `out` and return its manifest."""
    options = options or PrepareOptions()
    spec = VocabularySpec.parse(options.vocab)
    if not train:
        raise WaitinfoError("no training text was given; use --source and --target, or --tsv")
    for name in ("max_tokens", "max_ratio", "holdout", "sample", "shard_mib"):
        if not getattr(options, name) > 0:
            option = name.replace("_", "-")
            raise WaitinfoError(f"--{option} {getattr(options, name)}: must be above 0")
    if options.windows and not train.in_order:
        raise WaitinfoError(
            "--windows: joins lines that follow each other; name the files with such lines, as "
            "--in-order train.de"
        )
    if options.keep_duplicates and not dev:
        raise WaitinfoError(
            "--keep-duplicates: requires dev files; without them, copies of held-out pairs would "
            "stay in the training data"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise WaitinfoError(f"{out}: already in use; choose another folder or remove it first")
    partial = out.parent / f".{out.name}.partial-{os.getpid()}"
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise WaitinfoError(f"{out}: cannot be created ({error.strerror})") from None
    try:
        job = _Preparation(partial, options, spec, progress or Silent())
        manifest = job.run(train, dev or ParallelText(), exclude or ParallelText())
        if out.exists():
            out.rmdir()
        partial.rename(out)
    except OSError as error:
        raise WaitinfoError(f"{out}: cannot be written ({error.strerror or error})") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return manifest


class _Preparation:
    """The state of one run of `prepare`."""

    def __init__(
        self, folder: Path, options: PrepareOptions, spec: VocabularySpec, progress: Progress
    ) -> None:
        self.folder, self.options, self.spec, self.progress = folder, options, spec, progress
        self.spool = folder / "spool.tsv"
        self.random = random.Random(options.seed)
        self.copies = Copies(
            options.spoken, options.windows, options.word_errors, options.languages.source,
            options.seed, options.spoken_windows,
        )  # fmt: skip
        self.report = PairCounts()

    def run(self, train: ParallelText, dev: ParallelText, exclude: ParallelText) -> dict[str, Any]:
        dev_pairs = [Pair(*map(normalise, pair)) for pair in dev]
        dev_pairs = [pair for pair in dev_pairs if all(pair)]
        if dev and not dev_pairs:
            raise WaitinfoError(f"{dev.paths[0]}: no sentence pairs to validate on")
        held_out = {_digest(pair) for pair in dev_pairs}
        held_out |= {_digest(Pair(*map(normalise, pair))) for pair in exclude}
        # Repeated pairs, which are often short, may be part of windows. Without dev files they may
        # not: they could repeat a pair that is held out.
        sample = self._first_pass(train, held_out, repeats=bool(dev_pairs and self.copies.windows))
        if not self.report.kept:
            raise WaitinfoError(f"{train.paths[0]}: no sentence pairs are left to train on")
        vocabulary = self._vocabulary(self._with_copies(sample))
        if train.tagged:
            _ = vocabulary.source.tag  # an error before the long pass, not in it
        if self.copies.windows:
            self._fit_windows(vocabulary, sample)
        del sample
        chosen = set() if dev_pairs else self._choose_holdout()
        train_entry, taken, counts = self._second_pass(vocabulary, chosen)
        if not train_entry["pairs"]:
            raise WaitinfoError(f"{train.paths[0]}: no sentence pairs are left to train on")
        dev_entry = self._write_dev(vocabulary, dev_pairs or taken)
        self.spool.unlink()
        vocabulary.save(self.folder)
        for side, count in zip(("source", "target"), counts, strict=True):
            np.save(self.folder / f"counts.{side}.npy", count)
        inputs = {"train": train, "dev": dev, "exclude": exclude}
        manifest = self._manifest(vocabulary, {"train": train_entry, "dev": dev_entry}, inputs)
        (self.folder / MANIFEST).write_text(
            json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", "utf-8"
        )
        return manifest

    def _first_pass(
        self, train: ParallelText, held_out: set[int], repeats: bool = False
    ) -> list[Pair]:
        """Write the usable pairs to the temporary file; return a uniform sample of them.

        With `repeats`, repeated pairs are written, too, marked as not to be trained on alone.
        """
        self.progress.stage("reading", train.size)
        seen: set[int] = set()
        sample: list[Pair] = []
        report = self.report
        with self.spool.open("w", encoding="utf-8", newline="\n") as spool:
            for raw, position, tagged in train.with_positions():
                report.read += 1
                pair = Pair(normalise(raw.source), normalise(raw.target))
                if reason := self._unwanted(pair, seen, held_out):
                    report.dropped[reason] += 1
                    if repeats and reason == REPEATED:
                        spool.write(f"{pair.source}\t{pair.target}\t{-position}\t0\n")
                    continue
                spool.write(f"{pair.source}\t{pair.target}\t{position}\t{tagged:d}\n")
                self._reservoir(sample, pair)
                report.kept += 1
                if report.read % 5000 == 0:
                    self.progress.advance(train.meter.consumed)
        return sample

    def _unwanted(self, pair: Pair, seen: set[int], held_out: set[int]) -> str | None:
        if not (pair.source and pair.target):
            return "empty side"
        digest = _digest(pair)
        if digest in held_out:
            return "also in a dev or test file"
        if not self.options.keep_duplicates:
            if digest in seen:
                return REPEATED
            seen.add(digest)
        return None

    def _reservoir(self, sample: list[Pair], pair: Pair) -> None:
        # A word vocabulary counts every word, so it uses the whole text.
        if self.spec.kind == "words" or len(sample) < self.options.sample:
            sample.append(pair)
        elif (index := int(self.random.random() * (self.report.kept + 1))) < len(sample):
            sample[index] = pair

    def _with_copies(self, sample: list[Pair]) -> list[Pair]:
        """The sample for the vocabulary, with copies in the share that training will see."""
        if not self.copies:
            return sample
        step = max(1, len(sample) // SAMPLE)
        self.copies.learn(pair.source for pair in sample[::step])
        if not self.copies.knows_language:
            self._note(
                "spoken copies: no rules for the source language, so numbers stay digits and no "
                "fillers are added (known with --source-language: de, en)"
            )
        return [*sample, *self.copies.sample(sample)]

    def _fit_windows(self, vocabulary: Vocabulary, sample: list[Pair]) -> None:
        """Let windows have no more words than fit into `max_tokens`, with some to spare."""
        some = sample[:: max(1, len(sample) // MEASURED)]
        words = sum(len(pair.source.split()) for pair in some)
        tokens = max(
            sum(map(len, tokenizer.encode_many(list(lines))))
            for tokenizer, lines in zip(
                (vocabulary.source, vocabulary.target), zip(*some, strict=True), strict=True
            )
        )
        self.copies.fit(int(self.options.max_tokens * words / (tokens * SPARE)))

    def _vocabulary(self, sample: list[Pair]) -> Vocabulary:
        if self.options.vocabulary_from is not None:
            return Vocabulary.load(self.options.vocabulary_from)
        self.progress.stage("learning the vocabulary", None)
        sides = list(zip(*sample, strict=True))
        if self.options.separate or self.spec.kind == "words":
            source, target = (self._tokenizer(side) for side in sides)
            return Vocabulary(source, target)
        joint = self._tokenizer(line for side in sides for line in side)
        return Vocabulary(joint, joint)

    def _tokenizer(self, lines: Iterable[str]) -> Any:
        tokenizer, note = train_tokenizer(lines, self.spec)
        if note:
            self._note(note)
        return tokenizer

    def _note(self, text: str) -> None:
        self.report.notes.append(text)
        self.progress.note(text)

    def _choose_holdout(self) -> set[int]:
        count = max(1, min(self.options.holdout, self.report.kept // 10))
        if count >= self.report.kept:
            raise WaitinfoError(
                "the training text has only one sentence pair; training and validation need two"
            )
        self._note(f"no dev files were given: {count:,} training pairs are held out for validation")
        return set(self.random.sample(range(self.report.kept), count))

    def _second_pass(
        self, vocabulary: Vocabulary, chosen: set[int]
    ) -> tuple[dict[str, Any], list[Pair], list[np.ndarray]]:
        """Tokenize the temporary file into shards, except the pairs at the chosen indices.

        Returns the manifest entry, the chosen pairs, and the token counts of both sides.
        """
        self.progress.stage("tokenizing", self.report.kept)
        sizes = [len(vocabulary.source), len(vocabulary.target)]
        shard_bytes = int(min(self.options.shard_mib * 2**20, 2**62))
        writer = ShardWriter(self.folder, "train", max(sizes), shard_bytes)
        counts = [np.zeros(size, np.int64) for size in sizes]
        taken: list[Pair] = []
        for chunk in self._training_pairs(chosen, taken):
            sources = vocabulary.source.encode_many([item.pair.source for item in chunk])
            targets = vocabulary.target.encode_many([item.pair.target for item in chunk])
            tokens: list[list[int]] = [[], []]
            for (kind, _, tagged), source, target in zip(chunk, sources, targets, strict=True):
                if tagged:
                    source.insert(0, vocabulary.source.tag)
                if reason := self._unfit(len(source), len(target)):
                    (self.report.dropped_copies if kind else self.report.dropped)[reason] += 1
                    continue
                writer.add(source, target)
                self.report.tagged += tagged
                tokens[0] += source
                tokens[1] += target
            for side in (0, 1):
                counts[side] += np.bincount(np.array(tokens[side], int), minlength=sizes[side])
        return writer.close(), taken, counts

    def _training_pairs(self, chosen: set[int], taken: list[Pair]) -> Iterator[list[_Item]]:
        """Pairs to train on, in chunks: plain ones with kind "" and their copies.

        The pairs at the chosen indices go to `taken` instead, and get no copies.
        """
        index = 0
        for lines in self._chunks():
            chunk: list[_Item] = []
            for pair, position, tagged in lines:
                if position > 0:
                    index += 1
                    if index - 1 in chosen:
                        taken.append(pair)
                        continue
                    chunk.append(_Item("", pair, tagged))
                if self.copies:
                    copies = self.copies.of(pair, abs(position), single=position > 0)
                    # A window that ends here is of the lines before.
                    chunk += (_Item(k, copy, tagged and k == SPOKEN) for k, copy in copies)
            yield chunk
            self.progress.advance(index)
        if self.copies:
            yield [_Item(kind, copy) for kind, copy in self.copies.rest()]

    def _chunks(self) -> Iterator[list[tuple[Pair, int, bool]]]:
        """Pairs of the temporary file with their positions, negative for repeated pairs."""
        with self.spool.open(encoding="utf-8", newline="\n") as spool:
            while lines := list(islice(spool, CHUNK)):
                rows = (line.rstrip("\n").split("\t") for line in lines)
                yield [(Pair(s, t), int(place), tagged == "1") for s, t, place, tagged in rows]

    def _unfit(self, source: int, target: int) -> str | None:
        longer, shorter = max(source, target), min(source, target)
        if longer > self.options.max_tokens:
            return f"longer than {self.options.max_tokens} tokens"
        if longer >= 10 and longer > self.options.max_ratio * shorter:
            return f"length ratio over {self.options.max_ratio:g}"
        return None

    def _write_dev(self, vocabulary: Vocabulary, pairs: list[Pair]) -> dict[str, Any]:
        writer = ShardWriter(self.folder, "dev", 1 << 31, 1 << 30)
        for pair in pairs:
            writer.add(vocabulary.source.encode(pair.source), vocabulary.target.encode(pair.target))
        for side in ("source", "target"):
            text = "".join(f"{getattr(pair, side)}\n" for pair in pairs)
            (self.folder / f"dev.{side}.txt").write_text(text, "utf-8", newline="\n")
        return writer.close()

    def _manifest(
        self, vocabulary: Vocabulary, splits: dict[str, Any], inputs: dict[str, ParallelText]
    ) -> dict[str, Any]:
        options = {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self.options).items()}
        del options["languages"]
        return {
            "format": FORMAT,
            **self.options.languages.entry(),
            "vocabulary": {
                "kind": self.spec.kind,
                "joint": vocabulary.joint,
                "source": len(vocabulary.source),
                "target": len(vocabulary.target),
            },
            "splits": splits,
            "read": self.report.read,
            "dropped": dict(self.report.dropped),
            **({"tagged": self.report.tagged} if self.report.tagged else {}),
            **self._copies_entry(),
            "notes": self.report.notes,
            "inputs": {
                name: [{"file": p.name, "sha256": sha256(p)} for p in text.paths]
                for name, text in inputs.items()
                if text
            },
            "options": options,
        }

    def _copies_entry(self) -> dict[str, Any]:
        if not self.copies:
            return {}
        dropped = {"dropped_copies": dict(self.report.dropped_copies)}
        return {"copies": dict(self.copies.made), **dropped}


def _digest(pair: Pair) -> int:
    text = f"{pair.source}\t{pair.target}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
