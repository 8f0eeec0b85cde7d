"""`python -m waitinfo.listening.worker FD`: a process of `waitinfo.listening.workers`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

from waitinfo.errors import WaitinfoError
from waitinfo.listening.loading import load_recogniser
from waitinfo.listening.recogniser import Heard, Recogniser, Voice

NICE = 5  # workers give way to the translation of text


def serve(pipe: Connection[Any, Any]) -> None:
    """The process of a worker: answer until the other end is gone."""
    name, every, threads = pipe.recv()
    os.nice(NICE)
    try:
        recogniser: Recogniser = load_recogniser(name, every, threads)
    except WaitinfoError as error:
        pipe.send(error.sentence)
        return
    pipe.send(None)
    voices: dict[int, Voice] = {}
    while True:
        number, speaker, finishing, samples = pipe.recv()
        if samples is None:
            voices.pop(number, None)
            pipe.send(None)
            continue
        try:
            voice = voices.get(number) or voices.setdefault(number, recogniser.voice(*speaker))
            found = voice.hear(samples)
            if finishing:
                found = [*found, *voice.finish()]
            answer: tuple[list[Heard], float, str | None] = found, voice.rhythm, None
        except Exception as error:
            answer = [], 0.0, f"{type(error).__name__}: {error}"
        if finishing or answer[2] is not None:
            voices.pop(number, None)
        pipe.send(answer)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it decides when it ends
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        serve(Connection(int(sys.argv[1])))
