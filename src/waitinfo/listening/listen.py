"""From audio to translated words: recognition and a stream, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Literal, NamedTuple

from waitinfo.errors import WaitinfoError
from waitinfo.listening.audio import RATE, Samples, read_file, read_input
from waitinfo.listening.loading import DEFAULT, load_recogniser
from waitinfo.listening.recogniser import Heard, Recogniser, Voice, Word
from waitinfo.listening.sources import Clock, Lost, Microphone, Paced, Piped, Recording, Source
from waitinfo.listening.spoken import SpokenText, Told
from waitinfo.streaming.event import Event
from waitinfo.streaming.stream import Stream
from waitinfo.streaming.translator import Translator, load


class SpeechEvent(NamedTuple):
    """Something that was heard or written. Times are seconds of the audio.

    | kind | text | start, end |
    |---|---|---|
    | HEARD | a recognised word, never taken back | when it was spoken |
    | OPEN | what seems to follow, and may change; "" for nothing | when it seems to be spoken |
    | WRITE | translated words, with a space before if one is due | source words read for them |
    | PAUSE | "" | the silence so far |
    | END | the translation of a sentence that is complete | its source words |
    | LOST | "" | audio that came too fast to be heard |
    """

    kind: Literal["HEARD", "OPEN", "WRITE", "PAUSE", "END", "LOST"]
    text: str
    start: float
    end: float
    audio: float  # how much had been heard
    time: float  # the clock of the source; simulated where it is not live
    source: str = ""  # END: what was spoken
    event: Event | None = None  # WRITE: that of the stream


class Listener:
    """Iterate to get the events. `stop` ends politely: what was heard is translated to its end."""

    def __init__(self, source: Source, voice: Voice, stream: Stream | None) -> None:
        self.source, self.voice, self.stream = source, voice, stream
        self.seconds = 0.0  # of audio that have come
        self.lost = 0.0  # seconds of audio that were not heard
        self._audio = 0.0  # taken into account by the newest event
        self._last = 0.0  # end of the last recognised word
        self._open = False
        self._text = SpokenText()

    @property
    def rhythm(self) -> float:
        """Seconds of audio between two looks at the open words, as it is now."""
        return self.voice.rhythm

    def stop(self) -> None:
        """Hear no more; iteration goes on to the end of what was heard."""
        self.source.stop()

    def __iter__(self) -> Iterator[SpeechEvent]:
        try:
            for samples in self.source:
                if isinstance(samples, Lost):
                    yield from self._skip(samples.samples)
                else:
                    yield from self.hear(samples)
            yield from self.finish()
        finally:
            self.close()

    def hear(self, samples: Samples) -> Iterator[SpeechEvent]:
        """Audio that has come, where somebody else takes it from its source."""
        self.seconds += len(samples) / RATE
        yield from self._heard(self.voice.hear(samples))

    def finish(self) -> Iterator[SpeechEvent]:
        """No more will come."""
        yield from self._heard(self.voice.finish())
        if self.stream is not None:
            yield from self._told(self.stream.finish())
            yield from map(self._as_event, self._text.end())

    def close(self) -> None:
        if self.stream is not None:
            self.stream.close()

    def _skip(self, samples: int) -> Iterator[SpeechEvent]:
        yield from self._heard(self.voice.skip(samples))
        before, self.seconds = self.seconds, self.seconds + samples / RATE
        self.lost += samples / RATE
        yield self._event("LOST", "", before, self.seconds)

    def _heard(self, found: Iterable[Heard]) -> Iterator[SpeechEvent]:
        for heard in found:
            self._audio = heard.position
            for word in heard.words:
                self._last = word.end
                yield self._event("HEARD", word.text, word.start, word.end)
            if heard.open or self._open:
                text = " ".join(word.text for word in heard.open)
                times = (heard.open or heard.words)[-1:] or [Word("", self._last, self._last)]
                yield self._event("OPEN", text, self._last, times[0].end)
                self._open = bool(heard.open)
            if self.stream is not None:
                for word in heard.words:
                    if text := self._text.give(word):
                        yield from self._told(self.stream.push(text, at=word.end))
            if heard.pause:
                yield self._event("PAUSE", "", self._last, heard.position)
                if self.stream is not None:
                    yield from self._told(self.stream.flush())

    def _told(self, events: Iterable[Event]) -> Iterator[SpeechEvent]:
        """What the stream has read and written."""
        yield from map(self._as_event, self._text.told(events))

    def _as_event(self, told: Told) -> SpeechEvent:
        found = self._event(told.kind, told.text, told.start, told.end)
        return found._replace(source=told.source, event=told.event)

    def _event(
        self,
        kind: Literal["HEARD", "OPEN", "WRITE", "PAUSE", "END", "LOST"],
        text: str,
        start: float,
        end: float,
    ) -> SpeechEvent:
        return SpeechEvent(kind, text, start, end, self._audio, self.source.clock.now())


def listen(
    source: str | Path | Source | Iterable[Samples] | None = None,
    recogniser: str | Path | Recogniser = DEFAULT,
    translator: str | Path | Translator | None = None,
    language: str | None = None,
    k: float | None = None,
    lag: float | None = None,
    pace: bool = False,
) -> Listener:
    """Hear audio and translate it; iterate over what is returned to get its events.

    `source` is an audio file, "-" for standard input, None for the default microphone, a source of
    `waitinfo.listening.sources`, or samples in pieces (16 kHz, float32). Files come as fast as they
    can be heard, with `pace` as if they were spoken now. `recogniser` is a name or a folder (see
    `waitinfo.listening.loading`), `translator` a model or a `Translator`; by default the bundled
    German → English. `language` is that of the speaker, by default that of the model.
    """
    given = open_source(source, pace)
    found = load_recogniser(recogniser) if isinstance(recogniser, str | Path) else recogniser
    if not isinstance(translator, Translator):
        translator = load(translator, streams=1)
    language = language or translator.loaded.languages.source
    voice = found.voice(language, given.live)
    return Listener(given, voice, translator.stream(k, raw=True, history=0, lag=lag))


def open_source(
    source: str | Path | Source | Iterable[Samples] | None,
    pace: bool = False,
    clock: Clock | None = None,
) -> Source:
    """A source from what `listen` takes."""
    if source is None:
        return Microphone()
    if isinstance(source, str) and source == "-":
        return Piped(read_input())
    if isinstance(source, str | Path):
        path = Path(source)
        if not path.is_file():
            raise WaitinfoError(f"{path}: no such audio file")
        rest = iter(read_file(path))
        first = list(islice(rest, 1))  # what is not audio is refused before anything is loaded
        blocks: Iterable[Samples] = chain(first, rest)
    elif hasattr(source, "clock"):
        return source  # type: ignore[return-value]
    else:
        blocks = source  # type: ignore[assignment]
    return Paced(blocks, clock) if pace else Recording(blocks)
