"""Back-translated text as pairs, without those that do not look like translations.

Left out are empty pairs, copies, pairs of very different lengths, and translations that repeat
themselves, have other numbers than the original, or words of its language where those of another
should be.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from experiments.corpora.text import write_lines
from waitinfo.text.files import normalise, read_lines

LONGER, SLACK = 2.0, 15  # a side may have this many times the characters of the other, and more
REPEATS = 3  # times that the same two words may follow each other in a line
NUMBERS = re.compile(r"\d+")
LEAST = 0.7  # share of the numbered originals whose translations have a number of theirs
ENOUGH = 30  # such originals that say something
# Short words of the other language that German or English text does not have.
FOREIGN = {
    "de": {"the", "and", "of", "to", "is", "that", "it", "you", "for", "are", "with", "this",
           "have"},
    "en": {"der", "und", "nicht", "ist", "das", "ich", "sie", "mit", "ein", "auf", "wir", "zu",
           "haben"},
}  # fmt: skip


def repeats(text: str) -> bool:
    """Whether a line contains a run that is written again and again."""
    words = text.split()
    if len(words) < 2 * REPEATS:
        return len(words) > 3 and len(set(words)) == 1
    for size in (1, 2, 3, 4):
        run = 0
        for left, right in zip(words, words[size:], strict=False):
            run = run + 1 if left == right else 0
            if run >= size * REPEATS:
                return True
    return False


def foreign(text: str, language: str) -> bool:
    """Whether a third of the words, and three at least, are of the other language."""
    words = text.lower().split()
    found = sum(word in FOREIGN[language] for word in words)
    return found >= 3 and 3 * found >= len(words)


def other_numbers(translation: str, original: str) -> bool:
    """Whether both sides have numbers of two digits or more, and none in common."""
    left, right = ({n for n in NUMBERS.findall(t) if len(n) > 1} for t in (translation, original))
    return bool(left and right and not left & right)


def fault(translation: str, original: str, language: str) -> str | None:
    """Why a pair is left out."""
    if not translation or not original:
        return "empty"
    shorter, longer = sorted((len(translation), len(original)))
    faults = {
        "copy": lambda: translation == original,
        "lengths": lambda: longer > LONGER * shorter + SLACK,
        "repeats itself": lambda: repeats(translation),
        "not translated": lambda: foreign(translation, language),
        "other numbers": lambda: other_numbers(translation, original),
    }
    return next((reason for reason, found in faults.items() if found()), None)


def chunks(folder: Path, file: Path, size: int) -> Iterator[tuple[Path, list[str], list[str]]]:
    """The chunks of a file that exist, with their lines and the file's."""
    name = file.name.split(".")[0]
    found = sorted(folder.glob(f"{name}.[0-9][0-9][0-9][0-9].xz"))
    if not found:
        return
    lines, at = read_lines(file), 0
    for path in found:
        written = list(read_lines(path))
        first = int(path.name.split(".")[1]) * size
        originals = list(islice(lines, first - at, first - at + size))
        at = first + len(originals)
        if len(originals) != len(written):
            sys.exit(f"{path}: {len(written):,} lines for {len(originals):,} of {file}")
        yield path, written, originals


def numbered(written: list[str], originals: list[str]) -> tuple[int, int]:
    """How many originals have numbers, and how many of their translations share one."""
    both = zip(written, originals, strict=True)
    found = [(set(NUMBERS.findall(o)), set(NUMBERS.findall(w))) for w, o in both]
    return sum(bool(o) for o, _ in found), sum(bool(o & w) for o, w in found)


def known_lines(files: list[Path]) -> set[str]:
    """Normalised lines of files."""
    return {normalise(line) for file in files for line in read_lines(file)}


class Choice(NamedTuple):
    """Which pairs are kept."""

    language: str  # of the translations
    known: set[str]  # originals to leave out
    every: bool = False  # count only


def good(
    path: Path, written: list[str], originals: list[str], choice: Choice, counts: Counter[str]
) -> Iterator[str]:
    """The pairs of a chunk that are good, or every one; counts and reports them."""
    total, shared = numbered(written, originals)
    share = shared / total if total else 1.0
    if total >= ENOUGH and share < LEAST and not choice.every:
        sys.exit(f"{path}: only {share:.0%} of the numbers are in the translations; not aligned?")
    here: Counter[str] = Counter()
    for left, right in zip(map(normalise, written), map(normalise, originals), strict=True):
        reason = "known" if right in choice.known else fault(left, right, choice.language)
        here[reason or "kept"] += 1
        if not reason or (choice.every and left and right):
            yield f"{left}\t{right}"
    print(json.dumps({"chunk": path.name, "numbers": round(share, 3), **here}), flush=True)
    counts.update(here)


def pair(folder: Path, out: Path, files: list[Path], size: int, choice: Choice) -> None:
    """CHUNKS has translations of the files: NAME.0000.xz, … are those of a FILE called NAME.

    Each has as many lines as --chunk says, the last one fewer. Chunks that are missing are passed
    over. A line of OUT is a translation, a tab and the original. A report names, for each chunk,
    what was dropped and in how many of the originals with numbers the translation has them, too: a
    chunk far below the others is not aligned, and is an error.
    """
    counts: Counter[str] = Counter()
    found = (chunk for file in files for chunk in chunks(folder, file, size))
    first = next(found, None)
    if first is None:
        sys.exit(f"{folder}: no translations of these files")
    every = (line for chunk in chain([first], found) for line in good(*chunk, choice, counts))
    write_lines(out, every)
    print(json.dumps(counts))
