"""A short version of the soak test."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.serving import Errors, running, toy_hub
from tests.soak import BUFFER, KINDS, PATIENCE, STALL, Soak, local, nothing_left
from tests.streams import some_text


def test_clients_that_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waitinfo.serving.server.SEND_BUFFER", BUFFER)
    monkeypatch.setattr("waitinfo.serving.server.UNREAD_MILLISECONDS", PATIENCE)
    hub = toy_hub(streams=3, stall=STALL / 4, retry=0.05, start=600)
    texts = [some_text(random.Random(seed), 2 + seed % 9) for seed in range(20)]
    expected = {text: local(hub.models.find().translator, text) for text in texts}
    with Errors() as errors, running(hub) as server:
        every = set(KINDS)
        soak = Soak(server.url, expected, lambda counts: bool(every - set(counts)))
        asyncio.run(soak.run(clients=6, seed=1))
        nothing_left(server.url)
        assert not len(server.hub.rooms)
    assert not errors.found
