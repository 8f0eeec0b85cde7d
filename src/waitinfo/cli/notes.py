"""Lines for the person at the terminal, apart from the output."""

from __future__ import annotations

import sys


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
