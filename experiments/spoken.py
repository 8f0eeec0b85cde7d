"""Pairs as a speech recogniser gives them: `python experiments/spoken.py SOURCE TARGET OUT`.

Of every ten pairs of the training text the first gets a copy whose source has no capitals and no
punctuation; every other of these is joined with the pair that follows, because recognisers do not
mark where a sentence ends. Targets stay as they are. Writes OUT.de.xz and OUT.en.xz; with --all,
for a test set, every pair, and none joined.
"""

from __future__ import annotations

import argparse
import lzma
import re
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

from waitinfo.text.files import read_lines

EVERY = 10
MARKS = re.compile(r"[^\w\s'’-]|_|(?<!\w)['’-]+|['’-]+(?!\w)")  # hyphens within words stay


def spoken(text: str) -> str:
    return " ".join(MARKS.sub(" ", text.lower()).split())


def training_pairs(pairs: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for number in count():
        used = list(islice(pairs, EVERY))[: 1 + number % 2]
        if not used:
            return
        yield " ".join(source for source, _ in used), " ".join(target for _, target in used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("source", "target", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--all", action="store_true")
    arguments = parser.parse_args()
    pairs = zip(read_lines(arguments.source), read_lines(arguments.target), strict=True)
    out, written = arguments.out, 0
    with (
        lzma.open(f"{out}.de.xz", "wt") as source_file,
        lzma.open(f"{out}.en.xz", "wt") as target_file,
    ):
        for source, target in pairs if arguments.all else training_pairs(pairs):
            print(spoken(source), file=source_file)
            print(target, file=target_file)
            written += 1
    print(f"{written} pairs")


if __name__ == "__main__":
    main()
