"""The processes of a server, as `supervisor` starts them: python -m waitinfo.serving.child FD.

The socket of that number tells what to do: first a `ChildTask`; then, to the front, "drain" and
"stop". Its end means that the supervisor is gone. Signals are the supervisor's.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from contextlib import nullcontext
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from waitinfo.errors import WaitinfoError
from waitinfo.serving import logs
from waitinfo.serving.engine import EngineLink, serve_front
from waitinfo.serving.hub import Hub
from waitinfo.serving.metrics import Metrics
from waitinfo.serving.models import meet
from waitinfo.serving.server import Server, bound, tune
from waitinfo.serving.supervisor import ChildTask
from waitinfo.streaming.host import Host

LAST = 15.0  # seconds that the engine waits for a front that drains without a supervisor

Control = Connection  # to the supervisor


def run_engine(task: ChildTask, control: Any) -> None:
    """The process with the models."""
    task.prepare()
    models = task.plan.load(Metrics())
    served, meeting = models.engines, meet(models)
    control.send("ready")
    tune()
    threading.Thread(
        target=_end_with, args=(control, task.plan.settings.drain), daemon=True
    ).start()
    for each in served:
        each.server.start()

    def hosts(send: Any) -> list[Host]:
        def reported(number: int, stats: Any, reports: Any) -> None:
            send((number, stats, reports))

        return [Host(s.translator, partial(reported, n)) for n, s in enumerate(served)]

    with socket.socket(fileno=task.pipe) as listening:
        while True:
            with listening.accept()[0] as connection:
                serve_front(connection, hosts, meeting)


def _end_with(control: Any, drain: float) -> None:
    """End this process once the supervisor says so, or some time after that is gone."""
    try:
        control.recv()
    except (EOFError, OSError):
        time.sleep(drain + LAST)
    os._exit(0)


class FrontServer(Server):
    """Is told what to do by the supervisor instead of by signals."""

    def __init__(self, hub: Hub, task: ChildTask, control: Any) -> None:
        super().__init__(hub, task.host, 0)
        self._control = control

    def capture_signals(self) -> Any:
        return nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        assert self._loop is not None
        self._loop.add_reader(self._control.fileno(), self._told)
        self._control.send("ready")

    def _told(self) -> None:
        try:
            told = self._control.recv()
        except (EOFError, OSError):
            told = "gone"
        assert self._loop is not None
        if told != "drain":
            self._loop.remove_reader(self._control.fileno())
        if told == "stop" or not self.hub.draining:
            self.handle_exit(signal.SIGTERM, None)


def run_front(task: ChildTask, control: Any) -> None:
    """The process with the sockets."""
    hub = task.plan.build(EngineLink(task.path))
    tune()
    FrontServer(hub, task, control).run(sockets=[bound(task.listening)])


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    control: Any = Connection(int(sys.argv[1]))
    task: ChildTask = control.recv()
    logs.set_up(task.log_level)
    try:
        (run_engine if task.role == "engine" else run_front)(task, control)
    except WaitinfoError as error:
        control.send(error)
        sys.exit(2)


if __name__ == "__main__":
    main()
