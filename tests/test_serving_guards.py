"""Who is served: keys, origins, limits, slow and silent clients, and the end of a server."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import socket as sockets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.serving import Running, receive, running, send, start, toy_hub, until, wait_for
from waitinfo.errors import WaitinfoError
from waitinfo.serving.guards import (
    Caller,
    KeyLimits,
    Keys,
    Refusal,
    check_origin,
    read_keys,
)  # fmt: skip
from waitinfo.serving.logs import JsonLines
from waitinfo.serving.protocol import Malformed
from waitinfo.serving.server import check_binding
from waitinfo.serving.wire import Gone, Inbox

KEY = "a-secret-key"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(toy_hub()) as found:
        yield found


def status(server: Running, path: str = "/v1/stream", **options: Any) -> tuple[int, dict[str, str]]:
    with pytest.raises(InvalidStatus) as refused:
        server.connect(path, **options)
    response = refused.value.response
    return response.status_code, dict(response.headers)


def keyed(server: Running, key: str = KEY) -> Any:
    """A stream with a key, as the page opens it."""
    return server.connect(subprotocols=["waitinfo", f"waitinfo-key.{quote(key, safe='')}"])


def get(server: Running, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", path)
    response = connection.getresponse()
    return response.status, response.read().decode()


def test_a_stream_too_many_is_refused_at_once() -> None:
    with running(toy_hub(streams=2, retry=7)) as server:
        with server.connect() as one, server.connect() as two, server.connect() as three:
            start(one), start(two)
            send(three, "start")
            error = receive(three)
            assert error["code"] == "full" and error["fatal"] and error["retry_after"] == 7
            assert until(three, "ended")
            with pytest.raises(ConnectionClosed) as closed:
                three.recv(timeout=60)
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1013
            code, headers = status(server)
            assert code == 503 and headers["retry-after"] == "7"
            assert get(server, "/readyz")[0] == 503
            send(one, "end")
            until(one, "ended")
        wait_for(lambda: server.hub.models.find().free == 2)
        assert get(server, "/readyz")[0] == 200
        with server.connect() as four:
            assert start(four)["type"] == "started"
        figures = get(server, "/metrics")[1]
        assert 'waitinfo_refusals_total{reason="full"} 2.0' in figures


def test_keys() -> None:
    keys = Keys([KeyLimits(KEY, streams=1)])
    with running(toy_hub(keys=keys)) as server:
        assert status(server)[0] == 401
        assert status(server, additional_headers={"Authorization": "Bearer wrong-key"})[0] == 401
        with server.connect(additional_headers={"Authorization": f"Bearer {KEY}"}) as socket:
            assert start(socket)["type"] == "started"
            with pytest.raises(InvalidStatus) as refused, keyed(server):
                pass
            assert refused.value.response.status_code == 429
        assert status(server, f"/v1/stream?key={KEY}")[0] == 401  # addresses are logged
        wait_for(lambda: server.hub.keys.client(KEY).open == 0)
        offered = ["realtime", f"openai-insecure-api-key.{KEY}"]
        with server.connect("/v1/realtime/translations", subprotocols=offered) as socket:
            assert socket.subprotocol == "realtime"
            assert receive(socket)["type"] == "session.created"


def test_words_per_minute() -> None:
    """Beyond the limit the client is told, and waits; nothing is lost."""
    client = Caller(words_per_minute=1)
    assert client.spend(1) == 0
    assert 0 < client.spend(1) <= 60
    keys = Keys([KeyLimits(KEY, words_per_minute=120)])
    with running(toy_hub(keys=keys)) as server, keyed(server) as socket:
        start(socket)
        send(socket, "text", text="ba " * 121)
        send(socket, "end")
        found = until(socket, "ended")
        (told,) = [m for m in found if m["type"] == "error"]
        assert told["code"] == "rate" and told["retry_after"] > 0
        assert found[-2]["words_in"] == 121


def test_whoever_waits_for_words_is_still_listened_to() -> None:
    """A ping behind text that waits is answered, and who leaves is noticed."""
    keys = Keys([KeyLimits(KEY, words_per_minute=1)])
    with running(toy_hub(keys=keys)) as server:
        with keyed(server) as socket:
            start(socket, k=2)
            send(socket, "text", text="ba be bi bo ")
            assert until(socket, "error")[-1]["retry_after"] > 60
            for text in ("ba ", "be ", "bi "):
                send(socket, "text", text=text)
            socket.send("nonsense")
            assert socket.ping().wait(60)
            send(socket, "end")
            socket.socket.shutdown(sockets.SHUT_RDWR)
        wait_for(lambda: server.hub.models.find().free == 4)


def test_messages_that_wait_keep_their_order_and_are_bounded() -> None:
    class Coming:
        """A wire with messages that are all there."""

        def __init__(self) -> None:
            self.messages = iter(["a" * 10, Malformed("no"), b"b" * 10, "c" * 10, "d" * 10, Gone()])

        async def receive_any(self) -> str | bytes:
            await asyncio.sleep(0)
            if isinstance(found := next(self.messages), Exception):
                raise found
            return found

    async def run() -> None:
        inbox = Inbox(Coming(), 4, 25)  # type: ignore[arg-type]
        await inbox.fill_until(asyncio.Future())  # until as much waits as may
        assert [await inbox.next()] == ["a" * 10] and inbox._size == 20
        with pytest.raises(Malformed):
            await inbox.next()
        assert [await inbox.next() for _ in range(3)] == [b"b" * 10, "c" * 10, "d" * 10]
        with pytest.raises(Gone):
            await inbox.fill_until(asyncio.Future())

    asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no keys"), ("key = 5", "must be a table with a key"), ("[a]", "with a key"),
        ("[a]\nkey = 'short'", "at least 8"), ("[a", "not TOML"),
        ("[a]\nkey = 'long enough'\nspeed = 3", "unknown setting 'a.speed'"),
        ("[a]\nkey = 'long enough'\nstreams = -1", "0 or more"),
    ],
)  # fmt: skip
def test_bad_files_of_keys(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(WaitinfoError, match=told):
        read_keys(path)


def test_files_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(f"[stage]\nkey = '{KEY}'\nstreams = 2\nwords_per_minute = 300\n", "utf-8")
    keys = Keys(read_keys(path))
    assert len(keys) == 1 and keys.client(KEY).words_per_minute == 300
    for wrong in (None, "", "a-secret-keY", "\ud800"):
        with pytest.raises(Refusal):
            keys.client(wrong)


@pytest.mark.parametrize(
    ("origin", "host", "allowed", "local", "passes"),
    [
        (None, "a:1", (), True, True), ("http://localhost:9", "a:1", (), True, True),
        ("http://[::1]:9", "a:1", (), True, True), ("http://evil.example", "a:1", (), True, False),
        ("http://evil.example:1", "evil.example:1", (), True, False),  # its name points at us
        ("https://a.example", "a.example", (), False, True),
        ("https://b.example", "a.example", (), False, False),
        ("https://b.example", "a.example", ("https://b.example",), True, True),
        ("https://b.example", "a.example", ("*",), False, True),
        ("null", "a:1", (), True, False), ("http://[", "a:1", (), True, False),
        ("", "", (), False, False),
    ],
)  # fmt: skip
def test_origins(origin: str, host: str, allowed: tuple, local: bool, passes: bool) -> None:
    if passes:
        check_origin(origin, host, allowed, local)
    else:
        with pytest.raises(Refusal):
            check_origin(origin, host, allowed, local)


def test_foreign_pages_are_refused(server: Running) -> None:
    assert status(server, origin="https://evil.example")[0] == 403
    assert status(server, "/v1/watch?room=a", origin="https://evil.example")[0] == 403
    with server.connect(origin=server.url) as socket:
        assert start(socket)["type"] == "started"


def test_a_network_needs_keys() -> None:
    for host in ("127.0.0.1", "localhost", "::1"):
        check_binding(host, keys=False, open_to_all=False)
    check_binding("0.0.0.0", keys=True, open_to_all=False)
    check_binding("0.0.0.0", keys=False, open_to_all=True)
    for host in ("0.0.0.0", "::", "192.168.1.2", "example.org"):
        with pytest.raises(WaitinfoError, match="give keys FILE, or open"):
            check_binding(host, keys=False, open_to_all=False)


def test_silent_clients_are_closed_and_busy_ones_are_not() -> None:
    with running(toy_hub(start=0.2)) as server, server.connect() as socket:
        assert receive(socket)["code"] == "start"  # it never started a stream
        assert receive(socket)["reason"] == "idle"
    hub = toy_hub(idle=1.0)
    with running(hub) as server:
        engine = hub.models.find().translator._scheduler.engine
        advance, go_on = engine.advance, threading.Event()

        def slow(*arguments: Any) -> Any:
            go_on.wait(600)
            return advance(*arguments)

        engine.advance = slow  # type: ignore[method-assign]
        with server.connect() as socket:
            send(socket, "start")
            send(socket, "text", text="ba be bi ", id=1)
            assert receive(socket)["type"] == "started"
            with pytest.raises(TimeoutError):
                socket.recv(timeout=1.5)  # the server is busy: that is not the client's fault
            go_on.set()
            until(socket, "idle")
            assert until(socket, "ended")[-1]["reason"] == "idle"


def test_a_slow_reader_is_closed_and_nobody_else_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks and asks, and never reads the answers; sockets take little, and the kernel waits."""
    monkeypatch.setattr("waitinfo.serving.server.SEND_BUFFER", 4096)
    monkeypatch.setattr("waitinfo.serving.server.UNREAD_MILLISECONDS", 3_600_000)
    with running(toy_hub(stall=0.5)) as server:
        # Set before it connects: later, the kernel drops what it had promised to take, answers to
        # the flood among it, and both sides wait.
        raw = sockets.socket()
        raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", server.port))
        quiet = {"max_queue": (1, 1), "ping_interval": None, "close_timeout": 0.1}
        with server.connect(sock=raw, **quiet) as slow:
            send(slow, "start", k=1)
            thread = threading.Thread(target=flood, args=(slow,), daemon=True)
            thread.start()
            closed = server.hub.metrics.closed
            wait_for(lambda: closed.labels("slow")._value.get() == 1)
            with server.connect() as socket:
                start(socket, k=2)
                send(socket, "text", text="ba be. ")
                send(socket, "end")
                assert until(socket, "ended")[-1]["reason"] == "end"
            raw.shutdown(sockets.SHUT_RDWR)
            thread.join(60)
        wait_for(lambda: server.hub.models.find().free == 4)


def flood(socket: Any) -> None:
    """Ask until the connection is gone."""
    try:
        while True:
            send(socket, "stats")
    except ConnectionClosed:
        pass


def test_a_server_that_stops_tells_its_clients_first() -> None:
    with running(toy_hub(drain=4.0)) as server:
        with server.connect() as socket:
            start(socket, k=2)
            send(socket, "text", text="ba be ", id=1)
            until(socket, "idle")
            server.server.handle_exit(15, None)
            assert receive(socket) == {"type": "closing", "seconds": 4.0}
            assert status(server)[0] == 503
            assert get(server, "/readyz")[0] == 503 and get(server, "/healthz")[0] == 200
            send(socket, "text", text="bi ", id=2)  # still served
            until(socket, "idle")
            assert until(socket, "ended")[-1]["reason"] == "closing"
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv(timeout=60)
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1012
        wait_for(lambda: server.server.should_exit)


def test_a_failed_stream_is_told_why_and_others_go_on(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    from waitinfo.streaming.session import Session

    add = Session.add

    def picky(session: Session, text: str, at: float | None) -> None:
        if "do" in text:
            raise ValueError("no such text: " + text)
        add(session, text, at)

    monkeypatch.setattr(Session, "add", picky)
    with server.connect() as good, server.connect() as bad:
        start(good, k=2), start(bad, k=2)
        send(bad, "text", text="do ")
        assert until(bad, "error")[-1]["fatal"]
        assert until(bad, "ended")[-1]["reason"] == "error"
        send(good, "text", text="ba be. ")
        send(good, "end")
        assert until(good, "ended")[-1]["reason"] == "end"


def test_nothing_that_clients_send_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "Geheimnis"
    for name in ("waitinfo", "uvicorn"):  # as before `serve` was called in this process
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.INFO, "waitinfo")
    with running(toy_hub(keys=Keys([KeyLimits(KEY)]))) as server:
        status(server, f"/v1/stream?key={secret}")
        with keyed(server) as socket:
            socket.send(secret)
            send(socket, "start", model=secret)
            send(socket, "start", k=2)
            send(socket, "text", text=f"{secret}. ")
            send(socket, secret)
            send(socket, "end")
            until(socket, "ended")
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("POST", f"/translate?x={secret}", json.dumps({"q": secret}))
        assert connection.getresponse().status == 400
    lines = [JsonLines().format(found) for found in caplog.records]
    assert lines and all(json.loads(line)["event"] for line in lines)
    assert not any(secret in line or KEY in line for line in lines)


def test_errors_are_logged_without_their_words() -> None:
    try:
        raise ValueError("Geheimnis")
    except ValueError as error:
        facts = (ValueError, error, error.__traceback__)
        record = logging.LogRecord("waitinfo", 40, "", 0, "failed", (), facts)
    line = json.loads(JsonLines().format(record))
    assert line["error"] == "ValueError" and "Geheimnis" not in json.dumps(line["at"])
    assert "message" not in line


def test_pausing_ends() -> None:
    client = Caller(words_per_minute=60_000)
    client.spend(60_100)
    asyncio.run(client.pause())
    assert client.spend(0) == 0


def test_who_sends_nothing_but_errors_is_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    from waitinfo.serving import connection

    monkeypatch.setattr(connection, "PENANCE", 3600.0)
    with running(toy_hub()) as server, server.connect() as wrong, server.connect() as right:
        start(wrong), start(right, k=2)
        for _ in range(connection.FORGIVEN + 5):
            wrong.send("nonsense")
        for _ in range(connection.FORGIVEN + 1):
            assert receive(wrong)["code"] == "malformed"
        with pytest.raises(TimeoutError):
            wrong.recv(timeout=0.2)
        send(right, "text", text="ba be. ")
        send(right, "end")
        assert until(right, "ended")[-1]["reason"] == "end"


def test_a_client_that_stops_reading_is_closed_although_nothing_more_is_sent() -> None:
    with running(toy_hub(stall=0.3)) as server, server.connect() as socket:
        start(socket)
        (protocol,) = server.server.server_state.connections
        server.server._loop.call_soon_threadsafe(protocol.pause_writing)
        wait_for(lambda: server.hub.metrics.closed.labels("slow")._value.get() == 1)
        wait_for(lambda: server.hub.models.find().free == 4)
