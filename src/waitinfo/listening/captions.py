"""Subtitles: lines that people can read, from sentences with their times."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from waitinfo.errors import WaitinfoError, unknown
from waitinfo.text.scripts import split_words

WIDTH = 42  # of a line, in letters; ideographs count twice
LINES = 2
SHORTEST = 1.0  # seconds that a cue is shown, where the next leaves room
LONGEST = 7.0
FEW = 12  # letters: a word or two
RATE = 17.0  # letters that people read in a second
# Words before which a line may break, because a clause begins there.
ENGLISH = "and but or because that which who when while if although though where so than"
GERMAN = "und aber oder weil dass die der das wenn während obwohl wo denn als sondern ob"
CLAUSES = frozenset(f"{ENGLISH} {GERMAN}".split())
STRONG = re.compile(r"[.!?…;:,–—。！？、，][\"'”’»)]*$")


class Sentence(NamedTuple):
    """What was said from `start` to `end` seconds."""

    text: str
    start: float
    end: float


@dataclass(frozen=True)
class Cue:
    """One subtitle."""

    start: float
    end: float
    lines: tuple[str, ...]


def width(text: str) -> int:
    """Letters of a line; wide ones count twice."""
    return sum(1 + (unicodedata.east_asian_width(char) in "WF") for char in text)


class Cues:
    """Makes subtitles of sentences as they come; none shows a single word briefly."""

    def __init__(self) -> None:
        self._last: Cue | None = None  # may still be joined with the next

    def add(self, sentence: Sentence) -> list[Cue]:
        """The subtitles that are complete now."""
        found: list[Cue] = []
        for cue in _divide(sentence):
            if self._last is None:
                self._last = cue
            elif joined := _join(self._last, cue):
                self._last = joined
            else:
                found.append(_lengthen(self._last, cue.start))
                self._last = cue
        return found

    def finish(self) -> list[Cue]:
        last, self._last = self._last, None
        return [] if last is None else [_lengthen(last, last.end + LONGEST)]


def cues(sentences: Iterable[Sentence]) -> Iterator[Cue]:
    """The subtitles of sentences."""
    made = Cues()
    for sentence in sentences:
        yield from made.add(sentence)
    yield from made.finish()


def _divide(sentence: Sentence) -> list[Cue]:
    """A sentence as cues; each has the time of its share of the letters."""
    parts = layout(sentence.text)
    sizes = [sum(map(width, lines)) for lines in parts]
    total, done = sum(sizes), 0
    found: list[Cue] = []
    for lines, size in zip(parts, sizes, strict=True):
        start, stop = (
            sentence.start + (sentence.end - sentence.start) * at / total
            for at in (done, done + size)
        )
        done += size
        found.append(Cue(start, stop, lines))
    return found


def _join(first: Cue, second: Cue) -> Cue | None:
    """Two cues as one, if one of them is a word or two and both fit."""
    short = min(sum(map(width, cue.lines)) for cue in (first, second)) < FEW
    near = second.start - first.end < SHORTEST and second.end - first.start <= LONGEST
    parts = layout(" ".join((*first.lines, *second.lines))) if short and near else []
    return Cue(first.start, second.end, parts[0]) if len(parts) == 1 else None


def _lengthen(cue: Cue, limit: float) -> Cue:
    """Leave a cue long enough to be read, if the next one does not come before."""
    letters = sum(width(line) for line in cue.lines)
    wanted = max(cue.end, cue.start + max(SHORTEST, min(LONGEST, letters / RATE)))
    return Cue(cue.start, max(min(wanted, limit), cue.start + 0.1), cue.lines)


Atom = tuple[str, str]  # what cannot be broken, and the space before it


def layout(text: str) -> list[tuple[str, ...]]:
    """The lines of the cues of a text: few, balanced, and ending where clauses do."""
    atoms = list(_atoms(text))
    # The least cost of the text up to each atom, and where its last cue begins.
    best: list[tuple[float, int, tuple[str, ...]]] = [(0.0, 0, ())]
    for end in range(1, len(atoms) + 1):
        ways = []
        for begin in range(end - 1, -1, -1):
            if _width(atoms[begin:end]) > LINES * WIDTH + 1:
                break
            if (lines := _lines(atoms[begin:end])) is not None:
                few = 1.0 if _width(atoms[begin:end]) < FEW else 0.0
                cost = best[begin][0] + 1.0 + lines[0] + few + _price(atoms, end)
                ways.append((cost, begin, lines[1]))
        best.append(min(ways))
    found: list[tuple[str, ...]] = []
    end = len(atoms)
    while end:
        _, begin, lines_of_cue = best[end]
        found.append(lines_of_cue)
        end = begin
    return found[::-1]


def _atoms(text: str) -> Iterator[Atom]:
    for word in text.split():
        space = " "
        for part in split_words(word):
            rest = part
            while rest:  # more than once if it is wider than a line
                count = sum(size <= WIDTH for size in accumulate(map(width, rest)))
                yield rest[:count], space
                rest, space = rest[count:], ""


def _joined(atoms: Sequence[Atom]) -> str:
    return "".join(space + part for part, space in atoms).strip()


def _width(atoms: Sequence[Atom]) -> int:
    return width(_joined(atoms))


def _price(atoms: Sequence[Atom], place: int) -> float:
    """What it costs to break before an atom: least where a clause ends."""
    if place == len(atoms) or STRONG.search(atoms[place - 1][0]):
        return 0.0
    return 0.4 if atoms[place][0].lower() in CLAUSES else 0.7


def _lines(atoms: Sequence[Atom]) -> tuple[float, tuple[str, ...]] | None:
    """One or two lines with what they cost, if there is room for these atoms."""
    whole = _joined(atoms)
    if width(whole) <= WIDTH:
        return 0.0, (whole,)
    ways = []
    for place in range(1, len(atoms)):
        lines = _joined(atoms[:place]), _joined(atoms[place:])
        first, second = map(width, lines)
        if first <= WIDTH and second <= WIDTH:
            ways.append((abs(first - second) / WIDTH + _price(atoms, place), lines))
    return min(ways, default=None)


def clock(seconds: float, mark: str) -> str:
    """01:02:03.456 with this decimal mark."""
    total = round(max(0.0, seconds) * 1000)
    hours, total = divmod(total, 3_600_000)
    minutes, total = divmod(total, 60_000)
    return f"{hours:02}:{minutes:02}:{total // 1000:02}{mark}{total % 1000:03}"


def as_srt(number: int, cue: Cue) -> str:
    text = "\n".join(cue.lines)
    return f"{number}\n{clock(cue.start, ',')} --> {clock(cue.end, ',')}\n{text}\n\n"


def as_vtt(number: int, cue: Cue) -> str:
    text = "\n".join(cue.lines).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"{clock(cue.start, '.')} --> {clock(cue.end, '.')}\n{text}\n\n"


FORMATS = {"srt": ("", as_srt), "vtt": ("WEBVTT\n\n", as_vtt)}


def subtitles(sentences: Iterable[Sentence], kind: str) -> str:
    """A whole file: srt or vtt."""
    if kind not in FORMATS:
        raise unknown("captions", kind, FORMATS)
    head, form = FORMATS[kind]
    return head + "".join(form(number, cue) for number, cue in enumerate(cues(sentences), 1))


class CaptionFile:
    """A file of subtitles that grows; at any time it is complete except for the newest one."""

    def __init__(self, path: Path) -> None:
        kind = path.suffix.lower().removeprefix(".")
        if kind not in FORMATS:
            raise WaitinfoError(f"--captions {path}: must end in .srt or .vtt")
        head, self._form = FORMATS[kind]
        try:
            self._stream = path.open("w", encoding="utf-8")
        except OSError as error:
            raise WaitinfoError(f"--captions {path}: {error.strerror}") from None
        self._cues, self._written = Cues(), 0
        self._stream.write(head)
        self._stream.flush()

    def add(self, sentence: Sentence) -> None:
        self._write(self._cues.add(sentence))

    def close(self) -> None:
        """Write what is left."""
        if not self._stream.closed:
            self._write(self._cues.finish())
            self._stream.close()

    def _write(self, complete: list[Cue]) -> None:
        for cue in complete:
            self._written += 1
            self._stream.write(self._form(self._written, cue))
        self._stream.flush()
