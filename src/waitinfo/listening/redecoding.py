"""A recogniser of whole stretches as one of streams.

While somebody speaks, the open stretch is recognised again and again as it grows. Words on which
two recognitions agree are committed. The stretch ends in a pause, where all of it is committed, or
after `LONGEST` seconds at its quietest point. If recognition takes long, it looks less often, and
so always knows the newest audio.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from waitinfo.listening.activity import FRAME, Activity, Loudness, loudness
from waitinfo.listening.audio import RATE, Samples
from waitinfo.listening.recogniser import Agreement, Anchor, Heard, Transcriber, Word, fold

EVERY = 0.8  # seconds of audio between two looks
LONGEST = 20.0  # seconds of a stretch
LATEST_CUT = 5.0  # a stretch without a pause is cut within its last seconds
SHORTEST = 0.1  # seconds of speech that are worth a look
GAP = 0.5  # seconds of silence that end a stretch
PAUSE = 1.0  # seconds of silence that end a sentence
MARGIN = 0.3  # seconds that are kept before and after speech
QUIET = 2.0  # seconds after which it is told that nothing is heard
SHARE = 1.25  # looks take at most 1 / SHARE of the time
MOST_LETTERS = 40  # that anybody says in a second
NOISES = {"[": "]", "(": ")", "*": "*", "♪": "♪", "♫": "♫"}  # around what is not speech: [music]


def frames(seconds: float) -> int:
    return max(1, round(seconds * RATE / FRAME))


class Redecoding:
    """Recognises streams by recognising stretches again; see the module."""

    def __init__(
        self,
        transcriber: Transcriber,
        every: float = EVERY,
        activity: Callable[[], Activity] = Loudness,
    ) -> None:
        self.transcriber, self.every, self.activity = transcriber, every, activity
        self.name = transcriber.name

    def voice(
        self, language: str | None = None, live: bool = True, carried: Sequence[str] | None = None
    ) -> RedecodedVoice:
        return RedecodedVoice(self, language, live, carried)


class RedecodedVoice:
    """One speaker; see `Voice`."""

    def __init__(
        self,
        recogniser: Redecoding,
        language: str | None,
        live: bool,
        carried: Sequence[str] | None = None,
    ) -> None:
        self._recogniser, self._language, self._live = recogniser, language, live
        self._activity = recogniser.activity()
        self.rhythm = recogniser.every
        self._begin = 0  # frames before the stretch
        self._lost = 0  # samples that were lost
        self._audio: list[Samples] = []  # frames of the stretch, or those that may begin it
        self._voiced: list[bool] = []  # which of them have speech
        self._rest = np.zeros(0, np.float32)  # samples that do not fill a frame yet
        self._speaks = bool(carried)  # in the middle of a stretch
        self._silent = 0  # frames since somebody spoke
        if carried is not None and not carried:  # right after a stretch
            self._silent = frames(GAP) - frames(MARGIN)
        self._paused = carried is None  # the silence was reported
        self._agreement = Agreement(carried or ())
        self._told = 0.0  # position that was told last
        self._looked = 0  # frames of the stretch at the last look
        self._cost = 0.0  # seconds that a look takes
        self._shown = False  # there are open words
        self._last = 0.0  # when the last committed word ended

    def hear(self, samples: Samples) -> list[Heard]:
        samples = np.concatenate([self._rest, samples])
        count = len(samples) // FRAME
        self._rest = samples[count * FRAME :]
        new = samples[: count * FRAME].reshape(-1, FRAME)
        found: list[Heard] = []
        for frame, voiced in zip(new, self._activity.voiced(new), strict=True):
            self._audio.append(frame)
            self._voiced.append(bool(voiced))
            found += self._step()
        if self._speaks and self._due():
            found += self._look()
        if not (found or self._shown) and self._seconds(len(self._audio)) >= self._told + QUIET:
            found = [self._heard([], [])]
        return found

    def skip(self, samples: int) -> list[Heard]:
        found = self._end()
        self._begin += len(self._audio)
        self._lost += len(self._rest) + samples
        self._audio, self._voiced, self._rest = [], [], self._rest[:0]
        return [*found, *self._pause()]

    def finish(self) -> list[Heard]:
        missing = -len(self._rest) % FRAME
        found = self.hear(np.zeros(missing, np.float32)) if missing else []
        return [*found, *self._end(), *self._pause()]

    def _seconds(self, count: int) -> float:
        """When frame `count` of the stretch begins."""
        return ((self._begin + count) * FRAME + self._lost) / RATE

    def _step(self) -> list[Heard]:
        """A frame has come."""
        self._silent = 0 if self._voiced[-1] else self._silent + 1
        if self._speaks:
            if self._silent >= frames(GAP):
                return self._end()
            return self._cut() if len(self._audio) >= frames(LONGEST) else []
        if sum(self._voiced[-3:]) >= 2:
            self._speaks, self._paused = True, False
            return []
        self._forget(len(self._audio) - frames(MARGIN))
        if self._silent >= frames(PAUSE) and not self._paused:
            return self._pause()
        return []

    def _due(self) -> bool:
        """Whether enough has come for another look, on this machine."""
        fresh = (len(self._audio) - self._looked) * FRAME / RATE
        return fresh >= max(self._recogniser.every, SHARE * self._cost if self._live else 0.0)

    def _look(self) -> list[Heard]:
        """Recognise the open stretch."""
        count, before = len(self._audio), self._looked
        words, still = self._agreement.update(self._recognise(count))
        self.rhythm = (count - before) * FRAME / RATE
        self._looked = count
        if not (words or still or self._shown):
            return []
        self._shown = bool(still)
        # Committed words were there at the look before.
        return [self._heard(self._in_order(words, self._seconds(before)), still)]

    def _end(self) -> list[Heard]:
        """Somebody has stopped speaking: commit all."""
        if not self._speaks:
            return []
        words: list[Word] = []
        if self._shown or sum(self._voiced) * FRAME >= SHORTEST * RATE:
            count = min(len(self._audio), len(self._audio) - self._silent + frames(MARGIN))
            words = self._agreement.finish(self._recognise(count))
        self._agreement, self._speaks, self._looked = Agreement(), False, 0
        self._forget(len(self._audio) - frames(MARGIN))
        return self._report(words)

    def _cut(self) -> list[Heard]:
        """The stretch is too long: commit what is before its quietest point."""
        latest = np.stack(self._audio[-frames(LATEST_CUT) : -frames(MARGIN)])
        quiet = np.convolve(loudness(latest), np.ones(5) / 5, mode="same")
        quiet[:2] = quiet[-2:] = np.inf
        count = len(self._audio) - frames(LATEST_CUT) + int(quiet.argmin())
        words = self._recognise(count)
        carried = self._agreement.beyond(words)
        rest = self._agreement.finish(words)
        self._agreement, self._looked = Agreement(carried), 0
        self._forget(count)
        return self._report(rest)

    def _report(self, words: list[Word]) -> list[Heard]:
        """Words of a stretch that is over."""
        if not (words or self._shown):
            return []
        self._shown = False
        return [self._heard(self._in_order(words, self._seconds(len(self._audio))), [])]

    def _pause(self) -> list[Heard]:
        if self._paused:
            return []
        self._paused = True
        return [self._heard([], [], pause=True)]

    def _heard(self, words: list[Word], still: list[Word], pause: bool = False) -> Heard:
        self._told = self._seconds(len(self._audio))
        anchor = Anchor(self._begin * FRAME + self._lost, tuple(self._agreement.committed))
        return Heard(words, still, self._told, pause, anchor)

    def _forget(self, count: int) -> None:
        """Drop frames from the front."""
        count = max(0, count)
        del self._audio[:count], self._voiced[:count]
        self._begin += count

    def _recognise(self, count: int) -> list[Word]:
        """The words of the first frames of the stretch."""
        began = time.perf_counter()
        samples = np.concatenate(self._audio[:count])
        found = self._recogniser.transcriber.transcribe(samples, self._language)
        took = time.perf_counter() - began
        self._cost = took if self._cost == 0.0 else (self._cost + took) / 2
        return self._timed(plausible(found, len(samples) / RATE), count)

    def _timed(self, words: Sequence[Word | str], count: int) -> list[Word]:
        """Words with times in the audio: their own, or by their letters' share of the speech."""
        begin = self._seconds(0)
        spoken = np.flatnonzero(self._voiced[:count])
        if not len(spoken):
            spoken = np.arange(count)
        sizes = [len(_text(word)) + 1 for word in words]
        ends = [total / sum(sizes) for total in accumulate(sizes)]
        found: list[Word] = []
        for word, size, end in zip(words, sizes, ends, strict=True):
            if isinstance(word, Word):
                found.append(Word(word.text, begin + word.start, begin + word.end))
                continue
            first, last = (
                int(spoken[min(len(spoken) - 1, int(share * len(spoken)))])
                for share in (end - size / sum(sizes), end - 1e-9)
            )
            found.append(Word(word, self._seconds(first), self._seconds(last + 1)))
        return found

    def _in_order(self, words: list[Word], latest: float) -> list[Word]:
        """Times of committed words never go back, nor beyond what was heard."""
        found: list[Word] = []
        for word in words:
            end = max(self._last, min(word.end, latest))
            start = min(max(self._last, word.start), end)
            found.append(Word(word.text, start, end))
            self._last = end
        return found


def _text(word: Word | str) -> str:
    return word.text if isinstance(word, Word) else word


def plausible(words: Sequence[Word | str], seconds: float) -> list[Word | str]:
    """Words without descriptions of noises, without loops, and no more than anybody can say."""
    spoken: list[Word | str] = []
    closing = ""
    for word in words:
        text = _text(word)
        if not closing:
            closing = NOISES.get(text[0], "")
            if not closing:
                spoken.append(word)
            elif len(text) == 1:  # an opening mark alone
                continue
        if closing and text.rstrip(".,!?")[-1:] == closing:
            closing = ""
    spoken = without_loops(spoken)
    letters = sum(len(_text(word)) for word in spoken)
    most = MOST_LETTERS * (seconds + 0.5)
    while letters > most:
        letters -= len(_text(spoken.pop()))
    return spoken


def without_loops(words: list[Word | str]) -> list[Word | str]:
    """A recogniser that hears nothing may say the same for ever: what follows the first is left."""
    folded = [fold(_text(word)) for word in words]
    for place in range(len(words)):
        for size in range(1, 11):
            times = max(4, -(-8 // size))
            unit = folded[place : place + size]
            if len(unit) == size and folded[place : place + size * times] == unit * times:
                return words[: place + size]
    return words
