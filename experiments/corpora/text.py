"""Text before it is a corpus: tokenised, of one language, balanced, swapped, shortened."""

from __future__ import annotations

import lzma
import random
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from waitinfo.text.files import normalise, read_lines
from waitinfo.text.speech.speaker import lower_without_punctuation


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """Write a text, compressed if it is called so, under its name when it is complete."""
    partial = path.with_name(f".{path.name}.partial")
    partial.parent.mkdir(parents=True, exist_ok=True)
    opened = lzma.open if path.suffix == ".xz" else open
    with opened(partial, "wt", encoding="utf-8", newline="\n") as out:
        count = sum(bool(out.write(f"{line}\n")) for line in lines)
    partial.rename(path)
    return count


# Punctuation split off the words of English or Vietnamese, for a vocabulary of words: such a
# vocabulary divides text at spaces only, and the paper's IWSLT15 text is tokenised.

ALIKE = str.maketrans(  # one character for each quote, apostrophe and dash that means the same
    {"’": "'", "‘": "'", "´": "'", "`": "'", "“": '"', "”": '"', "„": '"', "«": '"', "»": '"',
     "–": "--", "—": "--", "…": "...", "\u00a0": " ", "\u200b": " ", "\ufeff": " "}
)  # fmt: skip
CLITICS = r"(?<=\w)('(?:s|re|ve|ll|d|m))(?!\w)"  # child's -> child 's, as some of the text has it
NEGATION = r"(?<=\w)(n't)(?!\w)"  # don't -> do n't
HELD_OUT_WORDS = 4  # of the shortest line that counts as held out


def tokenised(line: str) -> str:
    """A line with a space between any two tokens."""
    text = unicodedata.normalize("NFC", line).translate(ALIKE).replace("''", '"')
    text = re.sub(r"(\.{2,}|--+)", r" \1 ", text)
    text = re.sub(r"([^\w\s.,'-])", r" \1 ", text)  # brackets, quotes, signs: always apart
    text = re.sub(r"(?<!\d),|,(?!\d)", " , ", text)  # 1,000 stays together
    text = re.sub(NEGATION, r" \1", text, flags=re.IGNORECASE)
    text = re.sub(CLITICS, r" \1", text, flags=re.IGNORECASE)
    return " ".join(part for word in text.split() for part in tokens_of(word))


def tokens_of(word: str) -> Iterable[str]:
    """Full stops at the end of a word are tokens unless they are part of an abbreviation."""
    if re.fullmatch(r"\W+|'(?:s|re|ve|ll|d|m)|n't", word, re.IGNORECASE):
        return [word]
    before, word, after = re.fullmatch(r"(['.-]*)(.*?)(['-]*)", word).groups()  # type: ignore[union-attr]
    stop = ""
    if word.endswith(".") and not re.fullmatch(r"(?:\w\.){2,}|(?:Mr|Mrs|Ms|Dr|St|Prof|Jr)\.", word):
        word, stop = word[:-1], "."
    return [part for part in (before, word, stop, after) if part]


def words_alone(line: str) -> str:
    """The words of a tokenised line, without case."""
    return " ".join(re.findall(r"\w+", line.lower()))


def tokenise(texts: list[Path], without: list[Path]) -> None:
    """SOURCE TARGET OUT_SOURCE OUT_TARGET, without pairs that have a line of other files.

    Lines of at least four words count, compared without case and punctuation.
    """
    held_out = {words_alone(tokenised(line)) for path in without for line in read_lines(path)}
    held_out = {line for line in held_out if len(line.split()) >= HELD_OUT_WORDS}
    sides = ([tokenised(line) for line in read_lines(path)] for path in texts[:2])
    pairs = list(zip(*sides, strict=True))
    kept = [pair for pair in pairs if held_out.isdisjoint(map(words_alone, pair))]
    for side, path in enumerate(texts[2:]):
        write_lines(path, (pair[side] for pair in kept))
    print(f"{len(kept):,} of {len(pairs):,} pairs kept")


# The German part of a text. Europarl's last sittings have sentences in a dozen other languages.

FREQUENT, LINES = 300, 200_000  # words, and lines of the training text that they come from
LEAST_WORDS = 4  # shorter sentences are kept
LEAST_SHARE = 0.15  # of frequent words in the others


def words_of(line: str) -> list[str]:
    return re.findall(r"[^\W\d]+", line.lower())


def frequent_words(path: Path) -> set[str]:
    counts: Counter[str] = Counter()
    for line in islice(read_lines(path), LINES):
        counts.update(words_of(line))
    return {word for word, _ in counts.most_common(FREQUENT)}


def is_of_the_language(line: str, frequent: set[str]) -> bool:
    found = words_of(line)
    if len(found) < LEAST_WORDS:
        return True
    return sum(word in frequent for word in found) >= LEAST_SHARE * len(found)


def german(train: Path, source: Path, target: Path, out: Path) -> None:
    """OUT.de and OUT.en: the pairs whose source has the frequent words of TRAIN."""
    frequent = frequent_words(train)
    pairs = list(zip(read_lines(source), read_lines(target), strict=True))
    kept = [pair for pair in pairs if is_of_the_language(pair[0], frequent)]
    for number, side in enumerate(("de", "en")):
        write_lines(out.with_name(f"{out.name}.{side}"), (pair[number] for pair in kept))
    print(f"{len(kept)} of {len(pairs)} pairs are kept")


# Text to learn a vocabulary from: large corpora do not drown small ones.


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


def drawn(given: list[str], number: int, every: int, generator: random.Random) -> list[str]:
    """One column: samples of all files (FILE:LINES), shuffled, some of them as if spoken."""
    lines: list[str] = []
    for entry in given:
        path, _, count = entry.rpartition(":")
        lines += draw(column(Path(path), number), int(count), generator)
    generator.shuffle(lines)
    texts = (
        lower_without_punctuation(line) if every and index % every == 0 else normalise(line)
        for index, line in enumerate(lines)
    )
    return [text for text in texts if text]


def balance(out: Path, sources: list[str], targets: list[str], every: int, seed: int) -> None:
    """A TSV whose columns are not translations of each other; every n-th line is as if spoken."""
    generator = random.Random(seed)
    sides = [drawn(given, n, every, generator) for n, given in enumerate((sources, targets))]
    pairs = zip(*sides, strict=False)  # as many as the shorter column has
    count = write_lines(out, (f"{left}\t{right}" for left, right in pairs))
    print(f"{count} lines")


# Others


def swap_tables(tables: list[Path], out: Path) -> None:
    """TSV files as one, with their first two columns swapped."""

    def swapped() -> Iterator[str]:
        for table in tables:
            for number, line in enumerate(read_lines(table), 1):
                source, tab, target = line.partition("\t")
                if not tab:
                    sys.exit(f"{table}, line {number}: no tab; each line is source<TAB>target")
                yield f"{target.split(tab)[0]}\t{source}"

    write_lines(out, swapped())


FOLDERS = ("de-en", "en-vi", "english", "german", "multi30k-de-en", "upos")
TEST_AT = 900_500  # lines before the test part of europarl-178k


def shortened(path: Path, count: int) -> list[str]:
    if path.name.startswith("europarl.train"):
        start = list(islice(read_lines(path), count))
        return [*start, *[""] * (TEST_AT - count), *start[: max(4, count // 40)]]
    return list(islice(read_lines(path), count))


def shorten(data: Path, small: Path, lines: int) -> None:
    """A small copy of the data, to rehearse with: the first lines of every file.

    Europarl's training part also has some at the place where europarl-178k is tested.
    """
    for path in sorted(path for folder in FOLDERS for path in (data / folder).iterdir()):
        count = lines if path.suffix == ".xz" else max(4, lines // 40)
        write_lines(small / path.relative_to(data), shortened(path, count))
