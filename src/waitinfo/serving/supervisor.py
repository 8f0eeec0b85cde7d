"""The process that `waitinfo serve` is: it starts the others, and starts again who dies.

The front has the sockets, rooms and limits, the engine has the models. They are joined by a socket
in a folder of this user; `engine` says what goes over it. All three have the listening sockets, so
that nobody who connects while a process is started again is refused.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from waitinfo.errors import WaitinfoError
from waitinfo.serving.logs import log

if TYPE_CHECKING:
    from waitinfo.serving.hub import Plan

# Threads of NumPy's products spin while they wait: beside other busy processes each then takes a
# hundred times as long, and a round seconds. Compiled code and torch have threads of their own.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "VECLIB_MAXIMUM_THREADS": "1"}
STEADY = 60.0  # seconds after which a process that dies is started again at once
PAUSES = 0.2, 30.0  # seconds before it is, the second time; and at most
GRACE = 20.0  # seconds that a front may take beyond those for its streams
LOOK = 0.5  # seconds
TRIES = 3  # times that an engine may die before anybody is served


@dataclass(frozen=True)
class ChildTask:
    """What a process is told."""

    role: str
    plan: Plan
    host: str
    listening: int  # descriptor
    pipe: int  # descriptor that the engine listens on
    path: str  # and its name
    prepare: Callable[[], object]  # by the engine, before it loads anything
    log_level: str


class Child:
    """A process that is started again when it dies."""

    def __init__(self, task: ChildTask) -> None:
        self.task = task
        self.ready = False  # has been so once
        self.process: subprocess.Popen[bytes] | None = None
        self.control: Any = None
        self.deaths = 0
        self._began = self._next = 0.0
        self._pause = PAUSES[0]

    @property
    def role(self) -> str:
        return self.task.role

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        ours, theirs = socket.socketpair()
        task, descriptors = self.task, [theirs.fileno()]
        descriptors.append(task.pipe if task.role == "engine" else task.listening)
        command = [sys.executable, "-m", "waitinfo.serving.child", str(theirs.fileno())]
        places = [str(Path(__file__).resolve().parents[2]), *sys.path]
        environment = {
            **ONE_THREAD, **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))
        }  # fmt: skip
        self.process = subprocess.Popen(
            command, pass_fds=descriptors, env=environment, stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the supervisor
        )  # fmt: skip
        theirs.close()
        self.control = Connection(ours.detach())
        self.control.send(task)
        self._began = time.monotonic()
        log(f"{self.role} started", process=self.process.pid)

    def tell(self, what: str) -> bool:
        """Whether it could be told."""
        try:
            self.control.send(what)
        except (OSError, AttributeError):
            return False
        return True

    def hear(self) -> None:
        """It has said something, or has died; raises its error if it has never been ready."""
        try:
            told = self.control.recv()
        except (EOFError, OSError):
            self._died()
            return
        if not isinstance(told, WaitinfoError):
            self.ready = True
        elif not self.ready:
            raise told
        else:
            log(f"{self.role} cannot be started", logging.ERROR, reason=str(told))

    def _died(self) -> None:
        assert self.process is not None
        self.control.close()
        self.control = None
        status = self.process.wait()
        if not self.ready:
            raise WaitinfoError(f"the process of the {self.role} ended at once (status {status})")
        self.deaths += 1
        now = time.monotonic()
        if now - self._began > STEADY:
            self._pause = PAUSES[0]
            self._next = now
        else:
            self._next = now + self._pause
            self._pause = min(2 * self._pause, PAUSES[1])
        log(f"{self.role} died", logging.ERROR, status=status)

    def start_again(self) -> None:
        if self.control is None and time.monotonic() >= self._next:
            self.start()

    def end(self, seconds: float) -> int:
        """Wait for its end, and bring it about after some time."""
        if self.process is None:
            return 0
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class Supervisor:
    """The first signal drains the front, the second stops it at once."""

    def __init__(self, task: ChildTask, on_ready: Callable[[], None]) -> None:
        self.front = Child(replace(task, role="front"))
        self.engine = Child(replace(task, role="engine"))
        self._on_ready, self._signals = on_ready, 0
        self._drain = task.plan.settings.drain

    def run(self) -> None:
        before = {n: signal.signal(n, self._signal) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._start()
            while not self._signals:
                self._look()
            self.front.end(self._drain + GRACE)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._stop()

    def _start(self) -> None:
        children = self.engine, self.front
        for child in children:
            child.start()
        while not (self.front.ready or self._signals):
            self._look()
            if self.engine.deaths > TRIES:
                raise WaitinfoError("the process of the engine dies again and again")
        if self.front.ready:
            self._on_ready()

    def _look(self) -> None:
        children = [child for child in (self.engine, self.front) if child.control is not None]
        for each in wait([child.control for child in children], LOOK):
            if not self._signals:  # else who ends was told to
                next(child for child in children if child.control is each).hear()
        if not self._signals:
            for child in (self.engine, self.front):
                child.start_again()

    def _signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        self.front.tell("drain" if self._signals == 1 else "stop")

    def _stop(self) -> None:
        if self.front.running:
            assert self.front.process is not None
            self.front.process.kill()
        self.front.end(0)
        self.engine.tell("stop")
        self.engine.end(GRACE / 4 if self.engine.ready else 0)


def supervise(
    plan: Plan,
    host: str,
    listening: socket.socket,
    prepare: Callable[[], object],
    log_level: str,
    on_ready: Callable[[], None],
) -> None:
    """Serve until a signal ends it."""
    with (
        tempfile.TemporaryDirectory(prefix="waitinfo-") as folder,
        socket.socket(socket.AF_UNIX) as pipe,
    ):
        path = str(Path(folder) / "engine")
        pipe.bind(path)
        pipe.listen()
        task = ChildTask(
            "", plan, host, listening.fileno(), pipe.fileno(), path, prepare, log_level
        )
        Supervisor(task, on_ready).run()
