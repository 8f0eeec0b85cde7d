"""The German part of a test set: `python experiments/german.py TRAIN SOURCE TARGET OUT`.

The German side of Europarl's last sittings has sentences in a dozen other languages. A sentence of
four words or more is taken for German if at least 15% of its words are among the 300 most frequent
ones of the training text TRAIN (its first 200,000 lines); shorter ones are kept. Writes OUT.de
and OUT.en.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from itertools import islice
from pathlib import Path

from waitinfo.text.files import read_lines

FREQUENT, LINES = 300, 200_000
LEAST_WORDS, LEAST_SHARE = 4, 0.15


def words(line: str) -> list[str]:
    return re.findall(r"[^\W\d]+", line.lower())


def frequent_words(path: Path) -> set[str]:
    counts: Counter[str] = Counter()
    for line in islice(read_lines(path), LINES):
        counts.update(words(line))
    return {word for word, _ in counts.most_common(FREQUENT)}


def is_of_the_language(line: str, frequent: set[str]) -> bool:
    found = words(line)
    if len(found) < LEAST_WORDS:
        return True
    return sum(word in frequent for word in found) >= LEAST_SHARE * len(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("train", "source", "target", "out"):
        parser.add_argument(name, type=Path)
    arguments = parser.parse_args()
    frequent = frequent_words(arguments.train)
    sides = (arguments.source, arguments.target)
    pairs = list(zip(*map(read_lines, sides), strict=True))
    kept = [pair for pair in pairs if is_of_the_language(pair[0], frequent)]
    for side, texts in zip(("de", "en"), zip(*kept, strict=True), strict=True):
        out = arguments.out.with_name(f"{arguments.out.name}.{side}")
        out.write_text("\n".join(texts) + "\n", "utf-8")
    print(f"{len(kept)} of {len(pairs)} pairs are kept")


if __name__ == "__main__":
    main()
