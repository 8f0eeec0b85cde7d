"""An event loop that looks for news every few milliseconds if it has many clients.

A look costs two changes of the thread that has the interpreter. With hundreds of clients there is
one for nearly every message, and the model's thread loses more time by them than by the messages.
"""

from __future__ import annotations

import asyncio
import selectors
import time

EACH = 20e-6  # seconds between two looks for each connection
LONGEST = 5e-3


class PacedSelector(selectors.DefaultSelector):
    """Waits a little between two looks, the longer the more connections there are."""

    def __init__(self) -> None:
        super().__init__()
        self._looked = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:  # there is nothing to do without news
            pace = min(LONGEST, EACH * len(self.get_map()))
            pause = self._looked + pace - time.monotonic()
            if pause > 0:
                time.sleep(pause)
        found = super().select(timeout)
        self._looked = time.monotonic()
        return found


def paced_loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(PacedSelector())
