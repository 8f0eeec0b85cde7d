"""Work that is interrupted, and processes that do it together."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import torch

from waitinfo.progress import Silent


class Interrupt(Silent):
    """Calls something after a number of reports."""

    def __init__(self, after: int, action: Callable[[], None]) -> None:
        self.left, self.action = after, action

    def advance(self, done: float) -> None:
        self.left -= 1
        if not self.left:
            self.action()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_process(call: Callable[[], object]) -> Callable[[], int]:
    """Start a call in another process; the result waits for it and returns its status."""
    child = os.fork()
    if not child:
        torch.set_num_threads(1)  # torch's other threads are not in this process
        try:
            call()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return lambda: os.waitpid(child, 0)[1]


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))
