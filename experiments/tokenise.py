"""Splits punctuation off the words of English or Vietnamese text, for a vocabulary of words.

    python tokenise.py SOURCE TARGET OUT_SOURCE OUT_TARGET [--without FILE ...]

A vocabulary of words divides text at spaces only, and the paper's IWSLT15 text is tokenised. The
files are plain or .xz. With --without, training pairs are dropped if one of their sides, compared
without case and punctuation, is a line of at least four words in one of these files.
"""

from __future__ import annotations

import argparse
import lzma
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

# One character for each quote, apostrophe and dash that means the same.
ALIKE = str.maketrans(
    {"’": "'", "‘": "'", "´": "'", "`": "'", "“": '"', "”": '"', "„": '"', "«": '"', "»": '"',
     "–": "--", "—": "--", "…": "...", "\u00a0": " ", "\u200b": " ", "\ufeff": " "}
)  # fmt: skip
CLITICS = r"(?<=\w)('(?:s|re|ve|ll|d|m))(?!\w)"  # child's -> child 's, as some of the text has it
NEGATION = r"(?<=\w)(n't)(?!\w)"  # don't -> do n't
LEAST_WORDS = 4


def tokenise(line: str) -> str:
    """A line with a space between any two tokens."""
    text = unicodedata.normalize("NFC", line).translate(ALIKE).replace("''", '"')
    text = re.sub(r"(\.{2,}|--+)", r" \1 ", text)
    text = re.sub(r"([^\w\s.,'-])", r" \1 ", text)  # brackets, quotes, signs: always apart
    text = re.sub(r"(?<!\d),|,(?!\d)", " , ", text)  # 1,000 stays together
    text = re.sub(NEGATION, r" \1", text, flags=re.IGNORECASE)
    text = re.sub(CLITICS, r" \1", text, flags=re.IGNORECASE)
    return " ".join(part for word in text.split() for part in _word(word))


def _word(word: str) -> Iterable[str]:
    """Full stops at the end of a word are tokens unless they are part of an abbreviation."""
    if re.fullmatch(r"\W+|'(?:s|re|ve|ll|d|m)|n't", word, re.IGNORECASE):
        return [word]
    before, word, after = re.fullmatch(r"(['.-]*)(.*?)(['-]*)", word).groups()  # type: ignore[union-attr]
    stop = ""
    if word.endswith(".") and not re.fullmatch(r"(?:\w\.){2,}|(?:Mr|Mrs|Ms|Dr|St|Prof|Jr)\.", word):
        word, stop = word[:-1], "."
    return [part for part in (before, word, stop, after) if part]


def plain(line: str) -> str:
    """The words of a tokenised line, without case."""
    return " ".join(re.findall(r"\w+", line.lower()))


def read(path: Path) -> list[str]:
    opened = lzma.open if path.suffix == ".xz" else open
    with opened(path, "rt", encoding="utf-8", newline="\n") as lines:  # type: ignore[operator]
        return [line.rstrip("\r\n") for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("texts", type=Path, nargs=4, metavar="FILE")
    parser.add_argument("--without", type=Path, nargs="*", default=[])
    given = parser.parse_args()
    held_out = {plain(tokenise(line)) for path in given.without for line in read(path)}
    held_out = {line for line in held_out if len(line.split()) >= LEAST_WORDS}
    sources, targets = ([tokenise(line) for line in read(path)] for path in given.texts[:2])
    pairs = list(zip(sources, targets, strict=True))
    kept = [pair for pair in pairs if held_out.isdisjoint(map(plain, pair))]
    for side, path in enumerate(given.texts[2:]):
        path.write_text("".join(f"{pair[side]}\n" for pair in kept), "utf-8", newline="\n")
    print(f"{len(kept):,} of {len(pairs):,} pairs kept")


if __name__ == "__main__":
    main()
