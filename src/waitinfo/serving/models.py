"""The models that a server offers."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from waitinfo.errors import WaitinfoError, unknown
from waitinfo.importing.sources import find_source
from waitinfo.serving.engine import EngineLink, Meeting
from waitinfo.serving.metrics import EngineObserver, Metrics
from waitinfo.streaming.asynchronous import AsyncStream, AsyncTranslator
from waitinfo.streaming.host import Host
from waitinfo.streaming.remote import RemoteScheduler, RemoteTranslator
from waitinfo.streaming.replay import Replay
from waitinfo.streaming.translator import Translator
from waitinfo.systems import System, build_system
from waitinfo.text.languages import UNKNOWN, Languages, fitting_codes
from waitinfo.trained.saving import LoadedModel, load_model

MOST_DIRECTIONS = 100  # of one model of many languages
COMPARED = ("wait-k", "full")  # systems beside a model's own, to see them side by side


@dataclass(frozen=True)
class Served:
    """A model under one system: its translator and what clients are told about it."""

    name: str
    translator: Translator
    server: AsyncTranslator
    vocabulary: str  # fingerprint of the tokenizers
    direction: Languages = UNKNOWN  # of a model of many languages; its translator serves several

    @property
    def system(self) -> System:
        return self.translator.system

    @property
    def languages(self) -> Languages:
        known = self.translator.loaded.languages
        return known if self.direction == UNKNOWN else self.direction

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
        return self.server.stream(
            k, raw=True, segment=segmenter, history=0, replay=replay, lag=lag,
            languages=self.direction,
        )  # fmt: skip

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
    def engines(self) -> list[Served]:
        """One of all that share a translator."""
        return list({id(each.translator): each for each in self}.values())

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

    def targets(self, source: str | None) -> tuple[str, ...]:
        """Languages that there is a model for from this one."""
        known = (each.languages for each in self.main if each.languages.source == source)
        return tuple(dict.fromkeys(codes.target for codes in known if codes.target))

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
    offered: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> Models:
    """Load models, each under its own system or under another one.

    With `compare`, they are also loaded under wait-k and full, with the same number of streams
    each. A model of many languages is offered from each of some to each of others, as far as it
    has them; without these, all of them.
    """
    served: list[Served] = []
    names: set[str] = set()
    missed = [set(codes) for codes in offered]  # that no model has
    for path in paths or (None,):
        folder = find_source(path, dtype)
        loaded = load_model(folder, device, dtype, system, options)
        name = _name(folder)
        if name in names:
            raise WaitinfoError(f"{path}: another model is called {name}; rename the folder")
        names.add(name)
        directions = _directions(name, loaded, *offered) if loaded.language_tokens else []
        if directions:
            for codes in missed:
                codes -= {code for code in codes if fitting_codes(code, loaded.language_tokens)}
            loaded = dataclasses.replace(loaded, languages=directions[0])
        found = [serve_model(name, loaded, metrics, streams)]
        if compare:
            found += _others(name, loaded, metrics, compare)
        served += [one for each in found for one in _each_way(each, directions)]
    if any(offered) and all(each.direction == UNKNOWN for each in served):
        raise WaitinfoError("--from, --to: for a model of many languages; none is served")
    for option, codes in zip(("--from", "--to"), missed, strict=True):
        if codes:
            raise WaitinfoError(f"{option} {','.join(sorted(codes))}: no model served has it")
    return Models(served)


def _directions(
    name: str, loaded: LoadedModel, sources: Sequence[str], targets: Sequence[str]
) -> list[Languages]:
    """Between which languages a model of many is offered: those of the given that it has."""
    known = loaded.language_tokens
    sides = [
        dict.fromkeys(code for wanted in side for code in fitting_codes(wanted, known))
        if side
        else known
        for side in (sources, targets)
    ]
    found = [Languages(a, b) for a, b in product(*sides) if a != b]
    if not found:
        given = [f"{o} {','.join(c)}" for o, c in (("--from", sources), ("--to", targets)) if c]
        has = ", ".join(sorted(known)) if len(known) <= 20 else f"{len(known)} others"
        raise WaitinfoError(
            f"model {name}: has no direction of {' '.join(given)}; its languages are {has}"
        )
    if len(found) > MOST_DIRECTIONS:
        raise WaitinfoError(
            f"model {name}: {len(found):,} directions between its languages; choose up to "
            f"{MOST_DIRECTIONS}, such as --from de,en --to pt"
        )
    return found


def _each_way(served: Served, directions: Sequence[Languages]) -> list[Served]:
    """The same model once for every direction."""
    if not directions:
        return [served]
    return [
        dataclasses.replace(served, name=f"{served.name}.{d.source}-{d.target}", direction=d)
        for d in directions
    ]


def serve_model(name: str, loaded: LoadedModel, metrics: Metrics, streams: int) -> Served:
    return served_by(name, Translator(loaded, streams, observer=EngineObserver(metrics, name)))


def served_by(name: str, translator: Translator) -> Served:
    vocabulary = translator.vocabulary
    both = vocabulary.source.model + vocabulary.target.model
    return Served(
        name, translator, AsyncTranslator(translator), hashlib.sha256(both).hexdigest()[:12]
    )


def remote_models(link: EngineLink, metrics: Metrics) -> Models:
    """The models that the process of an engine has loaded."""
    meeting = link.meet()
    engines: list[Served] = []
    for number, (facts, loaded) in enumerate(zip(meeting.facts, meeting.loaded, strict=True)):
        observer = EngineObserver(metrics, facts.name)
        scheduler = RemoteScheduler(facts, partial(link.send, number), observer)
        link.schedulers.append(scheduler)
        engines.append(served_by(facts.name, RemoteTranslator(loaded, scheduler)))
    return Models(
        [
            dataclasses.replace(engines[number], name=name, direction=direction)
            for name, direction, number in meeting.offers
        ],
        link,
    )


def meet(models: Models) -> Meeting:
    """What another process has to know of these models."""
    engines = models.engines
    numbers = {id(each.translator): number for number, each in enumerate(engines)}
    return Meeting(
        [Host.facts(each.name, each.translator) for each in engines],
        [each.translator.loaded.without_weights() for each in engines],
        [(each.name, each.direction, numbers[id(each.translator)]) for each in models],
    )


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
