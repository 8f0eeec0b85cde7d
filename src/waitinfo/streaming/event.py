"""What a stream reports: every token read and every token written."""

from __future__ import annotations

from collections.abc import Iterable
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
