"""What the scheduler keeps of one stream."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum

from waitinfo.errors import WaitinfoError
from waitinfo.streaming.event import Event
from waitinfo.streaming.replay import Replay
from waitinfo.streaming.session import Session

Listener = Callable[[Sequence["Channel"]], None]


class Mark(Enum):
    """What a stream may be handed instead of text."""

    FLUSH = "the sentence ends here, whatever its text"
    END = "no more text will come"


Piece = str | Mark


class Channel:
    """What the scheduler keeps of one stream. All of it belongs to the scheduler."""

    def __init__(
        self, session: Session, k: float, history: int | None, replay: Replay | None = None
    ) -> None:
        self.session, self.k = session, k
        self.path = replay.path if replay else ()  # what was written before it was interrupted
        self.listener: Listener | None = None  # called, without the lock, when something changed
        self.began = time.monotonic() - (replay.seconds if replay else 0.0)
        self.slot: int | None = None  # given by the first round
        self.inbox: list[tuple[float, Piece]] = []  # with the time it arrived
        self.events: deque[Event] = deque()  # not collected yet
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
