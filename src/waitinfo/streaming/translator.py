"""A loaded model that serves many streams at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, overload

from waitinfo.errors import WaitinfoError, whole
from waitinfo.importing.sources import find_source
from waitinfo.streaming.channel import Channel, Mark, Said, StreamOptions
from waitinfo.streaming.engine import new_engine
from waitinfo.streaming.event import Event, Observer, shown_text
from waitinfo.streaming.lag import Dials
from waitinfo.streaming.replay import Replay
from waitinfo.streaming.scheduler import HISTORY, Scheduler
from waitinfo.streaming.segmenter import Segmentation
from waitinfo.streaming.session import Session
from waitinfo.streaming.stream import Stream
from waitinfo.systems import load_plugins
from waitinfo.text.languages import UNKNOWN, Languages
from waitinfo.trained.saving import LoadedModel, load_model

if TYPE_CHECKING:
    import torch

    from waitinfo.model.integers.model import HostDevice

# Source tokens encoded in a round: how long one long text may hold up the other streams.
ROUND_TOKENS = {"cpu": 256, "cuda": 8192}


WARM_WORDS = 4  # times two, of each stream
GIB = 2**30


class Translator:
    """Opens streams on one model and advances them together; may be used by many threads.

    At most `streams` are open at a time, each with room for sentences of `capacity` source tokens.
    Streams that are opened without a dial hold the given `lag`, if any. `segment` says how streams
    find the ends of sentences unless they are told otherwise; `clock` measures pauses in text that
    comes without times. On a GPU, rounds are recorded as CUDA graphs unless `recorded` is off:
    many times as fast, after a few seconds at the start.
    """

    elsewhere: ClassVar[bool] = False  # whether its rounds run in another process

    def __init__(
        self,
        loaded: LoadedModel,
        streams: int = 32,
        capacity: int = 256,
        ending: str = "guard",
        observer: Observer | None = None,
        lag: float | None = None,
        segment: str = "auto",
        clock: Callable[[], float] = time.monotonic,
        recorded: bool = True,
    ) -> None:
        device = loaded.model.device.type
        round_tokens = ROUND_TOKENS.get(device, ROUND_TOKENS["cpu"])
        sizes = whole("streams", streams, 1), whole("capacity", capacity, 2)
        try:
            engine = new_engine(loaded.model, loaded.system, *sizes, ending, round_tokens, recorded)
        except MemoryError:
            raise WaitinfoError(f"--streams {streams}: more than there is memory for") from None
        self._set_up(loaded, Scheduler(engine, observer, clock=clock), lag, segment)

    def _set_up(
        self, loaded: LoadedModel, scheduler: Scheduler, lag: float | None, segment: str
    ) -> None:
        self.loaded, self._scheduler = loaded, scheduler
        self.segmentation = Segmentation.parse(segment)
        self.vocabulary, self.system = loaded.vocabulary, loaded.system
        self.dials = Dials(loaded.folder, loaded.system)
        self.lag = lag
        if lag is not None:
            self.dials.controller(lag)  # raise errors now

    def __repr__(self) -> str:
        languages = self.loaded.languages
        pair = f", {languages.source} → {languages.target}" if languages.source else ""
        return (
            f"<Translator {str(self.loaded.folder)!r}: {self.system.name}{pair} on {self.device}, "
            f"{self.open_streams} of {self.streams} streams open>"
        )

    @property
    def device(self) -> torch.device | HostDevice:
        return self.loaded.model.device

    @property
    def alive(self) -> bool:
        """Whether there is an engine."""
        return True

    @property
    def streams(self) -> int:
        """How many streams may be open at a time."""
        return self._scheduler.engine.slots

    @property
    def open_streams(self) -> int:
        """How many streams are open now."""
        return self._scheduler.open_streams

    @property
    def bytes_per_stream(self) -> int:
        """Memory that each stream takes, open or not."""
        return self._scheduler.engine.bytes_per_slot

    def warm_up(self) -> None:
        """Take the memory of all streams, and do what is slow for the first time. None is open."""
        needed = self.streams * self.bytes_per_stream
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if self.device.type == "cpu" and needed > there:
            raise WaitinfoError(
                f"--streams {self.streams}: take {needed / GIB:,.0f} GiB, and this machine has "
                f"{there / GIB:,.0f}"
            )
        self._scheduler.engine.backend.take_memory()
        for count in sorted({self.streams, self.streams // 2, 1} - {0}, reverse=True):
            streams = [self.stream(history=0) for _ in range(count)]
            try:
                for _ in range(WARM_WORDS):
                    self.push_many(dict.fromkeys(streams, "a b"))
                self.finish_many(streams)
            finally:
                for stream in streams:
                    stream.close()

    def check_dial(self, k: float | None) -> float:
        """A dial value as given, or the default; an error if it is out of range."""
        if k is None and self.lag is not None:
            return self.dials.at_lag(self.lag)
        return self.dials.check(k)

    # Streams

    def stream(
        self,
        k: float | None = None,
        raw: bool = False,
        segment: str | None = None,
        history: int | None = HISTORY,
        replay: Replay | None = None,
        lag: float | None = None,
        languages: Languages = UNKNOWN,
    ) -> Stream:
        """Open a stream at dial k, or one that holds a `lag` in words by turning its dial.

        `languages`: of a model of many, where they are not those that it was loaded for.

        With `raw`, text may arrive in any pieces, not only in words. `segment` says where sentences
        end: `auto`, `punctuation`, `pause` or `pause:SECONDS`, `none` (a sliding window) or
        `whole` (all text is one sentence). `trace` and `text` remember the last `history` events
        and words; None keeps all of them. `replay` continues an interrupted stream.
        """
        channel = self._open_channel(
            StreamOptions(k, raw, segment, replay, lag, languages), history
        )
        return Stream(self._scheduler, channel, self.dials)

    def _open_channel(self, options: StreamOptions, history: int | None) -> Channel:
        k, raw, segment, replay, lag, languages = options
        loaded = self.loaded.between(languages.source, languages.target)
        if k is not None and lag is not None:
            raise WaitinfoError("give a stream k or lag, not both")
        if k is None and lag is None:
            lag = self.lag
        history = None if history is None else whole("history", history)
        controller = None if lag is None else self.dials.controller(lag, history)
        dial = self.check_dial(k) if controller is None else controller.k
        engine = self._scheduler.engine
        segmentation = self.segmentation if segment is None else Segmentation.parse(segment)
        session = Session(
            self.vocabulary,
            engine.capacity - 1,
            raw,
            segmentation,
            engine.has_info,
            slides=self.system.simultaneous,
            language=loaded.languages.source,
            opening=loaded.opening,
        )
        if replay is not None:
            replay.check(len(self.vocabulary.target), session.limit, len(self.system.memory))
            session.resume(replay)
            if controller is not None:
                controller.resume(replay)
                dial = controller.k
        channel = self._scheduler.open(session, dial, history)
        channel.controller = controller
        return channel

    def push_many(self, texts: Mapping[Stream, str]) -> dict[Stream, list[Event]]:
        """Text for several streams at once, advanced together."""
        return self._together(dict(texts))

    def finish_many(self, streams: Iterable[Stream]) -> dict[Stream, list[Event]]:
        """Finish several streams together."""
        streams = list(streams)
        try:
            return self._together(dict.fromkeys(streams, Mark.END))
        except BaseException:
            self._scheduler.close([stream._channel for stream in streams])
            raise

    def _together(self, texts: Mapping[Stream, Said]) -> dict[Stream, list[Event]]:
        found = self._scheduler.push({stream._channel: text for stream, text in texts.items()})
        return {stream: found[stream._channel] for stream in texts}

    # Whole texts

    @overload
    def translate(self, text: str, k: float | None = None) -> str: ...

    @overload
    def translate(self, text: list[str], k: float | None = None) -> list[str]: ...

    def translate(self, text: str | list[str], k: float | None = None) -> str | list[str]:
        """Translate a text, or a list of texts together, at dial k."""
        if isinstance(text, str):
            return next(self._translations([text], k))
        if not isinstance(text, Iterable):
            raise WaitinfoError(f"translate takes text or a list of texts, not {text!r}")
        return list(self._translations(list(text), k))

    def _translations(self, texts: list[str], k: float | None) -> Iterator[str]:
        for text in texts:
            if not isinstance(text, str):
                raise WaitinfoError(f"translate takes text or a list of texts, not {text!r}")
        while texts:
            # As many at a time as there are streams free; none free is an error.
            count = max(1, min(len(texts), self.streams - self.open_streams))
            some, texts = texts[:count], texts[count:]
            streams: list[Stream] = []
            try:
                for _ in some:
                    streams.append(self.stream(k, history=0))
                pushed = self.push_many(dict(zip(streams, some, strict=True)))
                finished = self.finish_many(streams)
            finally:
                self._scheduler.close([stream._channel for stream in streams])
            for stream in streams:
                yield shown_text([*pushed[stream], *finished[stream]])


def load(
    model: str | Path | None = None,
    device: str = "auto",
    dtype: str = "auto",
    streams: int = 32,
    capacity: int = 256,
    ending: str = "guard",
    system: str | None = None,
    options: dict[str, Any] | None = None,
    observer: Observer | None = None,
    lag: float | None = None,
    segment: str = "auto",
    recorded: bool = True,
    plugins: Iterable[str | Path] = (),
    languages: Languages = UNKNOWN,
) -> Translator:
    """Load a model folder, a run folder or a bundled model (by name) to translate with.

    `system` and `options` replace the system the model was trained with by another it can serve,
    or change options of its own; `plugins` are Python files that define systems. dtype `auto` is
    int8 for packed models on a CPU, else float32. `observer` is told about every round. Streams
    without a dial of their own hold `lag`, in words, if the model is calibrated. `segment` says how
    streams find the ends of sentences, unless they are told otherwise. On a GPU, `recorded` rounds
    are many times as fast. `languages` chooses two of a model of many.
    """
    load_plugins(plugins)
    loaded = load_model(find_source(model, dtype), device, dtype, system, options)
    loaded = loaded.between(languages.source, languages.target)
    return Translator(loaded, streams, capacity, ending, observer, lag, segment, recorded=recorded)
