"""LibreTranslate's interface, OpenAI's realtime events, rooms, and what operators look at."""

from __future__ import annotations

import http.client
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from html import escape
from typing import Any

import pytest

from tests.serving import (
    Running,
    receive,
    running,
    send,
    start,
    toy_hub,
    toy_served,
    until,
    wait_for,
)
from waitinfo.serving.guards import KeyLimits, Keys
from waitinfo.serving.hub import Hub
from waitinfo.serving.metrics import Metrics
from waitinfo.serving.models import Models

KEY = "a-secret-key"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(toy_hub()) as found:
        yield found


def ask(
    server: Running, method: str, path: str, body: bytes | str | None = None, **headers: str
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request(method, path, body, {n.replace("_", "-"): v for n, v in headers.items()})
    response = connection.getresponse()
    text = response.read().decode()
    json_given = response.headers.get("content-type", "").startswith("application/json")
    return response.status, json.loads(text) if json_given else text


def translate(server: Running, **fields: Any) -> tuple[int, Any]:
    values = {"source": "de", "target": "en", **fields}
    return ask(server, "POST", "/translate", json.dumps(values), Content_Type="application/json")


def expected(server: Running, text: str) -> str:
    return server.hub.models.find().translator.translate(text)


def test_texts_lists_and_lines(server: Running) -> None:
    one, two = expected(server, "ba be bi."), expected(server, "bo bu")
    assert translate(server, q="ba be bi.") == (200, {"translatedText": one})
    assert translate(server, q=["ba be bi.", "", "bo bu"])[1] == {"translatedText": [one, "", two]}
    assert translate(server, q="ba be bi.\n\n  bo bu ")[1]["translatedText"] == f"{one}\n\n  {two} "
    assert translate(server, q="\n" * 100_000)[1]["translatedText"] == "\n" * 100_000
    assert translate(server, q=[]) == (200, {"translatedText": []})
    detected = translate(server, q="12 ba", source="auto")[1]["detectedLanguage"]
    assert detected == {"confidence": 0, "language": "de"}
    german = "Ich habe das nicht gewusst, aber es ist so."
    detected = translate(server, q=[german, "5"], source="auto", alternatives=3)[1]
    assert (
        detected["detectedLanguage"][0]["confidence"] > 50 and detected["alternatives"] == [[]] * 2
    )
    assert [guess["language"] for guess in detected["detectedLanguage"]] == ["de", "de"]


@pytest.mark.parametrize("more", [b"", b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"])
def test_nobody_translates_for_a_client_that_has_left(
    monkeypatch: pytest.MonkeyPatch, more: bytes
) -> None:
    """Its streams are free before the round under way has ended, and no more text is taken in."""
    from waitinfo.streaming.session import Session

    add, begun, go_on, taken = Session.add, threading.Event(), threading.Event(), []

    def slow(session: Session, text: str, at: float | None) -> None:
        taken.append(len(text))
        begun.set()
        assert go_on.wait(600)
        add(session, text, at)

    monkeypatch.setattr(Session, "add", slow)
    with running(toy_hub()) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        body = json.dumps({"q": "ba be bi\n" * 3_000, "source": "de", "target": "en"})
        connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
        assert begun.wait(600)
        connection.sock.sendall(more)
        connection.close()
        wait_for(lambda: server.hub.models.find().free == 4)
        go_on.set()
        assert translate(server, q="bo bu")[1]["translatedText"] == expected(server, "bo bu")
    assert len(taken) <= 5 and max(taken) <= 1_000


def test_long_lines_are_handed_in_slices(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a round takes in holds up all other streams."""
    from waitinfo.streaming.session import Session

    text = "ba be bi, bo bu be " * 300
    whole = expected(server, text)
    add, taken = Session.add, []

    def counted(session: Session, text: str, at: float | None) -> None:
        taken.append(len(text))
        add(session, text, at)

    monkeypatch.setattr(Session, "add", counted)
    assert translate(server, q=text)[1]["translatedText"].strip() == whole
    assert max(taken) <= 1_000 and sum(taken) == len(text.rstrip())


def test_forms(server: Running) -> None:
    form = urllib.parse.urlencode({"q": "ba be", "source": "de", "target": "en"})
    kind = "application/x-www-form-urlencoded"
    found = ask(server, "POST", "/translate", form, Content_Type=kind)
    assert found == (200, {"translatedText": expected(server, "ba be")})


def multipart(*fields: tuple[str, str], boundary: str = "x-y") -> tuple[str, str]:
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields
    ]
    return "".join(parts) + f"--{boundary}--\r\n", f'multipart/form-data; boundary="{boundary}"'


def test_multipart_forms(server: Running) -> None:
    body, kind = multipart(("q", "ba\r\nbe"), ("source", "de"), ("target", "en"))
    found = ask(server, "POST", "/translate", body, Content_Type=kind)
    assert found[1]["translatedText"].split() == (
        f"{expected(server, 'ba')} {expected(server, 'be')}".split()
    )
    body, kind = multipart(("q", "ba"), ("q", "be"), ("source", "de"), ("target", "en"))
    found = ask(server, "POST", "/translate", body, Content_Type=kind)
    assert len(found[1]["translatedText"]) == 2
    for kind in ("multipart/form-data", "multipart/form-data; boundary=other"):
        assert ask(server, "POST", "/translate", body, Content_Type=kind)[0] == 400


def test_a_published_client(server: Running) -> None:
    libre = pytest.importorskip("libretranslatepy")
    client = libre.LibreTranslateAPI(server.url)
    assert client.translate("ba be bi.", "de", "en") == expected(server, "ba be bi.")
    german, english = client.languages()
    assert german == {"code": "de", "name": "German", "targets": ["en"]}
    assert english == {"code": "en", "name": "English", "targets": []}


def test_what_libretranslates_clients_ask_besides(server: Running) -> None:
    libre = pytest.importorskip("libretranslatepy")
    client = libre.LibreTranslateAPI(server.url)
    assert client.detect("The man who was here is not at home.")[0]["language"] == "en"
    assert client.detect("12")[0] == {"confidence": 0, "language": "de"}
    settings = client.settings() if hasattr(client, "settings") else None
    assert settings is None or settings["language"]["source"]["code"] == "de"
    found = ask(server, "GET", "/frontend/settings")[1]
    assert found["language"]["target"] == {"code": "en", "name": "English"}
    assert found["keyRequired"] is False and found["filesTranslation"] is False
    for path in ("/translate_file", "/suggest"):
        status, answer = ask(server, "POST", path, "q=ba")
        assert status == 403 and "\n" not in answer["error"]


def test_figures_may_need_a_key() -> None:
    with running(toy_hub(keys=Keys([KeyLimits(KEY)]), private=True)) as server:
        for path in ("/metrics", "/v1/models", "/openapi.json"):
            assert ask(server, "GET", path)[0] == 401
            assert ask(server, "GET", f"{path}?key={KEY}")[0] == 401
            assert ask(server, "GET", path, Authorization=f"Bearer {KEY}")[0] == 200
        assert ask(server, "GET", "/healthz")[0] == ask(server, "GET", "/readyz")[0] == 200
    with running(toy_hub(keys=Keys([KeyLimits(KEY)]))) as server:
        assert ask(server, "GET", "/metrics")[0] == 200


def test_html_keeps_its_markup(server: Running) -> None:
    html = '<p class="a&amp;b">ba be<br/>bi <b>bo</b></p><script>ba < 1</script><!-- ba -->&lt;'
    found = translate(server, q=html, format="html")[1]["translatedText"]
    above, below = escape(expected(server, "ba be")), expected(server, "bi bo")
    assert found.startswith(f'<p class="a&amp;b">{above}<br>') and "</b></p><script>" in found
    assert "<script>ba < 1</script><!-- ba -->" in found
    inside = found.split("<br>")[1].split("</p>")[0]
    assert re.sub(r"</?b>", "", inside) == escape(below, quote=False)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"q": 5}, 400), ({"q": "ba", "target": "fr"}, 400), ({"q": "ba", "source": "fr"}, 400),
        ({"q": "ba", "format": "pdf"}, 400), ({"q": "ba", "k": 0}, 400),
        ({"q": "ba", "model": "none"}, 400), ({"q": ["ba"] * 300}, 413), ({}, 400),
        ({"q": "ba " * 400_000}, 413), ({"q": "a " * 20_001}, 413), ({"q": "a" * 4_097}, 413),
        ({"q": "漢" * 20_001}, 413), ({"q": "漢" + "a" * 4_097}, 413), ({"q": [0] * 300_000}, 413),
        ({"q": "a\x01" * 20_001}, 413), ({"q": "<b>a</b>" * 5_000, "format": "html"}, 413),
        ({"q": "<b>" * 300, "format": "html"}, 400),
    ],
)  # fmt: skip
def test_bad_requests(server: Running, fields: dict[str, Any], status: int) -> None:
    found, answer = translate(server, **fields)
    assert found == status and answer["error"]


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{", "application/json", 400), (b"\xff", "application/json", 400),
        (b"[]", "application/json", 400), (b"[" * 9999, "application/json", 400),
        (b"q=%ff", "application/x-www-form-urlencoded", 400), (b"q", "text/html", 415),
        (b"a&" * 2000, "application/x-www-form-urlencoded", 400),
    ],
)  # fmt: skip
def test_bad_bodies(server: Running, body: bytes, kind: str, status: int) -> None:
    assert ask(server, "POST", "/translate", body, Content_Type=kind)[0] == status


def test_keys_and_rates_of_requests() -> None:
    with running(toy_hub(keys=Keys([KeyLimits(KEY, words_per_minute=5)]))) as server:
        assert translate(server, q="ba")[0] == 401
        assert translate(server, q="ba", api_key="wrong-key")[0] == 401
        assert translate(server, q="ba " * 30, api_key=KEY)[0] == 200
        assert translate(server, q="ba", api_key=KEY)[0] == 429


def test_operations(server: Running) -> None:
    assert ask(server, "GET", "/healthz") == (200, {"status": "ok"})
    ready = {"status": "ready", "free": 4, "models": {"toy": 4}, "voices": 0}
    assert ask(server, "GET", "/readyz") == (200, ready)
    assert ask(server, "GET", "/readyz?model=none")[0] == 400
    (model,) = ask(server, "GET", "/v1/models")[1]
    assert model["name"] == "toy" and model["dial"]["name"] == "k"
    with server.connect() as socket:
        start(socket, k=2)
        send(socket, "text", text="ba be bi. ", id=1)
        until(socket, "idle")
        figures = ask(server, "GET", "/metrics")[1]
        assert 'waitinfo_streams{model="toy"} 1.0' in figures
        for name in ("round_seconds", "batch_streams", "queue_age_seconds", "lag_words"):
            assert f'waitinfo_{name}_count{{model="toy"}}' in figures
        assert 'waitinfo_words_in_total{model="toy"}' in figures
    page = ask(server, "GET", "/")[1]
    assert "<title>" in page and "http://" not in page and "https://" not in page


def test_each_model_is_ready_for_itself() -> None:
    metrics = Metrics()
    models = [toy_served(metrics, name, streams=1) for name in ("one", "two")]
    with running(Hub(Models(models), metrics=metrics)) as server, server.connect() as socket:
        start(socket, model="one")
        full = {"status": "full", "free": 1, "models": {"one": 0, "two": 1}, "voices": 0}
        assert ask(server, "GET", "/readyz") == (503, full)
        assert ask(server, "GET", "/readyz?model=one")[0] == 503
        assert ask(server, "GET", "/readyz?model=two")[0] == 200


# OpenAI's realtime translation


def test_realtime_translation(server: Running) -> None:
    with server.connect("/v1/realtime/translations?model=toy") as socket:
        created = receive(socket)
        assert created["type"] == "session.created" and created["session"]["model"] == "toy"
        send(socket, "session.update", session={"audio": {"output": {"language": "en"}}, "k": 2})
        assert receive(socket)["session"]["k"] == 2
        for word in ("ba ", "b", "e. b", "i bo."):
            send(socket, "session.input_text_buffer.append", text=word)
        send(socket, "session.close")
        found = until(socket, "session.closed")
    deltas = [m for m in found if m["type"] == "session.output_transcript.delta"]
    translator = server.hub.models.find().translator
    assert "".join(m["delta"] for m in deltas) == translator.translate("ba be. bi bo.", k=2)
    times = [m["elapsed_ms"] for m in deltas]
    assert times == sorted(times)
    ids = [m["event_id"] for m in [created, *found]]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    "event",
    [
        {"type": "session.input_audio_buffer.append", "audio": "AAAA"},
        {"type": "session.update", "session": {"audio": {"output": {"language": "fr"}}}},
        {"type": "session.update", "session": {"k": 0}}, {"type": "session.update"},
        {"type": "response.create"}, {"event_id": 5}, 5,
    ],
)  # fmt: skip
def test_realtime_errors_keep_the_session(server: Running, event: Any) -> None:
    with server.connect("/v1/realtime/translations") as socket:
        receive(socket)
        if isinstance(event, dict):
            event = {"event_id": "mine", **event}
        socket.send(json.dumps(event))
        error = receive(socket)
        assert error["type"] == "error" and error["error"]["type"] == "invalid_request_error"
        if isinstance(event, dict) and event["event_id"] == "mine":
            assert error["error"]["event_id"] == "mine"
        send(socket, "session.close")
        assert until(socket, "session.closed")


def test_an_unknown_realtime_model(server: Running) -> None:
    with server.connect("/v1/realtime/translations?model=none") as socket:
        assert "unknown model" in receive(socket)["error"]["message"]
        assert receive(socket)["type"] == "session.closed"
