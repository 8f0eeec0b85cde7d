"""Fuzzing: whatever clients send, the server answers, loses no slot and serves the others.

    python -m tests.test_serving_fuzz --messages 100000

The suite runs a short version.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed

from tests.serving import (
    Errors,
    Running,
    running,
    send,
    start,
    toy_hub,
    until,
    wait_for,
    words_of,
)  # fmt: skip

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis")

PATHS = ("/v1/stream", "/v1/realtime/translations", "/v1/watch?room=fuzz")
TYPES = (
    "start", "text", "set", "flush", "end", "stats", "session.update", "session.close",
    "session.input_text_buffer.append", "session.input_audio_buffer.append",
)  # fmt: skip
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
    | st.sampled_from(["ba be. ", "\ud83d", "toy", "x" * 5000, 1, 2.5, 1e308, -1]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["position", "path", "read", "k", "audio"]), inner),
    max_leaves=6,
)  # fmt: skip
FIELDS = ("text", "k", "lag", "id", "resume", "room", "model", "version", "trace", "session",
          "segmenter", "system", "event_id")  # fmt: skip
messages = st.one_of(
    st.builds(
        lambda kind, rest: json.dumps({**rest, "type": kind}),
        st.sampled_from(TYPES),
        st.dictionaries(st.sampled_from(FIELDS), values, max_size=4),
    ),
    st.builds(
        lambda kind, text: json.dumps({"type": kind, "text": text}),
        st.sampled_from(["text", "session.input_text_buffer.append"]),
        st.text("ba.e ", max_size=20),
    ),
    st.builds(
        lambda path: json.dumps({"type": "start", "resume": {"position": 0, "path": path}}),
        st.lists(st.tuples(st.integers(-2, 400), st.integers(-2, 60)), max_size=20),
    ),
    st.just('{"type": "start", "k": 2}'),
    st.text(max_size=20),
    st.binary(max_size=20),
)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(toy_hub(start=5.0)) as found:
        yield found


def throw(server: Running, path: str, sent: list[str | bytes]) -> None:
    """Send messages and leave in the middle of it all."""
    wait_for(lambda: server.hub.models.find().free)  # others that have left are being closed
    with server.connect(path, close_timeout=0.2, ping_interval=None) as socket:
        try:
            for message in sent:
                socket.send(message)
            socket.recv(timeout=0.01)
        except (ConnectionClosed, TimeoutError):
            pass


def still_well(server: Running) -> None:
    """Every slot is free again, and a stream writes what it always writes."""
    served = server.hub.models.find()
    wait_for(lambda: served.free == served.translator.streams)
    with server.connect() as socket:
        assert start(socket, k=2)["type"] == "started"
        send(socket, "text", text="ba be bi. ")
        send(socket, "end")
        expected = served.translator.translate("ba be bi.", k=2)
        assert words_of(until(socket, "ended")) == expected.split()
    wait_for(lambda: served.free == served.translator.streams)


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(path=st.sampled_from(PATHS), sent=st.lists(messages, max_size=12))
def test_websockets(server: Running, path: str, sent: list[Any]) -> None:
    throw(server, path, sent)


def test_the_server_is_still_well(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    still_well(server)
    assert not [record for record in caplog.records if record.exc_info]


def test_http(server: Running) -> None:
    request(server, examples=8)
    still_well(server)


def request(server: Running, examples: int) -> int:
    """Requests of every kind that the server describes; their number."""
    count = 0
    for result in schemathesis.openapi.from_url(f"{server.url}/openapi.json").get_all_operations():

        @settings(max_examples=examples, suppress_health_check=list(HealthCheck), database=None)
        @given(case=result.ok().as_strategy())
        def check(case: Any) -> None:
            nonlocal count
            count += 1
            wait_for(lambda: server.hub.models.find().free)
            answer = case.call(timeout=600)
            case.validate_response(answer, checks=(schemathesis.checks.not_a_server_error,))

        check()
    return count


def converse(server: Running, examples: int) -> int:
    """Conversations by WebSocket; the number of their messages."""
    count = 0

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck), database=None)
    @given(path=st.sampled_from(PATHS), sent=st.lists(messages, max_size=60))
    def check(path: str, sent: list[Any]) -> None:
        nonlocal count
        count += len(sent)
        throw(server, path, sent)

    check()
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    options = parser.parse_args()
    sent = requests = 0
    began = time.monotonic()
    with running(toy_hub(start=5.0)) as server, Errors() as errors:
        while sent + requests < options.messages:
            sent += converse(server, 200)
            requests += request(server, 20)
            still_well(server)
            assert not errors.found, errors.found
            seconds = time.monotonic() - began
            print(f"{sent:,} messages, {requests:,} requests, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
