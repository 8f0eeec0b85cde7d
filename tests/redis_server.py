"""A Redis on this machine, for tests of servers that share one."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

REDIS = shutil.which("redis-server")


class RedisServer:
    """Debian's redis-server on loopback, which may be killed and started again."""

    def __init__(self, keeps: bool = True) -> None:
        if REDIS is None:
            pytest.skip("needs Debian's redis-server")
        pytest.importorskip("redis", reason="needs the extra redis")
        self.folder = tempfile.TemporaryDirectory()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.keeps = keeps  # what it was told, when it is killed
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        assert REDIS is not None
        command = [
            REDIS, "--bind", "127.0.0.1", "--port", str(self.port), "--dir", self.folder.name,
            "--save", "", "--appendonly", "yes" if self.keeps else "no", "--appendfsync", "always",
        ]  # fmt: skip
        with Path(self.folder.name, "log").open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        while not self._answers():
            assert self.process.poll() is None, Path(log.name).read_text("utf-8")
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=60) as link:
                link.sendall(b"PING\r\n")
                return link.recv(5) == b"+PONG"
        except OSError:
            return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        self.folder.cleanup()
