"""HTTP connections: slow ones, many of them, and requests that are much work."""

from __future__ import annotations

import asyncio
import json
import os
import socket as sockets
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from websockets.exceptions import InvalidStatus

from tests.serving import (
    JSON,
    Running,
    Watchdog,
    post,
    receive,
    running,
    send,
    start,
    toy_hub,
    until,
    wait_for,
)
from tests.streams import toy_model
from waitinfo import Translator
from waitinfo.errors import WaitinfoError
from waitinfo.serving import bodies
from waitinfo.serving import metrics as metrics_module
from waitinfo.serving.guards import Refusal
from waitinfo.serving.http import RESERVE, Front, Visitors, networks, owner, parse_address
from waitinfo.serving.pace import (
    ALL,
    BEYOND,
    BURST,
    CURRENT,
    LEAST,
    PATIENCE,
    Lane,
    Metered,
)
from waitinfo.serving.settings import Settings

MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(toy_hub(head=0.3, body=0.6)) as found:
        yield found


def say(server: Running, text: bytes) -> bytes:
    """What the server answers to these bytes, until it closes the connection."""
    with server.dial() as socket:
        socket.sendall(text)
        return rest(socket)


def rest(socket: sockets.socket) -> bytes:
    found = b""
    try:
        while part := socket.recv(1 << 16):
            found += part
    except ConnectionResetError:
        pass
    return found


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


# Limits of time


@pytest.mark.parametrize(
    "sent",
    [
        b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\nX: ", b"\x16\x03\x01",
        post(b"/translate", b"x" * 100)[:-50], post(b"/nowhere", b"x" * 100)[:-50],
        b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /heal",
        b"GET /v1/stream HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n",
    ],
)  # fmt: skip
def test_whoever_does_not_finish_a_request_is_cut_off(server: Running, sent: bytes) -> None:
    with server.dial() as socket:
        socket.sendall(sent)
        found = rest(socket)  # ends because the server closes
    assert found.count(b"HTTP/1.1 200") == (1 if b"healthz" in sent else 0)
    wait_for(lambda: not server.server.server_state.connections)
    assert not server.hub.visitors._open


def test_a_request_that_waits_for_the_model_is_not_cut_off(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = server.hub.models.find().translator._scheduler.engine
    advance, slept = engine.advance, []

    def slow(*arguments: Any) -> Any:
        if not slept:
            slept.append(wait_for(lambda: server.server.server_state.connections))
            import time

            time.sleep(1.0)  # longer than a head or a body may take
        return advance(*arguments)

    monkeypatch.setattr(engine, "advance", slow)
    body = json.dumps({"q": "ba", "source": "de", "target": "en"}).encode()
    assert status(say(server, post(b"/translate", body))) == 200


def test_requests_may_come_before_answers(server: Running) -> None:
    asks = post(b"/translate", asked("ba be")).replace(b"Connection: close\r\n", b"")
    with server.dial() as socket:
        for _ in range(20):
            socket.sendall(asks + b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        socket.sendall(b"GET /readyz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        answer = rest(socket)
    assert answer.count(b"HTTP/1.1 200") == 41 and answer.count(b"translatedText") == 20


def test_two_lengths_of_a_body_are_refused(server: Running) -> None:
    for order in (0, 1):
        lines = [b"Content-Length: 4\r\n", b"Transfer-Encoding: chunked\r\n"][:: 1 - 2 * order]
        head = b"POST /translate HTTP/1.1\r\nHost: a\r\n%s%s\r\n" % (lines[0], lines[1])
        found = say(server, head + b"0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert status(found) == 400 and found.count(b"HTTP/1.1 ") == 1


# Limits of number


def test_an_address_has_its_share_of_connections() -> None:
    with running(toy_hub(address_connections=2)) as server:
        with server.dial() as one, server.connect() as two:
            start(two)
            assert status(say(server, b"GET /healthz HTTP/1.1\r\n\r\n")) == 503
            with pytest.raises(InvalidStatus) as refused, server.connect():
                pass
            assert refused.value.response.status_code == 503
            one.shutdown(sockets.SHUT_RDWR)
            send(two, "end")
            until(two, "ended")
        wait_for(lambda: not server.hub.visitors._open)
        assert status(say(server, b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n")) == 400
        assert status(say(server, post(b"/translate", b"{}"))) == 400


def test_descriptors_are_kept_in_reserve() -> None:
    with running(toy_hub()) as server:
        assert server.hub.descriptors > RESERVE
        with server.dial() as early:
            wait_for(lambda: server.server.server_state.connections)
            server.hub.descriptors = 0
            assert say(server, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n") == b""
            server.hub.descriptors = 1 << 30
            early.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            assert status(rest(early)) == 200


def forwarded(address: str) -> dict[str, Any]:
    return {"additional_headers": {"X-Forwarded-For": address}}


def test_an_address_has_its_share_of_streams_behind_a_proxy_too() -> None:
    hub = toy_hub(streams=4, proxies=("127.0.0.0/8",), silent=1e9)
    with (
        running(hub) as server,
        server.connect(**forwarded("9.9.9.9")) as one,
        server.connect(**forwarded("8.8.8.8, 9.9.9.9")) as two,
    ):
        start(one), start(two)
        with pytest.raises(InvalidStatus) as refused, server.connect(**forwarded("9.9.9.9")):
            pass
        assert refused.value.response.status_code == 429
        assert b"this address may open 2 streams" in refused.value.response.body
        with server.connect(**forwarded("7.7.7.7")) as three:
            assert start(three)["type"] == "started"
    with (  # nobody is believed, and this machine may have all
        running(toy_hub(streams=2)) as server,
        server.connect(**forwarded("9.9.9.9")) as one,
        server.connect() as two,
    ):
        assert start(one)["type"] == start(two)["type"] == "started"


def test_streams_that_have_said_nothing_make_room() -> None:
    with running(toy_hub(streams=2, silent=0.0)) as server:
        with server.connect() as speaker, server.connect() as silent:
            start(speaker, k=2), start(silent)
            send(speaker, "text", text="ba ", id=1)
            until(speaker, "idle")
            with server.connect() as newcomer:
                assert start(newcomer, k=2)["type"] == "started"
                assert until(silent, "ended")[-1]["reason"] == "idle"
                send(newcomer, "text", text="ba ", id=1)
                until(newcomer, "idle")
                with pytest.raises(InvalidStatus) as refused, server.connect():
                    pass
                assert refused.value.response.status_code == 503
                send(speaker, "end")
                assert until(speaker, "ended")[-1]["reason"] == "end"
        wait_for(lambda: server.hub.models.find().free == 2)
        wait_for(lambda: server.hub.metrics.streams.labels("toy")._value.get() == 0)


def test_each_silent_stream_makes_room_for_one() -> None:
    """Also for two newcomers in one turn of the event loop."""
    with (
        running(toy_hub(streams=2, silent=0.0)) as server,
        server.connect() as one,
        server.connect() as two,
    ):
        start(one), start(two)
        hub, served = server.hub, server.hub.models.find()

        async def both() -> list[Any]:
            found = []
            for _ in range(2):
                hub.check_free(served)
                found.append(served.open())
            return found

        taken = asyncio.run_coroutine_threadsafe(both(), server.server._loop).result(60)
        assert all(until(silent, "ended")[-1]["reason"] == "idle" for silent in (one, two))
        for stream in taken:
            stream.close()


def test_young_silent_streams_stay() -> None:
    with running(toy_hub(streams=1, silent=1e9)) as server, server.connect() as silent:
        start(silent)
        with pytest.raises(InvalidStatus) as refused, server.connect():
            pass
        assert refused.value.response.status_code == 503


def test_addresses() -> None:
    visitors = Visitors(Settings(proxies=("10.0.0.0/8", "::1"), address_connections=1))

    def origin(peer: str, *values: str) -> str:
        return visitors.origin(peer, [(b"x-forwarded-for", value.encode()) for value in values])

    assert origin("9.9.9.9", "1.1.1.1") == "9.9.9.9"
    assert origin("10.0.0.1", "1.1.1.1, 2.2.2.2") == "2.2.2.2"
    assert origin("10.0.0.1", "1.1.1.1", "2.2.2.2, 10.0.0.2") == "2.2.2.2"
    assert origin("10.0.0.1", "1.1.1.1, nonsense") == "10.0.0.1" == origin("10.0.0.1")
    assert origin("::1", "[2001:db8::5]:80, 10.1.1.1:99") == "2001:db8::5"
    assert owner("2001:db8::5") == owner("2001:db8::6") != owner("2001:db8:1::5")
    assert owner("::ffff:9.9.9.9") == owner("9.9.9.9") != owner("9.9.9.8")
    assert visitors.enter("1.1.1.1") and not visitors.enter("1.1.1.1") and visitors.enter("1.1.1.2")
    visitors.leave("1.1.1.1")
    assert visitors.enter("1.1.1.1") and all(visitors.enter("10.0.0.1") for _ in range(3))
    assert parse_address("x") is None
    with pytest.raises(WaitinfoError, match="proxy x"):
        networks(["x"])


# Work in small steps


def form(text: str) -> bytes:
    return b"source=de&target=en&q=" + text.encode()


def asked(q: Any, **fields: Any) -> bytes:
    return json.dumps({"q": q, "source": "de", "target": "en", **fields}).encode()


FORM = b"Content-Type: application/x-www-form-urlencoded\r\n"
PARTS = b"Content-Type: multipart/form-data; boundary=x\r\n"
PILES = ("a" + "\u0301" * 60 + " ") * 7_000 + "a" + "\u0301" * 65
HEAVY = {
    "newlines": (asked("\n" * (MEGABYTE // 2)), JSON),
    "lines": (asked(" \n" * (MEGABYTE // 3)), JSON),
    "words": (asked("a\n" * (MEGABYTE // 3)), JSON),
    "letters": (asked("a" * MEGABYTE), JSON),
    "marks": (asked("a" + "\u0301\u0316" * 80_000), JSON),
    "marks below the bound": (asked(PILES).decode("unicode-escape").encode(), JSON),
    "control": (asked("\u0001" * 160_000), JSON),
    "ideographs": (json.dumps({"q": "漢" * 300_000}, ensure_ascii=False).encode(), JSON),
    "numbers": (asked([0] * (MEGABYTE // 4)), JSON),
    "texts": (asked([""] * (MEGABYTE // 5)), JSON),
    "brackets": (b"[" * MEGABYTE, JSON),
    "nested": (b'{"q":' * (MEGABYTE // 6), JSON),
    "fields": (json.dumps({f"a{n}": n for n in range(60_000)}).encode(), JSON),
    "percents": (form("%41" * (MEGABYTE // 3)), FORM),
    "ampersands": (b"&" * MEGABYTE, FORM),
    "parts": (b"\r\n--x" * (MEGABYTE // 5), PARTS),
    "parts with names": (b'\r\n--x\r\nname="q"\r\n\r\na' * 40_000, PARTS),
    "tags": (asked("<p>" * (MEGABYTE // 4), format="html"), JSON),
    "bold": (asked("<b></b>" * (MEGABYTE // 8), format="html"), JSON),
    "one tag": (asked("<a " * (MEGABYTE // 4), format="html"), JSON),
    "attributes": (asked("<b " + " ".join(f"a{n}" for n in range(120_000)), format="html"), JSON),
    "a closed tag": (
        asked("<b " + " ".join(f"a{n}" for n in range(140_000)) + ">a</b>", format="html"),
        JSON,
    ),
    "empty elements": (asked("<p>ba " + "<img>" * 45_000 + " be", format="html"), JSON),
    "bytes": (b"\xff" * MEGABYTE, JSON),
}


@pytest.mark.parametrize("name", HEAVY)
def test_no_request_holds_the_event_loop(server: Running, name: str) -> None:
    body, kind = HEAVY[name]
    with Watchdog() as watchdog:
        answer = say(server, post(b"/translate", body, kind))
    assert status(answer) in (200, 400, 413)
    assert watchdog.longest < 0.05, watchdog.step


def test_chunks_of_single_bytes_hold_nothing_up() -> None:
    head = b"POST /translate HTTP/1.1\r\nHost: a\r\n%sTransfer-Encoding: chunked\r\n\r\n" % JSON
    with running(toy_hub()) as server, Watchdog() as watchdog, server.dial() as socket:
        socket.sendall(head + b"1\r\n{\r\n" * 11_000 + b"0\r\n\r\n")
        assert status(rest(socket)) == 400
    assert watchdog.longest < 0.05, watchdog.step


def test_large_requests_are_bounded_in_number() -> None:
    """Those that wait for their turn take memory."""
    begun = post(b"/translate", b" " * MEGABYTE)[: MEGABYTE // 4]
    with (
        running(toy_hub(bodies=2)) as server,
        server.dial() as one,
        server.dial() as two,
    ):
        one.sendall(begun), two.sendall(begun)
        wait_for(lambda: server.hub._large.total() == 2)
        answer = say(server, post(b"/detect", asked("a" * MEGABYTE)))
        assert status(answer) == 503 and b"too many large requests" in answer
        assert status(say(server, post(b"/detect", asked("der")))) == 200
        one.close(), two.close()
        wait_for(lambda: not server.hub._large)
        assert status(say(server, post(b"/translate", asked("a" * MEGABYTE)))) == 413
    hub = toy_hub(bodies=2)
    other, here = (SimpleNamespace(client=SimpleNamespace(host=h)) for h in ("9.9.9.9", "::1"))
    with hub.large(other):  # type: ignore[arg-type]
        with pytest.raises(Refusal), hub.large(other):  # type: ignore[arg-type]
            pass
        with hub.large(here):  # type: ignore[arg-type]
            pass


def test_a_turn_lasts_as_long_as_its_thread_works() -> None:
    """Although its client has left: else many who leave would all be worked for at a time."""

    async def run() -> None:
        hub, go_on, begun = toy_hub(), threading.Event(), threading.Event()

        async def work() -> None:
            async with bodies.turn(hub, MEGABYTE):
                await bodies.on_thread(lambda: begun.set() or go_on.wait(600))

        working = asyncio.ensure_future(work())
        await asyncio.to_thread(begun.wait, 600)
        for _ in range(2):
            working.cancel()
            await asyncio.wait({working}, timeout=0.05)
            assert not working.done() and hub.reading.locked()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await working

    asyncio.run(run())


def test_the_description_holds_nothing_up() -> None:
    with running(toy_hub()) as server, Watchdog() as watchdog:
        asks = b"GET /openapi.json HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        assert status(say(server, asks)) == 200 == status(say(server, asks))
    assert watchdog.longest < 0.05, watchdog.step


def test_heads_are_short(server: Running) -> None:
    many = b"".join(b"X-%d: a\r\n" % n for n in range(50_000))
    with Watchdog() as watchdog:
        assert status(say(server, b"GET / HTTP/1.1\r\nHost: a\r\n" + many + b"\r\n")) == 400
        path = b"/" + b"a" * 60_000
        assert status(say(server, b"GET " + path + b" HTTP/1.1\r\nHost: a\r\n\r\n")) in (400, 404)
    assert watchdog.longest < 0.05, watchdog.step


@pytest.mark.parametrize(
    "message",
    [
        "[" * 60_000, '{"type":' * 8_000, json.dumps({"type": "text", "text": "a " * 9_000}),
        json.dumps({"type": "text", "text": "漢" * 10_000}),
        json.dumps({"type": "text", "text": "a" + "\u0301\u0316" * 2_000}),
        json.dumps({"type": "text", "text": ("a" + "\u0301" * 30 + "\u0323" * 30) * 65 + " "}),
        json.dumps({"type": "text", "text": "漢" + "\u0301" * 20 + "\u0323" * 20 + " a " * 99}),
        json.dumps({"type": "start", "resume": {"path": [["a", {}]] * 5_000}}),
        json.dumps({"type": "start", "resume": {"path": [[5, 5]] * 7_000, "position": 5}}),
        json.dumps({f"a{n}": n for n in range(4_000)}), "\u0000" * 60_000,
    ],
)  # fmt: skip
def test_no_message_holds_the_event_loop(server: Running, message: str) -> None:
    with server.connect() as socket, Watchdog() as watchdog:
        start(socket, k=2)
        socket.send(message)
        send(socket, "stats")
        while receive(socket)["type"] not in ("stats", "ended"):
            pass
    assert watchdog.longest < 0.05, watchdog.step


@pytest.mark.parametrize("clients, each", [(60, 1), (1, 400), (3, 100)])
def test_clients_who_want_too_much_share_a_part_of_the_time(clients: int, each: int) -> None:
    """Whatever their number, and that of their connections; who keeps to its share never waits."""
    lane = Lane()
    greedy = [lane.pace(f"9.9.9.{n}") for n in range(clients) for _ in range(each)]
    others = [lane.pace(None) for _ in range(40)]
    places, taken, now, cost = [0.0] * len(greedy), 0.0, 0.0, 0.001
    with ExitStack() as using:
        for pace in (*greedy, *others):
            using.enter_context(pace.using())
        assert lane.open == clients + len(others)
        share = max(LEAST, ALL / lane.open)
        while now < 100:
            for n, pace in enumerate(greedy):
                if not pace.wait(places[n], now):
                    taken += cost
                    places[n] = pace.book(cost, now)
            assert others[0].spend(0.05 * share, now) == 0
            now += 0.05
    forgiven = each * cost / PATIENCE
    most = clients * share + BEYOND + clients * forgiven
    assert 50 * BEYOND < taken < 100 * most + len(greedy) * cost + clients * BURST
    assert lane.open == 0


def test_who_comes_again_has_the_same_pace() -> None:
    """As long as it has not rested; those of others are not kept."""
    lane = Lane()
    assert lane.pace("9.9.9.9").spend(BURST, 0.0) == 0 < lane.pace("9.9.9.9").spend(0.01, 0.0)
    for n in range(1_000):
        lane.pace(f"8.8.8.{n}").spend(1e-4, 1.0 + n)
    assert len(lane._known) < 10 and lane.pace("9.9.9.9").spend(BURST, 1_000.0) == 0
    visitors = Visitors(Settings(proxies=("10.0.0.0/8",)))
    assert visitors.pace("2001:db8::5") is visitors.pace("2001:db8::6")
    for own in ("127.0.0.1", "::1", "10.1.1.1"):
        assert visitors.pace(own) is not visitors.pace(own)


FLOODS = {
    "requests": {"type": "http", "method": "GET"},
    "WebSockets": {"type": "websocket", "subprotocols": []},
}


@pytest.mark.parametrize("kind", FLOODS)
def test_many_of_one_address_are_served_in_turn(kind: str) -> None:
    """Others at once, however many wait."""

    async def run() -> None:
        served: list[str] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            served.append(scope["client"][0])
            await over.wait()

        state = SimpleNamespace(hub=SimpleNamespace(visitors=visitors))
        front, over = Front(app), asyncio.Event()

        def ask(address: str) -> asyncio.Future[None]:
            scope = {**FLOODS[kind], "client": (address, 1), "headers": [], "path": "/"}
            scope["app"] = SimpleNamespace(state=state)
            return asyncio.ensure_future(front(scope, None, None))  # type: ignore[arg-type]

        flood = [ask("9.9.9.9") for _ in range(400)]
        last = [ask("8.8.8.8"), *(ask("127.0.0.1") for _ in range(50))]
        while "8.8.8.8" not in served:
            await asyncio.sleep(0)
        assert served.count("9.9.9.9") < 40
        while served.count("127.0.0.1") < 50:
            await asyncio.sleep(0)
        assert served.count("9.9.9.9") < 60
        for task in (*flood, *last):
            task.cancel()
        await asyncio.gather(*flood, *last, return_exceptions=True)
        assert visitors.lane.open == 0

    visitors = Visitors(Settings())
    asyncio.run(run())


def test_whoever_leaves_before_its_turn_is_not_served() -> None:
    async def run() -> None:
        pace = Lane().pace("9.9.9.9")
        waiting = [asyncio.ensure_future(pace.turn(1.0, lambda: True)) for _ in range(9)]
        assert not any(await asyncio.gather(*waiting))
        assert await Lane().pace("9.9.9.8").turn(1e-3)

    asyncio.run(run())


def test_all_time_of_a_request_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of a thread, and of steps that fail."""

    async def run() -> None:
        pace, charged = Lane().pace("9.9.9.9"), []
        monkeypatch.setattr(pace, "charge", lambda cost, now: charged.append(cost))
        worked = iter([0.0, 1.0, 1.0, 3.0, 10.0, 14.0])
        monkeypatch.setattr(time, "thread_time", lambda: next(worked))

        async def work() -> None:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                raise KeyError from None

        async def metered() -> None:
            await Metered(work(), pace)

        working = asyncio.ensure_future(metered())
        await asyncio.sleep(0)
        working.cancel()
        with pytest.raises(KeyError):
            await working
        CURRENT.set(pace)
        await bodies.on_thread(lambda: None)
        await asyncio.sleep(0)
        assert charged == [1.0, 2.0, 4.0]

    asyncio.run(run())


def test_figures_and_pages_are_made_once(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[None] = []
    figures = metrics_module.generate_latest
    monkeypatch.setattr(
        metrics_module, "generate_latest", lambda r: made.append(None) or figures(r)
    )
    monkeypatch.setattr(metrics_module, "FRESH", 600.0)
    monkeypatch.setattr(server.hub.metrics, "_stale", 0.0)
    for path in ("metrics", "page/lab.js", "page/style.css", "", "r/hall") * 5:
        asks = f"GET /{path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode()
        with mock.patch.object(Path, "read_text", side_effect=AssertionError):
            assert status(say(server, asks)) == 200
    assert len(made) == 1


def test_a_server_warms_up_before_anybody_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    translator = Translator(toy_model("wait-k"), streams=3)
    engine, used = translator._scheduler.engine, set()
    advance = engine.advance

    def noted(*arguments: Any) -> Any:
        used.update(np.flatnonzero(engine.state.active).tolist())
        return advance(*arguments)

    monkeypatch.setattr(engine, "advance", noted)
    plain = Translator(toy_model("wait-k"), streams=3).translate("ba be bi.")
    translator.warm_up()
    assert used == {0, 1, 2} and translator.open_streams == 0
    assert translator.translate("ba be bi.") == plain
    monkeypatch.setattr(os, "sysconf", lambda name: 1)
    with pytest.raises(WaitinfoError, match="^streams 3: take 0 GiB, and this machine has 0$"):
        translator.warm_up()
