"""A short version of the soak test."""

from __future__ import annotations

import asyncio
import logging

from tests.serving import running, toy_hub
from tests.soak import Errors, Soak, nothing_left


def test_clients_that_come_and_go() -> None:
    errors = Errors()
    logging.getLogger().addHandler(errors)
    try:
        with running(toy_hub(streams=3, stall=2.0, retry=0.05)) as server:
            soak = Soak(server, lambda counts: counts["good"] < 8 or counts["ours"] < 3)
            asyncio.run(soak.run(clients=6, seed=1))
            nothing_left(server)
    finally:
        logging.getLogger().removeHandler(errors)
    assert soak.counts["killed"] and soak.counts["nonsense"]
    assert not errors.found
