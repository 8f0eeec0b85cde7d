"""What a scheduler reports about its work, for metrics to hang on."""

from __future__ import annotations

from dataclasses import dataclass


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
