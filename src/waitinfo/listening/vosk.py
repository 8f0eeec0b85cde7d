"""Vosk, a recogniser of streams."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from waitinfo.errors import WaitinfoError
from waitinfo.listening.activity import FRAME, Loudness
from waitinfo.listening.audio import RATE, Samples
from waitinfo.listening.recogniser import Agreement, Anchor, Heard, Word
from waitinfo.listening.redecoding import PAUSE, QUIET

SIZE = 6 * FRAME  # samples between two looks
EVERY = SIZE / RATE


class VoskRecogniser:
    """A model of Vosk: a folder, or a name or language as its own list has it."""

    every = EVERY

    def __init__(self, model: str, folder: bool) -> None:
        try:
            import vosk
        except (ImportError, OSError):
            raise WaitinfoError("Vosk is not installed: pip install vosk") from None
        self.name = model
        vosk.SetLogLevel(-1)
        try:
            if folder:
                self._model = vosk.Model(model_path=model)
            elif model.startswith("vosk-"):
                self._model = vosk.Model(model_name=model)
            else:
                self._model = vosk.Model(lang=model)
        except SystemExit:  # what Vosk does about a name that it does not know
            raise WaitinfoError(f"recogniser vosk:{model}: Vosk has no such model") from None
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            name = model if folder else f"vosk:{model}: cannot be fetched"
            raise WaitinfoError(f"recogniser {name}: {lines[0]}") from None
        self._new: Any = vosk.KaldiRecognizer

    def voice(
        self, language: str | None = None, live: bool = True, carried: Sequence[str] | None = None
    ) -> VoskVoice:
        recogniser = self._new(self._model, RATE)
        recogniser.SetWords(True)
        recogniser.SetPartialWords(True)
        return VoskVoice(recogniser, carried)


class VoskVoice:
    """One speaker; see `Voice`."""

    rhythm = EVERY

    def __init__(self, recogniser: Any, carried: Sequence[str] | None = None) -> None:
        self._recogniser = recogniser
        self._waiting: list[Samples] = []
        self._heard = 0  # samples
        self._lost = 0
        self._last = 0.0  # when the last word ended
        self._paused = carried is None
        self._shown = False
        self._agreement = Agreement(carried or ())
        self._begin = 0  # samples before the stretch
        self._told = 0.0  # position that was told last
        self._seen: list[Word] = []  # at the look before
        self._activity, self._silent = Loudness(), 0  # frames since somebody spoke

    def hear(self, samples: Samples) -> list[Heard]:
        self._waiting.append(samples)
        given = np.concatenate(self._waiting)
        found: list[Heard] = []
        while len(given) >= SIZE:
            found += self._look(given[:SIZE])
            given = given[SIZE:]
        self._waiting = [given]
        return found

    def skip(self, samples: int) -> list[Heard]:
        found = self._rest()
        self._lost += samples
        return found + self._pause()

    def finish(self) -> list[Heard]:
        return self._rest() + self._pause()

    def _look(self, samples: Samples) -> list[Heard]:
        self._heard += len(samples)
        pcm = (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()
        if self._recogniser.AcceptWaveform(pcm):
            found = self._ended(self._recogniser.Result())
        else:
            partial = json.loads(self._recogniser.PartialResult())
            found = self._partial(self._words(partial.get("partial_result", [])))
        if len(samples) == SIZE:
            voiced = np.flatnonzero(self._activity.voiced(samples.reshape(-1, FRAME)))
            count = SIZE // FRAME
            self._silent = count - 1 - int(voiced[-1]) if len(voiced) else self._silent + count
        silent = self._silent * FRAME >= PAUSE * RATE
        found += self._pause() if silent and not self._shown else []
        if not (found or self._shown) and self._position >= self._told + QUIET:
            found = [self._tell([], [])]
        return found

    def _partial(self, words: list[Word]) -> list[Heard]:
        """It computes in steps of its own: only what is new can agree with what was."""
        if words == self._seen:
            return []
        self._seen = words
        return self._report(*self._agreement.update(words))

    def _rest(self) -> list[Heard]:
        found = self._look(np.concatenate(self._waiting)) if self._waiting else []
        self._waiting = []
        return found + self._ended(self._recogniser.FinalResult())

    def _ended(self, result: str) -> list[Heard]:
        """The recogniser is done with a stretch."""
        words = self._agreement.finish(self._words(json.loads(result).get("result", [])))
        self._agreement, self._seen = Agreement(), []
        self._begin = self._heard + self._lost
        return self._report(words, [])

    @property
    def _position(self) -> float:
        return (self._heard + self._lost) / RATE

    def _words(self, given: list[dict[str, Any]]) -> list[Word]:
        lost = self._lost / RATE
        return [Word(w["word"], w["start"] + lost, w["end"] + lost) for w in given]

    def _report(self, words: list[Word], still: list[Word]) -> list[Heard]:
        if not (words or still or self._shown):
            return []
        self._shown = bool(still)
        ordered: list[Word] = []
        for word in words:
            end = max(self._last, min(word.end, self._position))
            ordered.append(Word(word.text, min(max(self._last, word.start), end), end))
            self._last, self._paused = end, False
        return [self._tell(ordered, still)]

    def _pause(self) -> list[Heard]:
        if self._paused:
            return []
        self._paused = True
        return [self._tell([], [], pause=True)]

    def _tell(self, words: list[Word], still: list[Word], pause: bool = False) -> Heard:
        self._told = self._position
        anchor = Anchor(self._begin, tuple(self._agreement.committed))
        return Heard(words, still, self._told, pause, anchor)
