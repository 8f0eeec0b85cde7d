"""What a stream reports: every token read and every token written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple


class Event(NamedTuple):
    """One token read or written, and the state of the stream after it."""

    kind: Literal["READ", "WRITE"]
    token: str  # as the vocabulary has it; "</s>" ends a sentence
    word: str | None  # READ: the source word it completes; WRITE: the words it makes visible
    info: float | None  # None in a model without info
    read: int  # source tokens of this sentence so far
    written: int
    source_info: float  # totals of this sentence so far
    target_info: float
    lag: int  # tokens read minus tokens written
    sentence: int  # counted from 0
    time: float  # seconds since the stream was opened

    def as_dict(self) -> dict[str, object]:
        return self._asdict()


def shown_text(events: Iterable[Event]) -> str:
    """The words that events made visible."""
    return " ".join(event.word for event in events if event.kind == "WRITE" and event.word)
