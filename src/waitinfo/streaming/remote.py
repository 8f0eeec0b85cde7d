"""Streams whose engine is in another process; `host` is its side.

Everything a stream is asked for is as if its engine were here: the same checks, the same calls, the
same events. What has arrived in a turn of the event loop goes over in one message, and what a round
has done comes back in one. No events pile up on the way: of each stream the other side sends no
more than a queue ahead of its reader. All of it runs on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

from waitinfo.errors import WaitinfoError
from waitinfo.streaming.channel import Channel, StreamOptions
from waitinfo.streaming.engine import Engine
from waitinfo.streaming.event import Event, Observer, RoundStats
from waitinfo.streaming.lag import LagController
from waitinfo.streaming.replay import DialState, ReplayError
from waitinfo.streaming.scheduler import QUEUE, Scheduler
from waitinfo.streaming.translator import Translator
from waitinfo.trained.saving import LoadedModel

BUSY, IDLE, OVER = range(3)  # states of a stream
CREDIT = QUEUE // 4  # events after which the other side is told that they were taken
KINDS = {kind.__name__: kind for kind in (WaitinfoError, ReplayError)}


class EngineGone(WaitinfoError):
    """The process of the engine has ended, and its streams with it."""

    def __init__(self, message: str = "the engine is being started again") -> None:
        super().__init__(message)


class Order(NamedTuple):
    """What is new of a stream since the last message."""

    number: int
    opening: StreamOptions | None = None  # with the first one
    texts: Sequence[tuple[float, str | bool, float]] = ()  # arrivals; True flushes, False ends
    dial: tuple[float, float | None] | None = None  # k, or the lag to be held
    taken: int = 0  # events that the reader has taken
    close: bool = False
    counts: bool = False  # its effect is waited for


class Report(NamedTuple):
    """What is new of a stream since the last round."""

    number: int
    done: int  # orders that count, with all that follows from them unless it is busy
    state: int
    events: Sequence[tuple[Any, ...]]
    dial: tuple[float, dict[int, DialState]] | None  # of a stream that holds its lag
    memories: dict[int, tuple[float, ...]]
    error: tuple[str, str] | None  # kind and message


class Facts(NamedTuple):
    """What is to be known of an engine in another process."""

    name: str  # of the model
    system: str
    slots: int
    capacity: int
    has_info: bool
    bytes_per_slot: int
    busy: bool = False  # there are no rounds here


@dataclass(slots=True)
class _RemoteLine:
    """What has been exchanged about a stream."""

    number: int
    opening: StreamOptions | None = None
    counted: int = 0  # orders
    turned: int = 0  # with which of them the dial was turned
    dial: tuple[float, float | None] | None = None  # to be sent
    taken: int = 0  # events that the other side was not told of


class RemoteScheduler(Scheduler):
    """Keeps the streams of an engine elsewhere. `send` takes orders; `reported` takes reports."""

    def __init__(
        self,
        facts: Facts,
        send: Callable[[list[tuple[Any, ...]]], None],
        observer: Observer | None = None,
    ) -> None:
        super().__init__(cast(Engine, facts), observer)
        self.alive = False  # until the other side has answered
        self._send = send
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leading = True  # the other side does
        self._due = False  # orders are to be sent
        self._lines: dict[Channel, _RemoteLine] = {}
        self._channels: dict[int, Channel] = {}
        self._numbers = 0

    def begin(self, channel: Channel, opening: StreamOptions) -> None:
        """A stream has been opened."""
        self._numbers += 1
        self._lines[channel] = _RemoteLine(self._numbers, opening)
        self._channels[self._numbers] = channel

    def set_dial(self, channel: Channel, k: float, controller: LagController | None = None) -> None:
        if (line := self._lines.get(channel)) is not None:
            line.dial = k, None if controller is None else controller.target
        super().set_dial(channel, k, controller)

    # Orders

    def _pass_on(self) -> None:
        if self._inbox or self._abandoned:
            self._order()

    def _order(self) -> None:
        if not self._due:
            self._due = True
            self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._flush)

    def abandon(self, channel: Channel) -> None:
        """Destructors run on any thread."""
        self._abandoned.append(channel)
        if self._loop is not None:
            with suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(self._pass_on)

    def _wait(self, *_: object, **__: object) -> None:
        raise WaitinfoError("streams of an engine in another process are for event loops")

    def _collect(self, channel: Channel) -> list[Event]:
        events = list(channel.events)
        channel.events.clear()
        if (line := self._lines.get(channel)) is not None and events:
            line.taken += len(events)
            if line.taken >= CREDIT:
                self._inbox.setdefault(channel)
                self._order()
        return events

    def _flush(self) -> None:
        """Send what is new of all streams."""
        self._due = False
        with self._lock:
            self._close_abandoned()
            news, self._inbox = self._inbox, {}
            found = map(self._order_of, news)
            orders = [tuple(order) for order in found if order is not None]
        if orders and self.alive:
            self._send(orders)

    def _order_of(self, channel: Channel) -> Order | None:
        line = self._lines.get(channel)
        if line is None:
            return None
        opening, line.opening = line.opening, None
        if channel.closed:
            self._forget(channel)
            return None if opening is not None else Order(line.number, close=True)
        inbox, channel.inbox = channel.inbox, []
        dial, line.dial = line.dial, None
        taken, line.taken = line.taken, 0
        counts = bool(inbox or dial)
        line.counted += counts
        if dial is not None:
            line.turned = line.counted
        texts = [(a.when, _packed(a.text), a.at) for a in inbox]
        return Order(line.number, opening, texts, dial, taken, counts=counts)

    def _forget(self, channel: Channel) -> None:
        line = self._lines.pop(channel, None)
        if line is not None:
            del self._channels[line.number]

    # Reports

    def reported(self, stats: RoundStats | None, reports: Sequence[Sequence[Any]]) -> None:
        """What a round has done."""
        touched: list[Channel] = []
        with self._lock:
            for each in reports:
                report = Report(*each)
                channel = self._channels.get(report.number)
                if channel is not None and not channel.closed:
                    self._take(channel, report)
                    touched.append(channel)
            failed = [channel.error for channel in touched if channel.error is not None]
        if stats is not None:
            self._observe(lambda: self.observer.round(stats))
        for error in failed:
            self._observe(lambda error=error: self.observer.failed(WaitinfoError(error)))  # type: ignore[misc]
        self._tell(touched)

    def _take(self, channel: Channel, report: Report) -> None:
        line = self._lines[channel]
        channel.add([Event._make(event) for event in report.events])
        for window, memory in report.memories.items():
            channel.remember(window, memory)
        if report.dial is not None and channel.controller and report.done >= line.turned:
            channel.controller.follow(*report.dial)
        if report.error is not None:
            kind, channel.error = report.error
            channel.error_kind = KINDS.get(kind, WaitinfoError)
        if report.state == OVER:
            self._end(channel)
        else:
            done = report.state == IDLE and report.done == line.counted
            channel.busy = not done or bool(channel.inbox or line.dial)

    def _end(self, channel: Channel) -> None:
        """The other side has given a stream's slot back."""
        channel.closed, channel.busy = True, False
        self._open -= 1
        self._forget(channel)

    def lost(self) -> None:
        """The other side is gone; its streams are continued by whoever has their replays."""
        self.alive = False
        with self._lock:
            channels = [channel for channel in self._lines if not channel.closed]
            for channel in channels:
                channel.fail(EngineGone())
                self._end(channel)
            self._lines.clear()
            self._channels.clear()
        self._tell(channels)


def _packed(text: Any) -> str | bool:
    return text if isinstance(text, str) else text.name == "FLUSH"


class RemoteTranslator(Translator):
    """Opens streams of an engine elsewhere, for an event loop."""

    elsewhere: ClassVar[bool] = True

    def __init__(self, loaded: LoadedModel, scheduler: RemoteScheduler) -> None:
        self._set_up(loaded, scheduler, None, "auto")
        self._remote = scheduler

    @property
    def alive(self) -> bool:
        return self._remote.alive

    def _open_channel(self, options: StreamOptions, history: int | None) -> Channel:
        if not self.alive:
            raise EngineGone
        channel = super()._open_channel(options, history)
        self._remote.begin(channel, options)
        return channel
