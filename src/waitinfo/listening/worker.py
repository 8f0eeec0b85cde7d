"""`python -m waitinfo.listening.worker FD`: a process of `waitinfo.listening.workers`."""

from __future__ import annotations

import contextlib
import signal
import sys
from multiprocessing.connection import Connection

from waitinfo.listening.workers import serve

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it decides when it ends
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        serve(Connection(int(sys.argv[1])))
