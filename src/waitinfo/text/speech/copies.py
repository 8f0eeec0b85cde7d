"""Further pairs for training: copies with a source as it is spoken, and windows of sentences.

The plain pairs stay as they are; copies are added to them. Targets are never changed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from waitinfo.errors import WaitinfoError
from waitinfo.text.files import Pair
from waitinfo.text.speech.speaker import PLAIN, Speaker, join, style_of

SENTENCES = (2, 6)  # in a window, at least and at most
LONGEST = 120  # words of a window's source


class Windows:
    """Joins pairs that follow each other, so that about `share` of the pairs are in a window.

    Pairs come one by one with their position in the text; a gap in the positions ends a window. A
    pair is in one window at most. A window's source has at most `longest` words.
    """

    def __init__(self, share: float, draw: random.Random, longest: int = LONGEST) -> None:
        mean = sum(SENTENCES) / 2
        # A free pair starts a window with this chance, which makes `share` of the pairs members.
        self.start = share / (mean * (1 - share) + share)
        self.random, self.longest = draw, longest
        self._open: list[Pair] = []
        self._size = 0  # sentences that the open window wants
        self._words = 0
        self._next = -1  # position that would continue the open window

    def add(self, pair: Pair, position: int) -> Pair | None:
        """The next pair; returns the window that is complete now, if one is."""
        words = len(pair.source.split())
        complete = None
        if self._open and (position != self._next or self._words + words > self.longest):
            complete = self.take()
        self._next = position + 1
        if self._open or self.random.random() < self.start:
            self._size = self._size if self._open else self.random.randint(*SENTENCES)
            self._open.append(pair)
            self._words += words
        if len(self._open) == self._size and self._open:
            complete = self.take()
        return complete

    def take(self) -> Pair | None:
        """The open window, if it has two sentences or more; there is none afterwards."""
        members, self._open, self._words = self._open, [], 0
        if len(members) < SENTENCES[0]:
            return None
        source, target = members[0]
        for pair in members[1:]:
            source, target = join(source, pair.source), join(target, pair.target)
        return Pair(source, target)


SPOKEN = "spoken"  # the kind of copies of single pairs
SAMPLE = 100_000  # pairs whose words are mistaken for each other


class Copies:
    """Makes the copies of pairs that come one after the other; a function of the seed.

    `spoken` is the share of the pairs that get a spoken copy, `windows` the share that become part
    of a window, `spoken_windows` the share of the windows whose source has no punctuation. `errors`
    is the word error rate of spoken copies; windows have errors and fillers only if copies of
    single pairs do.
    """

    def __init__(
        self, spoken: float, windows: float, errors: float, language: str | None, seed: int,
        spoken_windows: float = 0.5,
    ) -> None:  # fmt: skip
        shares = {"spoken": spoken, "windows": windows, "word-errors": errors,
                  "spoken-windows": spoken_windows}  # fmt: skip
        for option, share in shares.items():
            if not 0 <= share <= 1:
                raise WaitinfoError(f"--{option} {share:g}: must be a share from 0 to 1")
        self.spoken, self.windows, self.language, self.seed = spoken, windows, language, seed
        self.spoken_windows = spoken_windows
        self.longest = LONGEST  # words of a window's source
        self.style = style_of(errors, full=True) if spoken else PLAIN
        self.made: Counter[str] = Counter()
        self.learn(())

    def __bool__(self) -> bool:
        return bool(self.spoken or self.windows)

    @property
    def knows_language(self) -> bool:
        return self._speaker.knows_language or self.style == PLAIN

    def learn(self, sources: Iterable[str]) -> None:
        """Begin again, with these lines as the text whose words are mistaken for each other."""
        self._random = random.Random(f"copies {self.seed}")
        self._speaker = Speaker(self.language, self.style, sources, self.seed)
        self._windows = Windows(self.windows, self._random, self.longest)

    def fit(self, words: int) -> None:
        """Let no window's source be longer than this many words, or than usual."""
        self.longest = self._windows.longest = min(LONGEST, words)

    def sample(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Spoken copies of some pairs in the right share, for learning a vocabulary."""
        share = min(1.0, self.spoken + self.spoken_windows * self.windows)
        chosen = [pair for pair in pairs if self._random.random() < share]
        return [Pair(self._speaker.say(pair.source), pair.target) for pair in chosen]

    def of(self, pair: Pair, position: int, single: bool = True) -> Iterator[tuple[str, Pair]]:
        """The copies that are complete with this pair, each with its kind.

        A pair that is not `single` is only used in windows.
        """
        if self.spoken and single and self._random.random() < self.spoken:
            yield self._count(SPOKEN, Pair(self._speaker.say(pair.source), pair.target))
        if self.windows:
            yield from self._window(self._windows.add(pair, position))

    def rest(self) -> Iterator[tuple[str, Pair]]:
        """The copies that are left when all pairs have come."""
        yield from self._window(self._windows.take())

    def _window(self, window: Pair | None) -> Iterator[tuple[str, Pair]]:
        if window is None:
            return
        if self._random.random() >= self.spoken_windows:
            yield self._count("windows", window)
        else:
            said = Pair(self._speaker.say(window.source), window.target)
            yield self._count("spoken windows", said)

    def _count(self, kind: str, pair: Pair) -> tuple[str, Pair]:
        self.made[kind] += 1
        return kind, pair
