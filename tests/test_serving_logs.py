"""Logs: JSON whoever writes them, a line of a kind each second, names of streams."""

from __future__ import annotations

import io
import json
import logging
import socket as sockets
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serving import post, receive, running, send, start, toy_hub, until, wait_for
from waitinfo.serving import logs
from waitinfo.text.identification import LanguageWarning


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What stands on standard error, line by line, with everything set up as `serve` does it."""
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    names = (None, "waitinfo", "uvicorn", "uvicorn.error", "asyncio")
    loggers = [logging.getLogger(name) for name in names]
    before = [(each.handlers, each.propagate, each.level) for each in loggers]
    hooks = warnings.showwarning, sys.excepthook, threading.excepthook
    logs.set_up("debug")
    yield lambda: [json.loads(line) for line in written.getvalue().splitlines()]
    for each, (handlers, propagate, level) in zip(loggers, before, strict=True):
        each.handlers, each.propagate = handlers, propagate
        each.setLevel(level)
    warnings.showwarning, sys.excepthook, threading.excepthook = hooks


def test_everything_is_json(lines: Any) -> None:
    logging.getLogger("asyncio").error("socket.accept() out of system resource\nsocket: %s", "x")
    logging.getLogger("uvicorn.error").warning("two\nlines")
    logging.getLogger("any.library").error("three")
    warnings.warn_explicit("French", LanguageWarning, "waitinfo", 1, registry={})
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start(), thread.join()
    sys.excepthook(KeyError, KeyError("x"), None)
    found = lines()
    assert [line["event"] for line in found[:3]] == [
        "socket.accept() out of system resource", "two", "three",
    ]  # fmt: skip
    assert found[3]["reason"] == "LanguageWarning" and found[3]["level"] == "warning"
    assert [line.get("error") for line in found[4:]] == ["ZeroDivisionError", "KeyError"]


def test_one_line_of_a_kind_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: now[0])
    keeps = logs.OnePerSecond()

    def passes(event: str, level: int = logging.INFO, **facts: Any) -> int | None:
        """None if it is left out, else how many were left out before it."""
        record = logging.LogRecord("waitinfo", level, "", 0, event, (), None)
        record.facts = facts
        return record.left_out if keeps.filter(record) else None

    assert passes("refused", reason="full") == 0
    assert [passes("refused", reason="full") for _ in range(5)] == [None] * 5
    assert passes("refused", reason="key") == 0 == passes("listening")
    now[0] += 1.0
    assert passes("refused", reason="full") == 5 and passes("refused", reason="full") is None
    for number in range(10 * logs.KINDS):
        assert passes(f"event {number}") == 0
    assert len(keeps._kinds) <= logs.KINDS + 1


def test_the_lines_of_a_stream_have_its_name(lines: Any) -> None:
    with (
        running(toy_hub()) as server,
        server.connect() as one,
        server.connect("/v1/realtime/translations") as two,
    ):
        names = {start(one)["session"], receive(two)["session"]["id"]}
        send(one, "end"), send(two, "session.close")
        until(one, "ended"), until(two, "session.closed")
    told = [line.get("session") for line in lines() if line["event"] in ("started", "closed")]
    assert len(names) == 2 and set(told) == names and len(told) == 3


def test_what_clients_do_wrong_is_no_error_of_the_server(lines: Any) -> None:
    with running(toy_hub()) as server:
        with server.connect() as socket:
            socket.send(b"\xff\xfe", text=True)
            with pytest.raises(Exception, match="1007|close frame"):
                socket.recv(timeout=60)
        for sent in (post(b"/translate", b"x" * 100)[:-50], b"\x16\x03\x01\r\n\r\n"):
            connection = server.dial()
            connection.sendall(sent)
            connection.shutdown(sockets.SHUT_WR)
            while connection.recv(1 << 16):
                pass
            connection.close()
        wait_for(lambda: not server.server.server_state.connections)
    assert not [line for line in lines() if line["level"] in ("error", "warning")]
