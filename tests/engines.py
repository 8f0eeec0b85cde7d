"""Engines with small random models of every system, for tests of whatever runs them."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from tests.conftest import tiny_config
from waitinfo.model import Transformer
from waitinfo.streaming.decoder import Record
from waitinfo.streaming.engine import Engine
from waitinfo.streaming.recorded import RecordedBackend, recordable
from waitinfo.systems import SYSTEMS, Dial, System, build_system
from waitinfo.systems.networks.experts import ExpertAttention
from waitinfo.systems.networks.monotonic_heads import MonotonicAttention
from waitinfo.systems.policy import Policy
from waitinfo.systems.veto import NUMBERS, Head, Veto
from waitinfo.text.special import EOS

EngineKind = Callable[..., Engine]
# Systems with a training of their own; the others are trained as multipath is.
TRAINED = [name for name in SYSTEMS if not issubclass(SYSTEMS[name], Policy)]


def recorded_engine(*given: Any, reserved: int = 64, **options: Any) -> Engine:
    """An engine with the backend for GPUs, which runs unrecorded without one."""
    backend = partial(RecordedBackend, reserved=reserved)
    return Engine(*given, backend=backend, **options)


def sentences(count: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randint(4, 39) for _ in range(draw.randint(1, 12))] for _ in range(count)]


def restless(model):
    """Make the output of an untrained model varied: sharp attention, early and late ends."""
    with torch.no_grad():
        model.target_embedding.weight[EOS] *= 2
        for layer in model.decoder_layers:
            layer.attention.project.weight.mul_(5)
            layer.cross.queries.weight.mul_(12)
            layer.cross.out.weight.mul_(16)
            layer.feed_forward.out.weight.mul_(16)
            if isinstance(layer.cross, ExpertAttention):  # its untrained gate is zero
                layer.cross.gate.weight.normal_(std=4)
        if isinstance(model.decoder_layers[0].cross, MonotonicAttention):
            # Heads stop early, and move because no token follows itself.
            model.decoder_norm.weight.neg_()
            for layer in model.decoder_layers:
                layer.cross.energy_bias.fill_(3)
                layer.cross.out.weight.div_(4)
    return model


class RejectOddTokens(System):
    """Decides after computing the token, like adaptive policies: rejects odd tokens."""

    name = "reject-odd-tokens"

    def ready(self, state):
        return state.read > state.written // 2

    def accept(self, state, step):
        return (step.tokens % 2 == 0).cpu()


class Inquirer(System):
    """Asks for all that a policy may ask for in every engine, and remembers."""

    name = "inquirer"
    dial = Dial("k", 1.0, minimum=0.0, whole=False)
    asks = ("source", "target", "logits", "states", "attention", "before")
    memory = (0.5, -1.0)  # half of the mean lag, the newest most; the token written last

    def ready(self, state):
        lag, odd = state.read - state.written, (state.source % 2).sum(-1) % 2
        same = (state.target == state.memory[:, 1:].long()).sum(-1)
        return state.complete | (lag >= 1.6 * state.memory[:, 0] + odd + (same > 1))

    def earlier(self, state):
        return state.read - 1 - (state.written % 2)

    def accept(self, state, step):
        looks_back = step.attention.mean((1, 2)).argmax(-1) < state.read - 1
        sure = step.probability * state.k > 0.1
        return (step.tokens == step.before) | (looks_back & sure)

    def wait(self, state, step):
        return 1 + (step.states[:, 0] > 0).long()

    def remember(self, state, step):
        lag, before = (state.read - state.written).double(), state.memory[:, 0]
        return torch.stack([(lag + 2 * before) / 4, step.tokens.double()], -1)


def random_head(seed: int = 0, width: int = 32) -> Head:
    """One that writes about half of the tokens at a risk of 0.5."""
    draw = np.random.default_rng(seed)
    shapes = (width, 8), (NUMBERS, 8), (8,), (8,), (1,)
    scales = 1.0, 0.1, 0.5, 0.5, 0.1
    sizes = zip(scales, shapes, strict=True)
    parts = [draw.normal(scale=c, size=shape).astype(np.float16) for c, shape in sizes]
    return Head(*(part.astype(np.float64) for part in parts))  # rounded as it is stored


class Judge(Veto):
    """A veto with a head."""

    name = "judge"
    asks = ("two_best", "states")

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        super().__init__({"risk": 0.4, "keep": 0.5, **(options or {})})
        self.head = random_head()


OWN: dict[str, type[System]] = {kind.name: kind for kind in (RejectOddTokens, Inquirer, Judge)}
NAMES = [*SYSTEMS, *OWN]


def build(name: str, vocabulary: int = 40, **changes: object) -> tuple[Transformer, System]:
    system = OWN[name]() if name in OWN else build_system(name)
    torch.manual_seed(3)
    sizes = {"source_vocabulary": vocabulary, "target_vocabulary": vocabulary}
    model = Transformer(tiny_config(**sizes, **system.model_defaults, **changes)).double().eval()
    with torch.no_grad():
        for info in (model.source_info, model.target_info):
            if info is not None:
                info.quantizer.out.weight.mul_(6)
    return restless(model), system


MODELS = {name: build(name) for name in NAMES}
ENGINES = [(name, Engine) for name in NAMES] + [
    (name, recorded_engine) for name in NAMES if recordable(*MODELS[name])
]


def trickle(
    name: str,
    sources: list[list[int]],
    dials: list[float],
    slots: int,
    seed: int,
    made: tuple[Transformer, System] | None = None,
    kind: EngineKind = Engine,
) -> list[Record]:
    """Feed all sources to one engine, in random pieces at random times."""
    model, system = made or MODELS[name]
    engine = kind(model, system, slots=slots, capacity=max(map(len, sources)) + 2)
    draw = random.Random(seed)
    records = [Record() for _ in sources]
    waiting = list(range(len(sources)))
    draw.shuffle(waiting)
    running: dict[int, int] = {}  # slot: source
    given = dict.fromkeys(range(len(sources)), 0)
    while waiting or running:
        while waiting and engine.free and draw.random() < 0.6:
            index = waiting.pop()
            running[engine.open(dials[index])] = index
        for slot, index in running.items():
            left = len(sources[index]) - given[index]
            if draw.random() < 0.5 and not engine.fed[slot]:
                count = draw.randint(0, left)
                piece = sources[index][given[index] : given[index] + count]
                given[index] += count
                engine.feed(slot, piece, complete=given[index] == len(sources[index]))
        for event in engine.advance() if draw.random() < 0.5 else engine.run():
            records[running[event.slot]].add(event)
            if event.last:
                engine.close(event.slot)
                del running[event.slot]
    return records


def outline(events: list) -> list[tuple]:
    return [(e.slot, e.kind, e.token, e.read, e.written, e.last, e.cut) for e in events]


def by_slot(events: list) -> list[tuple]:
    return sorted(outline(events), key=lambda event: event[0])
