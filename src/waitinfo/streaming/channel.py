"""What the scheduler keeps of one stream."""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from waitinfo.errors import WaitinfoError, number
from waitinfo.streaming.event import Event
from waitinfo.streaming.lag import REMEMBERED, LagController
from waitinfo.streaming.replay import Replay
from waitinfo.streaming.session import Session

Listener = Callable[[Sequence["Channel"]], None]


class Mark(Enum):
    """What a stream may be handed instead of text."""

    FLUSH = "the sentence ends here, whatever its text"
    END = "no more text will come"


Piece = str | Mark


class Arrival(NamedTuple):
    """Text or a mark that was handed in."""

    when: float  # by `time.monotonic`
    text: Piece
    at: float  # when it was spoken, in seconds by the speaker's clock


class Channel:
    """What the scheduler keeps of one stream. All of it belongs to the scheduler."""

    def __init__(
        self, session: Session, k: float, history: int | None, replay: Replay | None = None
    ) -> None:
        self.session = session
        self.controller: LagController | None = None  # turns the dial, if a lag is held
        self._k = k
        self.replay = replay or Replay()  # what was done before it was interrupted
        # What the policy remembered when a window began, by number of the window.
        self.memories = OrderedDict({self.replay.sentence: tuple(self.replay.memory)})
        self.listener: Listener | None = None  # called, without the lock, when something changed
        self.changes = 0  # told to an event loop
        self.began = time.monotonic() - self.replay.seconds
        self.slot: int | None = None  # given by the first round
        self.inbox: list[Arrival] = []
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

    def remember(self, window: int, memory: Sequence[float]) -> None:
        """Keep what the policy remembers as a window begins."""
        self.memories[window] = tuple(memory)
        if len(self.memories) > REMEMBERED:
            self.memories.popitem(last=False)

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
            raise WaitinfoError(f"this stream has failed: {self.error}")
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
