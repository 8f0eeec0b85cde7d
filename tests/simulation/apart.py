"""An engine in a process of its own: the pipe to it, which keeps the order, and its end."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.simulation.world import Waited, World
from waitinfo.serving.metrics import EngineObserver, Metrics
from waitinfo.serving.models import Served, served_by
from waitinfo.streaming.host import Host
from waitinfo.streaming.remote import RemoteScheduler, RemoteTranslator


class Apart:
    """What the front has of an engine, whichever process that is at present."""

    def __init__(self, world: World, engine: Served, metrics: Metrics) -> None:
        self.world = world
        self.latency = world.draw.choice([0.0, 0.0, 0.001, 0.1])
        model = engine.translator.loaded.without_weights()
        facts = Host.facts(engine.name, engine.translator)
        self.scheduler = RemoteScheduler(
            facts, lambda orders: self._later(self.host.receive, orders),
            EngineObserver(metrics, engine.name),
        )  # fmt: skip
        self.served = served_by(engine.name, RemoteTranslator(model, self.scheduler))
        self.begin(engine)

    def begin(self, engine: Served) -> None:
        self.engine, self.due = engine, 0.0
        self.host = Host(engine.translator, partial(self._report, engine))
        self.host._lock = Waited(self.world)  # type: ignore[assignment]
        engine.server.start()
        self.scheduler.alive = True

    def end(self) -> None:
        self.engine.server.close()
        self.scheduler.lost()

    def _report(self, engine: Served, stats: Any, reports: Any) -> None:
        if engine is self.engine:
            loop = self.world.loop
            loop.call_soon_threadsafe(self._later, self.scheduler.reported, stats, reports)

    def _later(self, take: Callable[..., None], *message: Any) -> None:
        engine, data = self.engine, pickle.dumps(message)
        delay = self.latency * self.world.draw.random()
        self.due = max(self.due + 1e-6, self.world.loop.time() + delay)

        def arrive() -> None:
            if engine is self.engine and self.scheduler.alive:
                take(*pickle.loads(data))

        self.world.loop.call_at(self.due, arrive)
