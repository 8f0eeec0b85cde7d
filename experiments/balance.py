"""Text to learn a vocabulary from: `python experiments/balance.py OUT --source … --target …`.

Draws as many lines from each file as asked for (FILE:LINES) at random, so that large corpora do not
drown small ones, and writes them as OUT, a TSV for `waitinfo prepare --tsv`. The two columns are
not translations of each other: the file serves to learn a vocabulary, nothing else. Of a TSV file,
`--source` takes the first column and `--target` the second. Every n-th line (--spoken) has neither
capitals nor punctuation, like the output of speech recognisers.
"""

from __future__ import annotations

import argparse
import lzma
import random
from collections.abc import Iterator
from pathlib import Path

from waitinfo.text.files import normalise, read_lines
from waitinfo.text.speech.marks import lower_without_punctuation


def column(path: Path, number: int) -> Iterator[str]:
    """Lines of a text file, or of one column of a TSV file."""
    tabbed = ".tsv" in path.suffixes
    for line in read_lines(path):
        yield line.split("\t")[number] if tabbed else line


def draw(lines: Iterator[str], count: int, generator: random.Random) -> list[str]:
    """A uniform sample (all lines if there are fewer)."""
    sample: list[str] = []
    for index, line in enumerate(lines):
        if index < count:
            sample.append(line)
        elif (place := int(generator.random() * (index + 1))) < count:
            sample[place] = line
    return sample


def side(given: list[str], number: int, every: int, generator: random.Random) -> list[str]:
    """One column: samples of all files, shuffled, some of them as if spoken."""
    lines: list[str] = []
    for entry in given:
        path, _, count = entry.rpartition(":")
        lines += draw(column(Path(path), number), int(count), generator)
    generator.shuffle(lines)
    return [
        found
        for index, line in enumerate(lines)
        if (
            found := lower_without_punctuation(line)
            if every and index % every == 0
            else normalise(line)
        )
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="a .tsv.xz file")
    parser.add_argument("--source", nargs="+", required=True, metavar="FILE:LINES")
    parser.add_argument("--target", nargs="+", required=True, metavar="FILE:LINES")
    parser.add_argument("--spoken", type=int, default=4, help="every n-th line [default: 4]")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    generator = random.Random(given.seed)
    sides = [
        side(entries, number, given.spoken, generator)
        for number, entries in enumerate((given.source, given.target))
    ]
    with lzma.open(given.out, "wt", encoding="utf-8", preset=1) as out:
        pairs = zip(*sides, strict=False)  # as many as the shorter column has
        written = sum(bool(out.write(f"{left}\t{right}\n")) for left, right in pairs)
    print(f"{written} lines")


if __name__ == "__main__":
    main()
