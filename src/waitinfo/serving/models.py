"""The models that a server offers."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from waitinfo.errors import WaitinfoError, unknown
from waitinfo.serving.engine import EngineLink
from waitinfo.serving.metrics import EngineObserver, Metrics
from waitinfo.streaming.asynchronous import AsyncStream, AsyncTranslator
from waitinfo.streaming.remote import RemoteScheduler, RemoteTranslator
from waitinfo.streaming.replay import Replay
from waitinfo.streaming.translator import Translator
from waitinfo.systems import System, build_system
from waitinfo.text.languages import Languages
from waitinfo.trained.folder import describe, find_model
from waitinfo.trained.saving import LoadedModel, load_model

COMPARED = ("wait-k", "full")  # systems beside a model's own, to see them side by side


@dataclass(frozen=True)
class Served:
    """A model under one system: its translator and what clients are told about it."""

    name: str
    translator: Translator
    server: AsyncTranslator
    vocabulary: str  # fingerprint of the tokenizers

    @property
    def system(self) -> System:
        return self.translator.system

    @property
    def languages(self) -> Languages:
        return self.translator.loaded.languages

    @property
    def free(self) -> int:
        if not self.translator.alive:
            return 0
        return self.translator.streams - self.translator.open_streams

    def open(
        self,
        k: float | None = None,
        lag: float | None = None,
        segmenter: str | None = None,
        replay: Replay | None = None,
    ) -> AsyncStream:
        """Open a stream that takes any pieces of text."""
        if k is not None and lag is not None:
            raise WaitinfoError("give either k or lag, not both")
        return self.server.stream(k, raw=True, segment=segmenter, history=0, replay=replay, lag=lag)

    def describe(self) -> dict[str, Any]:
        """What `GET /v1/models` says."""
        dial = self.system.dial
        return {
            "name": self.name,
            "system": self.system.name,
            "source": self.languages.source,
            "target": self.languages.target,
            "vocabulary": self.vocabulary,
            "streams": self.translator.streams,
            "lags": self._lags(),
            "dial": dial
            and {
                "name": dial.name,
                "default": self.system.trained_dial(),
                "minimum": dial.minimum,
                "whole": dial.whole,
                "help": dial.help,
            },
        }

    def _lags(self) -> tuple[float, float] | None:
        """The smallest and the largest lag that a stream can hold."""
        try:
            lags = self.translator.dials.calibration.lags
        except WaitinfoError:
            return None
        return lags[0], lags[-1]


class Models:
    """All models of a server by name, each under its own system and maybe others."""

    def __init__(self, served: Sequence[Served], link: EngineLink | None = None) -> None:
        if not served:
            raise WaitinfoError("a server needs at least one model")
        self._link = link  # to the process of the engine, if it is another one
        self._served: dict[str, dict[str, Served]] = {}
        for each in served:
            self._served.setdefault(each.name, {}).setdefault(each.system.name, each)

    def __iter__(self) -> Iterator[Served]:
        for systems in self._served.values():
            yield from systems.values()

    def find(self, name: str | None = None, system: str | None = None) -> Served:
        """A model by its name, or the first one."""
        names = self._served
        if name is not None and name not in names:
            raise unknown("model", name, names)
        systems = names[name] if name is not None else next(iter(names.values()))
        if system is not None and system not in systems:
            raise unknown("system", system, systems)
        return systems[system] if system is not None else next(iter(systems.values()))

    @property
    def main(self) -> list[Served]:
        """Every model under its own system."""
        return [next(iter(systems.values())) for systems in self._served.values()]

    def between(self, source: str, target: str) -> Served | None:
        """The model that translates from one language into another."""
        for each in self.main:
            codes = each.languages
            if codes.target == target and source in ("auto", codes.source):
                return each
        return None

    @property
    def alive(self) -> bool:
        """Whether there is an engine."""
        return all(each.translator.alive for each in self)

    async def start(self) -> None:
        if self._link is not None:
            await self._link.start()

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
        for each in self:
            each.server.close()


def load_models(
    paths: Sequence[Path | None],
    metrics: Metrics,
    streams: int = 32,
    device: str = "auto",
    dtype: str = "auto",
    compare: int = 0,
    system: str | None = None,
    options: dict[str, Any] | None = None,
) -> Models:
    """Load models, each under its own system or under another one.

    With `compare`, they are also loaded under wait-k and full, with so many streams each.
    """
    served: list[Served] = []
    names: set[str] = set()
    for path in paths or (None,):
        folder = find_model(path)
        loaded = load_model(folder, device, dtype, system, options)
        name = _name(folder)
        if name in names:
            raise WaitinfoError(f"{path}: another model is called {name}; rename the folder")
        names.add(name)
        served.append(serve_model(name, loaded, metrics, streams))
        if compare:
            served += _others(name, loaded, metrics, compare)
    return Models(served)


def serve_model(name: str, loaded: LoadedModel, metrics: Metrics, streams: int) -> Served:
    return served_by(name, Translator(loaded, streams, observer=EngineObserver(metrics, name)))


def served_by(name: str, translator: Translator) -> Served:
    vocabulary = translator.vocabulary
    both = vocabulary.source.model + vocabulary.target.model
    return Served(
        name, translator, AsyncTranslator(translator), hashlib.sha256(both).hexdigest()[:12]
    )


def remote_models(
    link: EngineLink,
    paths: Sequence[Path | None],
    metrics: Metrics,
    system: str | None = None,
    options: dict[str, Any] | None = None,
) -> Models:
    """The models that the process of an engine has loaded."""
    folders = {_name(folder): folder for folder in map(find_model, paths or (None,))}
    served = []
    for number, facts in enumerate(link.meet()):
        model = describe(folders[facts.name], system, options or {})
        if facts.system != model.system.name:
            model = dataclasses.replace(model, system=build_system(facts.system))
        observer = EngineObserver(metrics, facts.name)
        scheduler = RemoteScheduler(facts, partial(link.send, number), observer)
        link.schedulers.append(scheduler)
        served.append(served_by(facts.name, RemoteTranslator(model, scheduler)))
    return Models(served, link)


def _others(name: str, loaded: LoadedModel, metrics: Metrics, streams: int) -> list[Served]:
    """The same weights under other systems, where they can be used."""
    found = []
    for other in COMPARED:
        system = build_system(other)
        try:
            system.check_model(loaded.model.config)
        except WaitinfoError:
            continue
        if other != loaded.system.name:
            changed = dataclasses.replace(loaded, system=system)
            found.append(serve_model(name, changed, metrics, streams))
    return found


def _name(folder: Path) -> str:
    """A run folder keeps its model in best or last; its own name says more."""
    return folder.resolve().name
