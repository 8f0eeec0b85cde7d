"""Progress reports of long-running work.

The core only calls a `Progress`. The caller decides how to show it: a bar on a terminal, plain
lines in a log, nothing in a test.
"""

from __future__ import annotations

import sys
import time
from typing import Protocol


class Progress(Protocol):
    """Receives named stages, with a known or unknown amount of work, and notes."""

    def stage(self, name: str, total: float | None = None) -> None:
        """Start a stage; `total` is its amount of work in any unit."""

    def advance(self, done: float) -> None:
        """Set the amount of work done in the current stage."""

    def note(self, text: str) -> None:
        """Show a one-line message."""

    def row(self, cells: dict[str, str]) -> None:
        """Show a result that is there, by the names of its columns; rows make a growing table."""


class Silent:
    """Shows nothing."""

    def stage(self, name: str, total: float | None = None) -> None: ...

    def advance(self, done: float) -> None: ...

    def note(self, text: str) -> None: ...

    def row(self, cells: dict[str, str]) -> None: ...


EVERY = 10.0  # seconds between two lines of a stage


class Lines:
    """Prints plain lines to standard error, at most one every few seconds, for logs and pipes."""

    def __init__(self) -> None:
        self._name = ""
        self._total: float | None = None
        self._last = 0.0

    def stage(self, name: str, total: float | None = None) -> None:
        self._name, self._total = name, total
        self._last = time.monotonic()
        self._print(name)

    def advance(self, done: float) -> None:
        now = time.monotonic()
        text = self.describe(done)
        if self._total and now - self._last >= EVERY:
            self._last = now
            self._print(f"{self._name}: {text}")

    def describe(self, done: float) -> str:
        """The amount of work done, as it is shown."""
        return f"{100 * done / self._total:.0f}%" if self._total else ""

    def note(self, text: str) -> None:
        self._print(text)

    def row(self, cells: dict[str, str]) -> None:
        self._print(", ".join(f"{name} {cell}" for name, cell in cells.items()))

    @staticmethod
    def _print(text: str) -> None:
        print(text, file=sys.stderr, flush=True)
