"""Targets of a server's streams: messages, resumed streams, and the bytes of a WebSocket."""

from __future__ import annotations

import json
from functools import cache
from unittest import mock

from tests.simulation.engine import FakeEngine
from tests.streams import toy_model
from tests.websockets import converse
from waitinfo.errors import WaitinfoError
from waitinfo.serving import protocol, realtime
from waitinfo.serving.transcript import Surrogates, Transcript, replay_of
from waitinfo.streaming import translator
from waitinfo.streaming.translator import Translator

TEXT = "ba be bi. bo bu da de di do du 日本語 😀 "


def messages(data: bytes) -> None:
    """Messages of both WebSockets: understood, or refused in one line."""
    text = Surrogates().add(data.decode("utf-8", "replace"))
    for parse in (protocol.parse, lambda text: realtime.parse(protocol.parse_json(text))):
        try:
            parse(text)
        except WaitinfoError as error:
            assert "\n" not in str(error)


@cache
def server() -> Translator:
    with mock.patch.object(translator, "new_engine", lambda *_: FakeEngine(1)):
        return Translator(toy_model(), streams=1)


def replay(data: bytes) -> None:
    """Resume a stream, say something, and tell what happens as the server does."""
    try:
        resume = protocol.Resume.model_validate(json.loads(data))
        with server().stream(2, raw=True, history=0, replay=replay_of(resume)) as stream:
            transcript = Transcript(stream)
            transcript.source.add(TEXT)
            # As a server does: what a round has done is taken at once.
            for events in (stream.push(TEXT), stream.finish()):
                if (found := transcript.take(events, trace=True)) is not None:
                    found.model_dump_json()
    except (WaitinfoError, ValueError, RecursionError):
        """Refused, before anything was promised."""


def frames(data: bytes) -> None:
    """The server's protocol closes with a code, or goes on."""
    converse(data, portion=1 + len(data) // 3)
