"""The side of the engine for streams of another process; `remote` is theirs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from waitinfo.errors import WaitinfoError
from waitinfo.streaming.channel import Arrival, Channel, Mark, StreamOptions
from waitinfo.streaming.event import Observer, RoundStats
from waitinfo.streaming.remote import BUSY, IDLE, OVER, Facts, Order, Report
from waitinfo.streaming.scheduler import QUEUE
from waitinfo.streaming.translator import Translator

Send = Callable[[RoundStats | None, list[tuple[Any, ...]]], None]


@dataclass(slots=True, eq=False)
class _HostedLine:
    """What has been exchanged about a stream."""

    number: int
    channel: Channel
    done: int = 0  # orders that count
    ahead: int = 0  # events that were sent and not taken
    states: int = -1  # the last sentence or window whose state was sent
    memories: int = -1


class Host(Observer):
    """Does what the orders for one translator ask for, and reports what its rounds have done.

    `send` may be called on any thread, one at a time.
    """

    def __init__(self, translator: Translator, send: Send) -> None:
        self._translator, self._scheduler = translator, translator._scheduler
        self._scheduler.observer = self
        self._send = send
        self._lock = threading.Lock()  # of reports: they arrive in the order of what they say
        self._lines: dict[int, _HostedLine] = {}
        self._by_channel: dict[Channel, _HostedLine] = {}
        self._stats: RoundStats | None = None

    @staticmethod
    def facts(name: str, translator: Translator) -> Facts:
        engine = translator._scheduler.engine
        return Facts(
            name, translator.system.name, engine.slots, engine.capacity, engine.has_info,
            engine.bytes_per_slot,
        )  # fmt: skip

    # Orders, by the thread that reads them

    def receive(self, orders: Sequence[Sequence[Any]]) -> None:
        for each in orders:
            order = Order(*each)
            try:
                self._obey(order)
            except Exception as error:
                self._refuse(order.number, error)

    def _obey(self, order: Order) -> None:
        if order.opening is not None:
            self._open(order.number, order.opening)
        line = self._lines.get(order.number)
        if line is None:
            return  # it is over, which the other side will learn
        channel = line.channel
        if order.close:
            self._forget(line)
            self._scheduler.close([channel])
            return
        with self._lock:  # no report comes between an order and its number
            if order.dial is not None:
                self._turn(line, *order.dial)
            if order.texts:
                arrivals = [Arrival(when, _unpacked(text), at) for when, text, at in order.texts]
                self._scheduler.receive(channel, arrivals)
            line.done += order.counts
            held = line.ahead >= QUEUE
            line.ahead -= order.taken
        if held and order.taken:
            self._report([channel])

    def _turn(self, line: _HostedLine, k: float, lag: float | None) -> None:
        controller = None if lag is None else self._translator.dials.controller(lag, 0)
        line.states = -1
        self._scheduler.set_dial(line.channel, k, controller)

    def _open(self, number: int, opening: StreamOptions) -> None:
        channel = self._translator._open_channel(StreamOptions(*opening), 0)
        line = _HostedLine(number, channel)
        with self._lock:
            self._lines[number] = self._by_channel[channel] = line
        channel.listener = self._report

    def _refuse(self, number: int, error: Exception) -> None:
        """The other side has checked everything, so this is an error of the program."""
        if not isinstance(error, WaitinfoError):
            logging.getLogger(__name__).error("a stream failed", exc_info=error)
        if (line := self._lines.get(number)) is not None:
            self._forget(line)
            self._scheduler.close([line.channel])
        told = type(error).__name__, str(error)
        with self._lock:
            self._send(None, [tuple(Report(number, 0, OVER, [], None, {}, told))])

    def _forget(self, line: _HostedLine) -> None:
        with self._lock:
            self._lines.pop(line.number, None)
            self._by_channel.pop(line.channel, None)

    def drop(self) -> None:
        """The other side is gone: close all streams."""
        lines = list(self._lines.values())
        for line in lines:
            self._forget(line)
        self._scheduler.close([line.channel for line in lines])

    # Reports, mostly by the thread that leads

    def round(self, stats: RoundStats) -> None:
        self._stats = stats  # goes with the reports of this round

    def _report(self, channels: Sequence[Channel]) -> None:
        with self._lock:
            lines = [line for each in channels if (line := self._by_channel.get(each)) is not None]
            reports = [tuple(self._report_of(line)) for line in lines]
            stats, self._stats = self._stats, None
            if reports or stats is not None:
                self._send(stats, reports)

    def _report_of(self, line: _HostedLine) -> Report:
        """With the lock held. What is asked first is true of all that is found later."""
        channel, done = line.channel, line.done
        state = OVER if channel.closed else BUSY if channel.busy else IDLE
        events: list[tuple[Any, ...]] = []
        if line.ahead < QUEUE:
            events = [tuple(event) for event in self._scheduler.collect(channel)]
            line.ahead += len(events)
        elif state != BUSY:  # more is to come, once the reader has taken what there is
            state = BUSY
        error = None
        if state == OVER:
            if channel.error is not None:
                error = channel.error_kind.__name__, channel.error
            self._lines.pop(line.number, None)
            self._by_channel.pop(channel, None)
        return Report(
            line.number, done, state, events, self._dial(line), self._memories(line), error
        )

    @staticmethod
    def _dial(line: _HostedLine) -> tuple[float, dict[int, Any]] | None:
        controller = line.channel.controller
        if controller is None:
            return None
        states = controller.states_after(line.states)
        line.states = max(states, default=line.states)
        return controller.k, states

    @staticmethod
    def _memories(line: _HostedLine) -> dict[int, tuple[float, ...]]:
        found = {n: m for n, m in [*line.channel.memories.items()] if n > line.memories}
        line.memories = max(found, default=line.memories)
        return found


def _unpacked(text: str | bool) -> str | Mark:
    if isinstance(text, str):
        return text
    return Mark.FLUSH if text else Mark.END
