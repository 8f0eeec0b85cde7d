"""`waitinfo serve` in processes of its own, for tests of the command and its pages."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import tests.serving  # noqa: F401 (skips where the extra is missing)
from tests.streams import wait_for


class Served:
    """A server on a free port, and what it logs."""

    def __init__(self, *options: str, threads: int | None = 1) -> None:
        command = [sys.executable, "-m", "waitinfo", "serve", "--port", "0", *options]
        command += ["--threads", str(threads)] if threads else []
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "300"}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        self.ids: dict[str, int] = {}
        self.lines: list[str] = []
        self.url = ""
        threading.Thread(target=self._read, daemon=True).start()
        wait_for(lambda: self.url or self.process.poll() is not None)
        assert self.url, self.lines

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            entry = json.loads(line) if line.startswith("{") else {"event": ""}
            if (role := entry["event"].removesuffix(" started")) in ("engine", "front"):
                self.ids[role] = entry["process"]
            if found := re.findall(r"http://[\d.:]+", line):
                self.url = found[0]

    @property
    def readiness(self) -> str:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=600) as answer:
                return json.load(answer)["status"]
        except urllib.error.HTTPError as error:
            return json.load(error)["status"]

    def kill(self, role: str) -> None:
        before = self.ids[role]
        os.kill(before, signal.SIGKILL)
        wait_for(lambda: self.ids[role] != before)

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """As a service is stopped: politely, and without a trace of trouble."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(600) == 0, self.lines
        assert not any("Traceback" in line for line in self.lines), self.lines
        ended = [line for line in self.lines if " died" in line and '"status": 0' in line]
        assert not ended, ended
