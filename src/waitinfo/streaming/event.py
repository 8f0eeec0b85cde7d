"""What is reported: to the user of a stream every token, to an observer every round."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple


class Event(NamedTuple):
    """One token read or written, a translation that was cut, or a window that has moved on.

    A sentence is cut after its last WRITE: the model repeated itself (`reason` is "loop"), or wrote
    far more than the source warrants ("length"). A MOVE comes between two windows of a text without
    sentence ends: `read` and `written` tokens of the one before stay in view in the next.
    """

    kind: Literal["READ", "WRITE", "CUT", "MOVE"]
    token: str  # as the vocabulary has it; "</s>" ends a sentence
    word: str | None  # READ: the source word it completes; WRITE: the words it makes visible
    info: float | None  # None in a model without info
    read: int  # source tokens of this sentence so far
    written: int
    source_info: float  # totals of this sentence so far
    target_info: float
    lag: int  # tokens read minus tokens written
    sentence: int  # counted from 0; where there are no sentences, windows
    time: float  # seconds since the stream was opened
    text: str = ""  # WRITE: the same words, with a space before them if one is due
    reason: Literal["loop", "length"] | None = None  # of a CUT
    kept: tuple[int, int] | None = None  # MOVE: source words read and words shown, still in view

    def as_dict(self) -> dict[str, object]:
        return self._asdict()


def shown_text(events: Iterable[Event]) -> str:
    """The text that events made visible."""
    return "".join(event.text for event in events).lstrip()


@dataclass(frozen=True, slots=True)
class RoundStats:
    """One round of the engine."""

    seconds: float  # how long it took
    streams: int  # batch size: streams that were advanced
    read: int  # source tokens read
    written: int  # target tokens written
    queue_age: float  # seconds that the oldest text had waited when the round took it; 0 for none
    open_streams: int


class Observer:
    """Override what you need. Called on the thread that runs the rounds: return quickly."""

    def round(self, stats: RoundStats) -> None:
        """A round is over."""

    def refused(self, reason: str) -> None:
        """A new stream was refused."""

    def failed(self, error: Exception) -> None:
        """A stream was closed because of its own error."""
