"""A small copy of the data, to rehearse with: `python experiments/paper/shorten.py DATA SMALL`.

Every file keeps its first lines, compressed as before. Europarl's training part keeps its first
lines at the places that the experiments read: the beginning, and line 900,501.
"""

from __future__ import annotations

import argparse
import lzma
from itertools import chain, islice
from pathlib import Path

from waitinfo.text.files import read_lines

FOLDERS = ("de-en", "en-vi", "english", "german", "multi30k-de-en", "upos")
TEST_AT = 900_500  # lines before the test part of europarl-178k


def shortened(path: Path, count: int) -> list[str]:
    if path.name.startswith("europarl.train"):
        start = list(islice(read_lines(path), count))
        return [*start, *[""] * (TEST_AT - count), *start[: max(4, count // 40)]]
    return list(islice(read_lines(path), count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("small", type=Path)
    parser.add_argument("--lines", type=int, default=400)
    given = parser.parse_args()
    files = chain.from_iterable((given.data / folder).iterdir() for folder in FOLDERS)
    for path in sorted(files):
        out = given.small / path.relative_to(given.data)
        out.parent.mkdir(parents=True, exist_ok=True)
        count = given.lines if path.suffix == ".xz" else max(4, given.lines // 40)
        text = "".join(f"{line}\n" for line in shortened(path, count)).encode("utf-8")
        out.write_bytes(lzma.compress(text) if path.suffix == ".xz" else text)


if __name__ == "__main__":
    main()
