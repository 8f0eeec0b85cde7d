"""Streams: what a user holds of a running translation."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

from waitinfo.streaming.channel import Channel, Mark
from waitinfo.streaming.event import Event
from waitinfo.streaming.lag import Dials, DialTurn
from waitinfo.streaming.replay import Replay
from waitinfo.streaming.scheduler import Scheduler
from waitinfo.streaming.session import Session


class Handle:
    """What both kinds of stream share. Garbage collection closes a stream that was not closed."""

    def __init__(self, scheduler: Scheduler, channel: Channel, dials: Dials) -> None:
        self._scheduler, self._channel, self._dials = scheduler, channel, dials
        weakref.finalize(self, scheduler.abandon, channel).atexit = False

    def __repr__(self) -> str:
        dial = f"k={self.k:g}" if self.lag is None else f"lag={self.lag:g}"
        state = "finished" if self.finished else "open"
        return f"<{type(self).__name__} {dial}, {state}: {self.text!r}>"

    @property
    def k(self) -> float:
        """The latency dial. A new value counts from the next decision on, and ends a held lag."""
        return self._channel.k

    @k.setter
    def k(self, value: float) -> None:
        self._scheduler.set_dial(self._channel, self._dials.check(value))

    @property
    def lag(self) -> float | None:
        """The lag in words that the stream holds by turning its dial; None if it does not."""
        controller = self._channel.controller
        return None if controller is None else controller.target

    @lag.setter
    def lag(self, value: float | None) -> None:
        history = self._channel.trace.maxlen
        controller = None if value is None else self._dials.controller(value, history)
        self._scheduler.set_dial(self._channel, self._channel.k, controller)

    @property
    def session(self) -> Session:
        """Its text side."""
        return self._channel.session

    def replay(self) -> Replay:
        """What would continue the stream now: see `Session.replay`."""
        return self._channel.replay()

    @property
    def turns(self) -> list[DialTurn]:
        """Where the dial was turned to hold the lag, and to which value; the last ones."""
        controller = self._channel.controller
        return [] if controller is None else list(controller.turns)

    @property
    def text(self) -> str:
        """The words shown so far; of a long stream the last ones (see `history`)."""
        return "".join(self._scheduler.history(self._channel)[1]).lstrip()

    @property
    def trace(self) -> list[Event]:
        """The events so far; of a long stream the last ones (see `history`)."""
        return self._scheduler.history(self._channel)[0]

    @property
    def other_language(self) -> str | None:
        """The language that the text is plainly in, if it is not the model's; else None."""
        return self._channel.session.watch.other

    @property
    def began(self) -> float:
        """When the stream was opened, by `time.monotonic`; the events count their time from it."""
        return self._channel.began

    @property
    def finished(self) -> bool:
        """Whether the stream takes no more text."""
        return self._channel.ended or self._channel.closed

    def close(self) -> None:
        """Give the stream up, finished or not."""
        self._scheduler.close([self._channel])


class Stream(Handle):
    """One running translation; opened by `Translator.stream`. Belongs to one thread at a time."""

    def push(self, text: str, wait: bool = True, at: float | None = None) -> list[Event]:
        """Source text that has arrived; returns the events it caused.

        With `wait=False` it returns at once, and iterate over the stream to get the events.
        `at` is when it was spoken, in seconds; pauses are measured by it, or else in real time.
        """
        return self._scheduler.push({self._channel: text}, wait, at)[self._channel]

    def flush(self, wait: bool = True) -> list[Event]:
        """End the present sentence, whatever its text; returns its remaining events."""
        return self._scheduler.push({self._channel: Mark.FLUSH}, wait)[self._channel]

    def finish(self, wait: bool = True) -> list[Event]:
        """No more text will come; returns the remaining events."""
        try:
            return self._scheduler.push({self._channel: Mark.END}, wait)[self._channel]
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[Event]:
        """Events as they happen, until the stream has been finished or closed."""
        while events := self._scheduler.wait_for_events(self._channel):
            yield from events

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
