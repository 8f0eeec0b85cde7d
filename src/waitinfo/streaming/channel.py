"""What the scheduler keeps of one stream, and rounds over all of them."""

from __future__ import annotations

import math
import re
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from waitinfo.errors import WaitinfoError, number
from waitinfo.streaming.engine import NOT_FINITE, Engine, TokenEvent
from waitinfo.streaming.event import Event
from waitinfo.streaming.lag import REMEMBERED, LagController
from waitinfo.streaming.replay import Replay
from waitinfo.streaming.session import Session
from waitinfo.text.languages import Languages

Listener = Callable[[Sequence["Channel"]], None]

WORDS = re.compile(r"\s*\S+")  # with the space before
PORTION, PART = 256, 32  # characters of a stream that a round takes in, and that are one step


class Mark(Enum):
    """What a stream may be handed instead of text."""

    FLUSH = "the sentence ends here, whatever its text"
    END = "no more text will come"


Said = str | Mark


class Arrival(NamedTuple):
    """Text or a mark that was handed in."""

    when: float  # by `time.monotonic`
    text: Said
    at: float  # when it was spoken, in seconds by the speaker's clock


class StreamOptions(NamedTuple):
    """How a stream is to be opened: arguments of `Translator.stream`."""

    k: float | None
    raw: bool
    segment: str | None
    replay: Replay | None
    lag: float | None
    languages: Languages


class Channel:
    """What the scheduler keeps of one stream. All of it belongs to the scheduler."""

    def __init__(self, session: Session, k: float, history: int | None) -> None:
        self.session = session
        self.controller: LagController | None = None  # turns the dial, if a lag is held
        self._k = k
        # What the policy remembered when a window began, by number of the window.
        resumed = session.resumed
        self.memories = OrderedDict({resumed.sentence: tuple(resumed.memory)})
        self.listener: Listener | None = None  # called, without the lock, when something changed
        self.changes = 0  # told to an event loop
        self.began = time.monotonic() - resumed.seconds
        self.slot: int | None = None  # given by the first round
        self.inbox: list[Arrival] = []
        self.unread: deque[Arrival] = deque()  # of these, what the session was not handed yet
        self.at = -math.inf  # when the last text was spoken, if that was said
        self.events: deque[Event] = deque()  # not collected yet
        self.trace: deque[Event] = deque(maxlen=history)
        self.words: deque[str] = deque(maxlen=history)
        self.busy = False  # something can be done without more text
        self.ended = False  # no more text will come
        self.closed = False  # the slot was given back
        self.error: str | None = None  # no exception: its frames would keep streams alive
        self.error_kind: type[WaitinfoError] = WaitinfoError
        self.served_by: object | None = None  # the call that waits for this stream

    def add(self, events: Sequence[Event]) -> None:
        """Events for its reader."""
        self.events.extend(events)
        if self.trace.maxlen != 0:
            self.trace.extend(events)
            for event in events:
                self.words.extend(WORDS.findall(event.text))

    def remember(self, window: int, memory: Sequence[float]) -> None:
        """Keep what the policy remembers as a window begins."""
        self.memories[window] = tuple(memory)
        if len(self.memories) > REMEMBERED:
            self.memories.popitem(last=False)

    def replay(self) -> Replay:
        """The session's, with what the dial and the policy knew at its beginning."""
        found, controller = self.session.replay(), self.controller
        dial = None if controller is None else controller.state(found.sentence)
        age = round(time.monotonic() - self.began, 4)
        memory = self.memories.get(found.sentence, ())
        return replace(found, dial=dial, memory=memory, seconds=age)

    @property
    def k(self) -> float:
        """The dial; a controller may turn it at any time."""
        controller = self.controller
        return self._k if controller is None else controller.k

    @k.setter
    def k(self, value: float) -> None:
        self.controller, self._k = None, value

    def fail(self, error: Exception) -> None:
        """Keep why the stream has failed."""
        self.error = describe(error)
        self.error_kind = type(error) if isinstance(error, WaitinfoError) else WaitinfoError

    def read(self) -> None:
        """Hand the session some of the text: no more than it needs, and a little in one round.

        Otherwise a long text would hold up all others, and its tokens would take much memory.
        """
        left = PORTION
        while self.hungry and left > 0:
            arrival = self.unread.popleft()
            if isinstance(arrival.text, Mark):
                self.session.end()
                continue
            part, rest = self.session.divide(arrival.text, PART)
            self.session.add(part, arrival.at)
            if rest:
                self.unread.appendleft(arrival._replace(text=rest))
            left -= len(part)

    @property
    def hungry(self) -> bool:
        """Whether there is text that the session could use."""
        return bool(self.unread) and self.session.hungry

    @property
    def over(self) -> bool:
        """Nothing more will be written."""
        return self.closed or (self.ended and not self.busy)

    def spoken(self, at: float | None, now: float) -> float:
        """When text was spoken: as told, else with the text before, else now."""
        if at is None:
            return now if self.at == -math.inf else self.at
        self.at = at
        return at

    def check(self, at: float | None = None) -> None:
        """Raise unless text may be handed in that was spoken at this time."""
        if self.error is not None:
            raise self.error_kind(f"this stream has failed: {self.error}")
        if self.ended or self.closed:
            raise WaitinfoError("this stream has been finished; open another")
        if self.served_by is not None:
            raise WaitinfoError("another push of this stream is under way; wait for it first")
        if at is not None and not self.at <= (time := number("at", at)) < math.inf:
            raise WaitinfoError(f"at = {time:g}: times are seconds and must not go back")


def describe(error: Exception) -> str:
    """An error in one line; of an unexpected one with its kind."""
    kind = "" if isinstance(error, WaitinfoError) else f"{type(error).__name__}: "
    return f"{kind}{error}"


class Rounds:
    """From the text of all streams to their events: their sessions, and the engine that they share.

    Belongs to the thread that leads. What a round has not delivered yet, because it was
    interrupted, stays here for the next one.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.by_slot: dict[int, Channel] = {}
        self.arrivals: deque[Channel] = deque()  # streams with something new
        self.events: dict[Channel, list[Event]] = {}  # of all streams that took part
        self.failures: dict[Channel, Exception] = {}
        self.read = self.written = 0  # tokens of this round

    @property
    def has_work(self) -> bool:
        return bool(self.arrivals or self.events or self.failures or self.engine.busy)

    @property
    def channels(self) -> set[Channel]:
        """Every stream that has a slot or waits for one."""
        return {*self.by_slot.values(), *self.arrivals, *self.events}

    def run(self) -> int:
        """One round of the engine; the number of streams that took part."""
        rows = self.engine.runnable
        for slot in rows:
            self.events.setdefault(self.by_slot[slot], [])
        self.read = self.written = 0
        try:
            self._record(self.engine.advance())
        except Exception:
            self._run_one_by_one()
        for slot in self.engine.failed:
            if slot in self.by_slot:
                self.failures[self.by_slot[slot]] = WaitinfoError(NOT_FINITE)
        self._move_on(rows)
        return len(rows)

    def _move_on(self, rows: Iterable[int]) -> None:
        """Feed streams whose window was full and whose slot has come to rest."""
        for slot in rows:
            channel = self.by_slot[slot]
            if channel.session.full and channel not in self.failures:
                try:
                    self._feed(channel)
                except Exception as error:
                    self.failures[channel] = error

    def _run_one_by_one(self) -> None:
        """Find the streams that make a round fail."""
        for slot in self.engine.runnable:
            try:
                self._record(self.engine.advance([slot]))
            except Exception as error:
                self.failures[self.by_slot[slot]] = error

    def take_in(self, channel: Channel, arrivals: Iterable[Arrival], hold: bool) -> None:
        """Hand what is new of a stream to its session and to the engine."""
        self.events.setdefault(channel, [])
        try:
            channel.unread.extend(arrivals)
            channel.read()
            if channel.slot is None:
                channel.slot = self.engine.open(channel.k)
                self.by_slot[channel.slot] = channel
                replay = channel.session.resumed
                kept = replay.path[: replay.kept]
                self.engine.begin(channel.slot, kept, replay.begun, replay.memory)
                self._open(channel)
                self.engine.force(channel.slot, replay.path[replay.kept :])
                self.engine.set_patience(channel.slot, channel.session.patience)
            self.engine.set_dial(channel.slot, channel.k)
            self.engine.steer(channel.slot, channel.controller is not None)
            if not hold:
                self.engine.resume(channel.slot)
            self._feed(channel)
        except Exception as error:
            self.failures[channel] = error

    def _feed(self, channel: Channel) -> None:
        session, slot = channel.session, channel.slot
        assert slot is not None
        while True:
            if (found := session.next_input()) is not None:
                self.engine.feed(slot, found.tokens, found.complete)
            # A window moves on once nothing more can be done without new words. What the slot has
            # read and written by then does not depend on how the text arrived.
            if not session.full or self.engine.can_go_on(slot):
                return
            self._shift(channel)

    def _shift(self, channel: Channel) -> None:
        """Move the window of a stream on."""
        session, slot, controller = channel.session, channel.slot, channel.controller
        assert slot is not None
        sentence = session.sentence
        weights = self.engine.alignment(slot)
        cut = session.move_on(weights)
        if cut is None:
            self.engine.feed(slot, [], complete=True)
            return
        if self.engine.fed[slot] and not session.begun:  # the sentence is over after all
            if controller is not None:
                controller.end(sentence)
            self._reset(channel)
            return
        event = session.moved(weights.shape[1] - cut.source, time.monotonic() - channel.began)
        self.events.setdefault(channel, []).append(event)
        if controller is not None:
            controller.observe(event, last=False)
        if self.engine.system.memory:
            channel.remember(session.sentence, self.engine.remembered(slot))
        self.engine.shift(slot, channel.k, cut.source, cut.target)
        self.engine.set_patience(slot, session.patience)

    def _begin(self, channel: Channel) -> None:
        """Start a stream on its next sentence."""
        if channel.session.ended_early:
            self._shift(channel)
        else:
            self._reset(channel)
        self._feed(channel)

    def _reset(self, channel: Channel) -> None:
        assert channel.slot is not None
        self.engine.reset(channel.slot, channel.k)
        self.engine.set_patience(channel.slot, channel.session.patience)
        self._open(channel)

    def _open(self, channel: Channel) -> None:
        """Begin a sentence as its languages ask."""
        if channel.session.opening is not None:
            assert channel.slot is not None
            self.engine.force(channel.slot, channel.session.opening.path)

    def give_back(self, channel: Channel) -> None:
        """Free the slot of a stream, if it has one."""
        if channel.slot is not None:
            del self.by_slot[channel.slot]
            self.engine.close(channel.slot)
            channel.slot = None

    def can_go_on(self, channel: Channel) -> bool:
        """Whether a stream has something to do without more text."""
        if channel.slot is None:
            return False
        return bool(channel.unread) or self.engine.can_go_on(channel.slot)

    def take_out(self) -> tuple[dict[Channel, list[Event]], dict[Channel, Exception]]:
        """The events of all streams that took part, and the errors of those that failed."""
        found = self.events, self.failures
        self.events, self.failures = {}, {}
        return found

    def _record(self, tokens: Iterable[TokenEvent]) -> None:
        """Turn what the engine did into events of the streams."""
        now = time.monotonic()
        for token in tokens:
            self.read += token.kind == "READ"
            self.written += token.kind == "WRITE"
            channel = self.by_slot[token.slot]
            try:
                events = channel.session.record(token, now - channel.began)
                self.events.setdefault(channel, []).extend(events)
                if channel.controller is not None:
                    over = token.last and not channel.session.ended_early
                    channel.controller.observe(events[0], over)
                    self.engine.set_dial(token.slot, channel.k)
                if token.last:
                    self._begin(channel)
            except Exception as error:
                self.failures[channel] = error
