"""The scheduler: the only owner of the engine, its slots and the lock.

Streams hand in text and take out events; everything else happens in rounds. One thread at a time
leads: it takes in the text that has arrived, advances the engine, and publishes the events. A
thread that waits for its stream leads if nobody else does, and otherwise sleeps until its stream is
served: the rounds serve all streams together, so nobody waits for the backlog of another stream.

The lock is held only to hand things over, never while the model computes, so that an event loop may
call everything here but `serve` and `lead`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from waitinfo.errors import WaitinfoError
from waitinfo.streaming.engine import NOT_FINITE, Engine, TokenEvent
from waitinfo.streaming.event import Event
from waitinfo.streaming.observer import Observer, RoundStats
from waitinfo.streaming.session import Session

QUEUE = 4096  # events that wait for their reader before a stream is held up
HISTORY = 2000  # events, and translated words, that a stream remembers

Listener = Callable[[Sequence["Channel"]], None]


class Channel:
    """What the scheduler keeps of one stream. All of it belongs to the scheduler."""

    def __init__(self, session: Session, k: float, history: int | None) -> None:
        self.session, self.k = session, k
        self.listener: Listener | None = None  # called, without the lock, when something changed
        self.began = time.monotonic()
        self.slot: int | None = None  # given by the first round
        self.inbox: list[tuple[float, str | None]] = []  # time and text; None is the end
        self.events: deque[Event] = deque()  # that nobody has taken yet
        self.trace: deque[Event] = deque(maxlen=history)
        self.words: deque[str] = deque(maxlen=history)
        self.busy = False  # something can be done without more text
        self.ended = False  # no more text will come
        self.closed = False  # the slot was given back
        self.error: str | None = None  # no exception: its frames would keep streams alive
        self.served_by: object | None = None  # the call that waits for this stream

    @property
    def over(self) -> bool:
        """Nothing more will be written."""
        return self.closed or (self.ended and not self.busy)

    def check(self) -> None:
        """Raise unless text may be handed in."""
        if self.error is not None:
            raise WaitinfoError(f"this stream has failed: {self.error}")
        if self.ended or self.closed:
            raise WaitinfoError("this stream has been finished; open another")
        if self.served_by is not None:
            raise WaitinfoError("another push of this stream is under way; wait for it first")


def describe(error: Exception) -> str:
    """An error in one line; of an unexpected one with its kind."""
    kind = "" if isinstance(error, WaitinfoError) else f"{type(error).__name__}: "
    return f"{kind}{error}"


class _Waiter(threading.Condition):
    """A thread that sleeps until its streams are served or, with `eager`, have any events."""

    def __init__(self, lock: threading.Lock, eager: bool) -> None:
        super().__init__(lock)
        self.eager = eager


class Scheduler:
    """Rounds over all streams of one engine. Every method may be called from any thread."""

    def __init__(
        self,
        engine: Engine,
        observer: Observer | None = None,
        queue: int = QUEUE,
    ) -> None:
        self.engine, self.observer, self.queue = engine, observer or Observer(), queue
        self.bells: list[Callable[[], None]] = []  # each calls a thread that is there to lead
        self._lock = threading.Lock()
        self._open = 0
        self._abandoned: deque[Channel] = deque()  # filled without the lock, by destructors
        self._inbox: dict[Channel, None] = {}  # channels with something new, oldest first
        self._leading = False
        self._waiters: dict[Channel, list[_Waiter]] = {}
        # Of the leader alone. An interrupted round leaves them for the next one.
        self._arrivals: deque[Channel] = deque()
        self._by_slot: dict[int, Channel] = {}
        self._touched: dict[Channel, list[Event]] = {}
        self._failures: dict[Channel, Exception] = {}
        self._age = 0.0

    # Streams

    @property
    def open_streams(self) -> int:
        with self._lock:
            self._close_abandoned()
            return self._open

    def open(self, session: Session, k: float, history: int | None = HISTORY) -> Channel:
        """Admit a stream, or refuse it at once."""
        with self._lock:
            self._close_abandoned()
            if admitted := self._open < self.engine.slots:
                self._open += 1
        if not admitted:
            self.observer.refused("full")
            raise WaitinfoError(
                f"all {self.engine.slots} streams are in use; close one, or load the model with "
                f"more: each takes {self.engine.bytes_per_slot / 2**20:.0f} MiB"
            )
        return Channel(session, k, history)

    def submit(self, texts: Mapping[Channel, str | None], served_by: object | None = None) -> None:
        """Hand in text, or None for the end; all of it or, if a stream refuses, none.

        `served_by` marks the streams as waited for until `release`.
        """
        now = time.monotonic()
        with self._lock:
            for channel in texts:
                channel.check()
            for channel, text in texts.items():
                channel.inbox.append((now, text))
                channel.ended = text is None
                channel.served_by = served_by
                self._announce(channel)
            self._pass_on()

    def release(self, channels: Iterable[Channel]) -> None:
        """The call that waited for these streams is over."""
        with self._lock:
            for channel in channels:
                channel.served_by = None

    def set_dial(self, channel: Channel, k: float) -> None:
        with self._lock:
            channel.k = k
            if not channel.closed:
                self._announce(channel)
            self._pass_on()

    def close(self, channels: Sequence[Channel]) -> None:
        """Give streams up, finished or not."""
        with self._lock:
            for channel in channels:
                self._close(channel)
                channel.events.clear()
            self._pass_on()
        self._tell(channels)

    def abandon(self, channel: Channel) -> None:
        """Close a stream that nobody refers to. Takes no lock: it may run inside any other call."""
        self._abandoned.append(channel)
        for bell in self.bells[-1:]:
            bell()

    def collect(self, channel: Channel) -> list[Event]:
        """Events that nobody has taken yet."""
        with self._lock:
            return self._collect(channel)

    def put_back(self, channel: Channel, events: Sequence[Event]) -> None:
        """Return events that were collected but not delivered."""
        with self._lock:
            channel.events.extendleft(reversed(events))

    @staticmethod
    def check_error(channel: Channel) -> None:
        """Raise the error that a stream has failed with, if any."""
        if channel.error is not None:
            raise WaitinfoError(channel.error)

    def history(self, channel: Channel) -> tuple[list[Event], list[str]]:
        """The last events of a stream and the last words it has shown."""
        with self._lock:
            return list(channel.trace), list(channel.words)

    # Waiting for streams

    def serve(self, channels: Sequence[Channel]) -> dict[Channel, list[Event]]:
        """Wait until nothing more can be done for these streams; their events.

        If one of them fails, its error is raised once all are served; the events of the others
        stay in their queues.
        """
        found: dict[Channel, list[Event]] = {channel: [] for channel in channels}

        def served() -> bool:
            for channel in channels:
                found[channel] += self._collect(channel)
            return not any(channel.busy for channel in channels)

        with self._lock:
            self._wait(channels, served)
        failed = next((channel for channel in channels if channel.error is not None), None)
        if failed is not None:
            for channel, events in found.items():
                self.put_back(channel, events)
            self.check_error(failed)
        return found

    def wait_for_events(self, channel: Channel) -> list[Event]:
        """Wait until a stream has events; none mean that it is over."""
        with self._lock:
            self._wait([channel], lambda: bool(channel.events) or channel.over, eager=True)
            events = self._collect(channel)
        if not events:
            self.check_error(channel)
        return events

    def _wait(
        self, channels: Sequence[Channel], done: Callable[[], bool], eager: bool = False
    ) -> None:
        """Sleep, or lead, until `done`. With the lock held."""
        leader = False
        try:
            while not done():
                if leader or not self._leading:
                    leader = self._leading = self._has_work()
                if leader:
                    self._unlocked_round()
                else:  # somebody else leads, or only more text can help
                    self._sleep(channels, eager)
        finally:
            if leader:
                self._leading = False
            self._pass_on()

    def _sleep(self, channels: Sequence[Channel], eager: bool) -> None:
        waiter = _Waiter(self._lock, eager)
        for channel in channels:
            self._waiters.setdefault(channel, []).append(waiter)
        try:
            waiter.wait()
        finally:
            for channel in channels:
                self._waiters[channel].remove(waiter)
                if not self._waiters[channel]:
                    del self._waiters[channel]

    def lead(self) -> None:
        """Run rounds until nothing is left to do; for a thread that does nothing else."""
        with self._lock:
            if self._leading:
                return  # the leader sees to it, or passes on what is left
            self._leading = True
            try:
                while self._has_work():
                    self._unlocked_round()
            finally:
                self._leading = False

    # With the lock held

    def abort(self, error: Exception) -> None:
        """Fail all streams, because rounds are not possible any more."""
        with self._lock:
            channels = list(self._by_slot.values())
            for channel in channels:
                channel.error = describe(error)
                self._close(channel)
        self._tell(channels)

    def _pass_on(self) -> None:
        """Find a thread to lead if nobody does and there is something to do."""
        if self._leading or not self._has_work():
            return
        if self.bells:
            self.bells[-1]()
        elif self._waiters:
            next(iter(self._waiters.values()))[0].notify()

    def _announce(self, channel: Channel) -> None:
        channel.busy = True
        self._inbox[channel] = None

    def _has_work(self) -> bool:
        return bool(self._inbox or self._abandoned or self._left_over() or self.engine.busy)

    def _left_over(self) -> bool:
        """Whether an interrupted round left something to do."""
        return bool(self._arrivals or self._touched or self._failures)

    def _close_abandoned(self, leader: bool = False) -> None:
        while self._abandoned:
            self._close(self._abandoned.popleft(), leader)

    def _close(self, channel: Channel, leader: bool = False) -> None:
        """End a stream; its slot is given back now or, while somebody else leads, soon."""
        if channel.closed:
            return
        channel.closed, channel.busy = True, False
        self._open -= 1
        if leader or not self._leading:
            self._give_back(channel)
        else:
            self._inbox[channel] = None
        self._notify(channel)

    def _notify(self, channel: Channel, eager: bool = False) -> None:
        """Wake the threads that wait for a stream, or only the `eager` ones."""
        for waiter in self._waiters.get(channel, ()):
            if waiter.eager or not eager:
                waiter.notify()

    def _collect(self, channel: Channel) -> list[Event]:
        events = list(channel.events)
        channel.events.clear()
        if len(events) >= self.queue and not channel.closed:
            self._announce(channel)  # it was held up
        return events

    def _unlocked_round(self) -> None:
        self._lock.release()
        try:
            self._round()
        finally:
            self._lock.acquire()

    # Rounds: by the leader, without the lock but to hand things over

    def _round(self) -> None:
        began = time.monotonic()
        self._take_arrivals(began)
        while self._arrivals:
            self._take_in(self._arrivals[0])
            self._arrivals.popleft()
        rows = [self._by_slot[slot] for slot in self.engine.runnable]
        for channel in rows:
            self._touched.setdefault(channel, [])
        read, written = self._advance()
        self._publish()
        stats = RoundStats(
            seconds=time.monotonic() - began,
            streams=len(rows),
            read=read,
            written=written,
            queue_age=self._age,
            open_streams=self._open,
        )
        self._observe(lambda: self.observer.round(stats))

    def _take_arrivals(self, now: float) -> None:
        with self._lock:
            self._close_abandoned(leader=True)
            self._arrivals.extend(self._inbox)
            self._inbox.clear()
            waiting = [channel.inbox[0][0] for channel in self._arrivals if channel.inbox]
        self._age = now - min(waiting) if waiting else 0.0

    def _take_in(self, channel: Channel) -> None:
        """Hand what is new of a stream to its session and to the engine."""
        self._touched.setdefault(channel, [])
        if channel.closed:
            self._give_back(channel)
            return
        with self._lock:
            texts, channel.inbox = channel.inbox, []
            full = len(channel.events) >= self.queue
        try:
            for _, text in texts:
                if text is None:
                    channel.session.end()
                else:
                    channel.session.add(text)
            if channel.slot is None:
                channel.slot = self.engine.open(channel.k)
                self._by_slot[channel.slot] = channel
            self.engine.set_dial(channel.slot, channel.k)
            if not full:
                self.engine.resume(channel.slot)
            self._feed(channel)
        except Exception as error:
            self._failures[channel] = error

    def _feed(self, channel: Channel) -> None:
        assert channel.slot is not None
        if (found := channel.session.next_input()) is not None:
            self.engine.feed(channel.slot, found.tokens, found.complete)

    def _give_back(self, channel: Channel) -> None:
        if channel.slot is not None:
            del self._by_slot[channel.slot]
            self.engine.close(channel.slot)
            channel.slot = None

    def _advance(self) -> tuple[int, int]:
        """One round of the engine; the numbers of tokens read and written."""
        try:
            read, written = self._record(self.engine.advance())
        except Exception:
            # Find out whose fault it is: every stream by itself.
            read, written = 0, 0
            for slot in self.engine.runnable:
                try:
                    counts = self._record(self.engine.advance([slot]))
                except Exception as error:
                    self._failures[self._by_slot[slot]] = error
                else:
                    read, written = read + counts[0], written + counts[1]
        for slot in self.engine.failed:
            if slot in self._by_slot:
                self._failures[self._by_slot[slot]] = WaitinfoError(NOT_FINITE)
        return read, written

    def _record(self, found: Iterable[TokenEvent]) -> tuple[int, int]:
        """Turn what the engine did into events of the streams."""
        counts = {"READ": 0, "WRITE": 0}
        now = time.monotonic()
        for token in found:
            counts[token.kind] += 1
            channel = self._by_slot[token.slot]
            try:
                event = channel.session.record(token, now - channel.began)
                self._touched.setdefault(channel, []).append(event)
                if token.last:
                    self.engine.reset(token.slot, channel.k)
                    self._feed(channel)
            except Exception as error:
                self._failures[channel] = error
        return counts["READ"], counts["WRITE"]

    def _publish(self) -> None:
        """Give the streams their events, and wake those that waited for them."""
        touched, self._touched = self._touched, {}
        failures, self._failures = self._failures, {}
        with self._lock:
            for channel, events in touched.items():
                self._deliver(channel, events)
            for channel, error in failures.items():
                channel.error = describe(error)
                self._close(channel, leader=True)
        for error in failures.values():
            if not isinstance(error, WaitinfoError):
                logging.getLogger(__name__).error("a stream failed", exc_info=error)
            self._observe(lambda error=error: self.observer.failed(error))  # type: ignore[misc]
        self._tell([*touched, *failures])

    def _deliver(self, channel: Channel, events: list[Event]) -> None:
        if channel.closed:
            return
        channel.events.extend(events)
        channel.trace.extend(events)
        for event in events:
            if event.kind == "WRITE" and event.word:
                channel.words.extend(event.word.split())
        slot = channel.slot
        channel.busy = bool(channel.inbox) or (slot is not None and self.engine.can_go_on(slot))
        full = len(channel.events) >= self.queue
        if full and slot is not None:
            self.engine.hold(slot)
        if channel.ended and not channel.busy:
            self._close(channel, leader=True)
        elif full or not channel.busy:
            self._notify(channel)
        elif events:
            self._notify(channel, eager=True)

    def _tell(self, channels: Iterable[Channel]) -> None:
        by_listener: dict[Listener, list[Channel]] = {}
        for channel in dict.fromkeys(channels):
            if channel.listener is not None:
                by_listener.setdefault(channel.listener, []).append(channel)
        for listener, some in by_listener.items():
            listener(some)

    @staticmethod
    def _observe(report: Callable[[], None]) -> None:
        try:
            report()
        except Exception:
            logging.getLogger(__name__).exception("an observer failed")
