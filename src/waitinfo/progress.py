"""How long-running work in the core tells a person where it stands.

The core never draws: it calls a `Progress`, and whoever started the work decides what that looks
like (a bar on a terminal, plain lines in a log, nothing in a test).
"""

from __future__ import annotations

import sys
import time
from typing import Protocol


class Progress(Protocol):
    """A sink for progress: named stages with a known or unknown amount of work, and notes."""

    def stage(self, name: str, total: float | None = None) -> None:
        """Begin a stage; `total` is its amount of work in any unit."""

    def advance(self, done: float) -> None:
        """Set how much of the current stage is done."""

    def note(self, text: str) -> None:
        """Tell the person something worth knowing, in one line."""


class Silent:
    """Says nothing."""

    def stage(self, name: str, total: float | None = None) -> None: ...

    def advance(self, done: float) -> None: ...

    def note(self, text: str) -> None: ...


class Lines:
    """Plain lines on standard error, at most one every few seconds: for logs and pipes."""

    def __init__(self, every: float = 10.0) -> None:
        self.every = every
        self._name = ""
        self._total: float | None = None
        self._last = 0.0

    def stage(self, name: str, total: float | None = None) -> None:
        self._name, self._total = name, total
        self._last = time.monotonic()
        self._say(name)

    def advance(self, done: float) -> None:
        now = time.monotonic()
        if self._total and now - self._last >= self.every:
            self._last = now
            self._say(f"{self._name}: {100 * done / self._total:.0f}%")

    def note(self, text: str) -> None:
        self._say(text)

    @staticmethod
    def _say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)
