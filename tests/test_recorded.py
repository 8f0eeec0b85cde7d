"""The backend for GPUs, besides what `test_engine` asks of all: blocks, bounds and kernels."""

from __future__ import annotations

import copy
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import tiny_config
from tests.engines import MODELS, build, by_slot, outline, recorded_engine, sentences, trickle
from tests.oracle import dial_near, literal_repeats
from tests.streams import record, some_text, toy_model
from waitinfo.errors import WaitinfoError
from waitinfo.model import Transformer
from waitinfo.streaming.engine import WRITE, Engine
from waitinfo.streaming.engine.loops import RepeatCounts
from waitinfo.streaming.recorded import RecordedBackend, recordable
from waitinfo.streaming.recorded.backend import ROWS
from waitinfo.streaming.recorded.memory import BLOCK, SCRATCH, BlockTable
from waitinfo.streaming.recorded.steps import Steps
from waitinfo.streaming.scheduler import Scheduler
from waitinfo.streaming.translator import Translator
from waitinfo.systems import System, build_system

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=CUDA)]


@pytest.mark.parametrize("ending", ["guard", "allow"])
def test_both_engines_report_the_same_events(ending: str) -> None:
    """Word by word, with and without info, and where refused tokens are tried again."""
    for name in ("wait-info", "adaptive-wait-k", "wait-k"):
        model, system = MODELS[name]
        engines = [kind(model, system, 3, 20, ending) for kind in (Engine, recorded_engine)]
        for engine in engines * 3:
            engine.open(0.4 if name == "adaptive-wait-k" else 2.0)
        for word, slot in [(5, 0), (6, 1), (7, 0), (8, 0), (9, 2), (10, 1), (11, 0), (12, 2)]:
            for engine in engines:
                engine.feed(slot, [word])
            plain, recorded = (engine.run() for engine in engines)
            assert by_slot(plain) == by_slot(recorded)
            assert [e.info for e in plain] == pytest.approx([e.info for e in recorded])
            assert engines[0].runnable == engines[1].runnable == []
        for engine in engines:
            for slot in range(3):
                engine.feed(slot, [], complete=True)
        plain, recorded = (engine.run() for engine in engines)
        assert by_slot(plain) == by_slot(recorded)
        for slot in range(3):
            a, b = ([e for e in found if e.slot == slot] for found in (plain, recorded))
            assert [e.source_info for e in a] == pytest.approx([e.source_info for e in b])
            assert [e.target_info for e in a] == pytest.approx([e.target_info for e in b])


def test_systems_with_shapes_that_depend_on_values_are_refused() -> None:
    for name in ("gsimt", "full"):
        model, system = MODELS[name]
        assert not recordable(model, system)
        with pytest.raises(WaitinfoError, match="cannot be recorded"):
            recorded_engine(model, system)


def test_memory_follows_what_is_used() -> None:
    """Blocks go back when a sentence ends, and are added when there are too few."""
    model, system = MODELS["wait-info"]
    engine = recorded_engine(model, system, slots=3, capacity=200, reserved=16)
    small = engine.bytes_per_slot
    assert small < Engine(model, system, slots=3, capacity=200).bytes_per_slot / 5
    draw = random.Random(4)
    source = [draw.randint(4, 39) for _ in range(90)]
    expected = Engine(model, system, slots=1, capacity=200)
    found = []
    for one in (expected, engine):
        one.feed(one.open(2.0), source, complete=True)
        found.append(outline(one.run()))
    assert found[0] == found[1]
    assert engine.bytes_per_slot > small
    blocks = engine.backend.source.table.owned[0]
    assert blocks == -(-91 // BLOCK)
    engine.reset(0, 2.0)
    assert engine.backend.source.table.owned[0] == engine.backend.target.table.owned[0] == 0


def test_no_block_has_two_owners() -> None:
    table = BlockTable(slots=5, positions=100, blocks=9, device=torch.device("cpu"))
    draw = random.Random(1)
    for _ in range(300):
        slots = np.array(sorted(draw.sample(range(5), draw.randint(1, 5))))
        before = table.owned[slots]
        more = np.array([draw.randint(0, table.width - owned) for owned in before.tolist()])
        if more.sum() > table.free:
            table.add(int(more.sum()) - table.free)
        if more.any():
            table.assign(slots, more)
        assert (table.owned[slots] == before + more).all()
        if draw.random() < 0.5:
            table.release(draw.randrange(5))
        owned = [block for slot in range(5) for block in table.owned_by(slot)]
        assert len(owned) == len(set(owned)) and SCRATCH not in owned
        assert sorted([*owned, *table._free]) == list(range(1, table.blocks))
    for slot in range(5):
        behind = table.device[slot, int(table.owned[slot]) :]
        assert (behind == SCRATCH).all()


def test_more_rows_than_a_launch_takes(monkeypatch) -> None:
    """Rounds are split, by rows and by tokens to encode."""
    sources = sentences(30, seed=8)
    expected = trickle("wait-k", sources, [2.0] * 30, 9, 3)
    monkeypatch.setattr("waitinfo.streaming.recorded.backend.ROWS", (1, 4))
    records = trickle("wait-k", sources, [2.0] * 30, 9, 3, kind=recorded_engine)
    for a, b in zip(expected, records, strict=True):
        assert [(e.token, e.read) for e in a.writes] == [(e.token, e.read) for e in b.writes]
    assert ROWS[-1] > 4


def test_a_long_wait_takes_several_windows() -> None:
    model, system = MODELS["wait-k"]
    source = [4 + i % 30 for i in range(150)]
    found = []
    for kind in (Engine, recorded_engine):
        engine = kind(model, system, slots=1, capacity=160)
        engine.feed(engine.open(120.0), source, complete=True)
        found.append(outline(engine.run()))
    assert found[0] == found[1]


@pytest.mark.parametrize("side", ["source", "target"])
def test_numbers_that_are_not_finite_stay_in_their_stream(side: str) -> None:
    model, system = MODELS["wait-info"]
    expected = _translate(model, system, [9, 10, 11])
    engine = recorded_engine(model, system, slots=2, capacity=20, reserved=16)
    first, second = engine.open(1.0), engine.open(1.0)
    engine.feed(first, [5, 6, 7, 8])
    assert any(event.kind == WRITE for event in engine.run())
    half = getattr(engine.backend, side)
    half.all[-1].values[half.table.owned_by(first)] = torch.nan
    engine.feed(first, [9, 10], complete=True)
    engine.feed(second, [9, 10, 11], complete=True)
    events = engine.run()
    assert engine.failed == {first} and not engine.can_go_on(first)
    assert [(e.slot, e.kind, e.token) for e in events if e.kind == WRITE] == [
        (second, e.kind, e.token) for e in expected if e.kind == WRITE
    ]
    engine.reset(first, 1.0)
    engine.feed(first, [9, 10, 11], complete=True)
    again = engine.run()
    assert [(e.kind, e.token) for e in again] == [(e.kind, e.token) for e in expected]
    assert not engine.failed


def test_an_error_loses_no_token(monkeypatch) -> None:
    """Also one in the middle of the steps of a launch."""
    model, system = MODELS["adaptive-wait-k"]
    expected = _translate(model, system, [5, 6, 7, 8, 9, 10])
    engine = recorded_engine(model, system, slots=1, capacity=20)
    engine.feed(engine.open(1.0), [5, 6, 7, 8, 9, 10], complete=True)
    calls, accept = iter(range(1000)), type(system).accept

    def flaky(self, state, step):
        if next(calls) % 3:
            raise RuntimeError("flaky")
        return accept(self, state, step)

    monkeypatch.setattr(type(system), "accept", flaky)
    events, errors = [], 0
    while engine.busy:
        try:
            events += engine.advance()
        except RuntimeError:
            errors += 1
    assert errors and outline(events) == outline(expected)


def test_streams_report_the_same_with_both_engines() -> None:
    """Through translator, scheduler and sessions: several sentences, words of several tokens."""
    loaded = toy_model("wait-info")
    draw = random.Random(9)
    texts = [some_text(draw, 25).split() for _ in range(4)]
    found = []
    for kind in (Engine, recorded_engine):
        translator = Translator(loaded, 1)
        translator._scheduler = Scheduler(kind(loaded.model, loaded.system, 4, 40))
        streams = [translator.stream(2.0, segment="punctuation") for _ in texts]
        for words in zip(*texts, strict=True):
            translator.push_many(dict(zip(streams, words, strict=True)))
        translator.finish_many(streams)
        found.append([record(stream.trace) for stream in streams])
        assert translator.open_streams == 0
    assert found[0] == found[1]
    assert max(event[-1] for event in found[0][0]) > 2  # sentences


@pytest.mark.parametrize("name", ["wait-info", "adaptive-wait-k"])
def test_forced_tokens_are_written_first(name: str) -> None:
    """Some at other places than the policy's, and followed by tokens of the model's own choice."""
    model, system = MODELS[name]
    path = [(9, 1), (12, 3), (20, 3), (7, 4)]
    found = []
    for kind in (Engine, recorded_engine):
        engine = kind(model, system, slots=2, capacity=20)
        forced, free = engine.open(1.0), engine.open(1.0)
        engine.force(forced, path)
        events = []
        for word in (5, 6, 7, 8, 9):
            for slot in (forced, free):
                engine.feed(slot, [word])
            events += engine.run()
        for slot in (forced, free):
            engine.feed(slot, [], complete=True)
        events += engine.run()
        found.append(by_slot(events))
    assert found[0] == found[1]
    writes = [(e[2], e[3]) for e in found[1] if e[0] == forced and e[1] == WRITE]
    assert writes[: len(path)] == path and len(writes) > len(path)


def _translate(model, system, source: list[int]) -> list:
    engine = Engine(model, system, slots=1, capacity=20)
    engine.feed(engine.open(1.0), source, complete=True)
    return engine.run()


def moved(name: str, device: str, **changes: object) -> tuple[Transformer, System]:
    """A model on a device, in float32 on a GPU. Heads of 16 numbers are those of the kernels."""
    if device == "cpu":
        return MODELS[name]
    model, system = build(name, heads=2, **changes)
    return model.float().cuda(), system


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ending", ["guard", "allow"])
def test_loops_are_cut_alike(ending: str, device: str) -> None:
    """Plain random weights loop. Some sources repeat words, so that their translation may."""
    system = build_system("wait-info")
    torch.manual_seed(1)
    model = Transformer(tiny_config(**system.model_defaults, heads=2)).double().eval()
    if device == "cuda":
        model = model.float().cuda()
    draw = random.Random(2)
    sources = [[draw.randint(4, 8) for _ in range(24)] for _ in range(6)] + [[5, 6, 7] * 8]
    found = []
    for kind in (Engine, recorded_engine):
        engine = kind(model, system, slots=len(sources), capacity=40, ending=ending)
        for slot in [engine.open(1.0) for _ in sources]:
            engine.set_patience(slot, 2 if slot % 2 else 0)
        events = []
        for start in range(0, 24, 3):
            for slot, source in enumerate(sources):
                engine.feed(slot, source[start : start + 3], complete=start == 21)
            events += engine.run()
        found.append(by_slot(events))
    assert found[0] == found[1]
    assert {event[-1] for event in found[1]} >= {None, "loop"}


@given(st.lists(st.integers(4, 6), max_size=70), st.integers(0, 1000))
def test_repeats_are_counted_as_tokens_arrive(source: list[int], seed: int) -> None:
    """In pieces of any lengths, beside another source, whose slot is used again."""
    draw = random.Random(seed)
    counts = RepeatCounts(slots=2, capacity=80)
    sources = np.zeros((2, 80), np.int64)
    sources[1, : len(source)], sources[0, :40] = source, [5] * 40
    ends = np.zeros(2, np.int64)
    while (ends < (40, len(source))).any():
        ends = np.minimum(ends + [draw.randint(0, 9) for _ in ends], (40, len(source)))
        counts.extend(sources, np.arange(2), ends)
    for end in {0, len(source), *(draw.randint(0, len(source)) for _ in range(4))}:
        assert counts.most[1, end] == literal_repeats(source[:end])
    counts.reset(0)
    counts.extend(sources, np.array([0]), np.array([4]))
    assert counts.most[0, :5].tolist() == [1, 1, 2, 3, 4]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [n for n in MODELS if recordable(*MODELS[n])])
def test_slots_are_shifted_alike(name: str, device: str) -> None:
    """Several times, at random places, while other slots go on."""
    model, system = moved(name, device)
    draw = random.Random(3)
    engines = [kind(model, system, 3, 60, round_tokens=8) for kind in (Engine, recorded_engine)]
    k = dial_near(system, 2.0)
    for engine in engines * 3:
        engine.open(k)
    for turn in range(8):
        for slot in range(3):
            words = [draw.randint(4, 39) for _ in range(draw.randint(1, 6))]
            for engine in engines:
                engine.feed(slot, words)
        plain, recorded = (engine.run() for engine in engines)
        assert by_slot(plain) == by_slot(recorded)
        slot = turn % 3
        seen, written, _ = engines[0].state.history(slot)
        assert engines[1].state.history(slot)[:2] == (seen, written)
        source, target = draw.randint(0, len(seen) - 1), draw.randint(0, len(written))
        for engine in engines:
            engine.shift(slot, k, source, target)
            engine.set_patience(slot, turn % 4)
            engine.set_dial((slot + 1) % 3, dial_near(system, 1.0 + turn % 3))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("segment", ["none:12", "auto", "pause:5"])
def test_windows_move_alike(segment: str, device: str) -> None:
    """Text without sentence ends, through translator, scheduler and sessions."""
    loaded = toy_model("wait-info")
    model = loaded.model if device == "cpu" else copy.deepcopy(loaded.model).float().cuda()
    loaded = replace(loaded, model=model)
    draw = random.Random(5)
    texts = [some_text(draw, 60).replace(".", "").split() for _ in range(3)]
    found = []
    for kind in (Engine, recorded_engine):
        translator = Translator(loaded, 1, recorded=False)
        translator._scheduler = Scheduler(kind(loaded.model, loaded.system, 3, 20))
        streams = [translator.stream(2.0, segment=segment, history=None) for _ in texts]
        for words in zip(*texts, strict=True):
            translator.push_many(dict(zip(streams, words, strict=True)))
        translator.finish_many(streams)
        found.append([record(stream.trace) for stream in streams])
    assert found[0] == found[1]
    assert max(event[-1] for event in found[1][0]) > 1, "a window has moved"


@pytest.mark.parametrize("device", DEVICES)
def test_a_dial_that_is_turned_after_every_token(device: str) -> None:
    """As by a controller of the lag: no token is written with an older dial."""
    model, system = moved("wait-info", device)
    found = []
    for kind in (Engine, recorded_engine):
        engine = kind(model, system, slots=1, capacity=60)
        slot = engine.open(1.0)
        engine.steer(slot, True)
        engine.feed(slot, [4 + n * 7 % 30 for n in range(40)], complete=True)
        events = []
        while engine.busy:
            for event in engine.advance():
                events.append(event)
                if event.kind == WRITE:
                    engine.set_dial(slot, 1.0 + event.written % 5)
        found.append(outline(events))
    assert found[0] == found[1]


@CUDA
def test_on_a_gpu_the_default_is_recorded_and_fused() -> None:
    loaded = toy_model("wait-info")
    made = Transformer(replace(loaded.model.config, heads=2)).eval().cuda()
    engine = Translator(replace(loaded, model=made), streams=2)._scheduler.engine
    assert isinstance(engine.backend, RecordedBackend) and type(engine.backend.steps) is not Steps
    plain = Translator(replace(loaded, model=made), streams=2, recorded=False)._scheduler.engine
    assert not isinstance(plain.backend, RecordedBackend)


@CUDA
@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("name", [n for n in MODELS if recordable(*MODELS[n])])
def test_on_a_gpu_recorded_steps_write_what_the_plain_engine_writes(name: str, heads: int) -> None:
    """In float32. Heads of 16 numbers attend to blocks in place, narrower ones gather them."""
    model, system = build(name, heads=heads)
    made = model.float().cuda(), system
    sources = sentences(12, seed=6)
    dials = [0.5 if name in ("mma", "adaptive-wait-k") else 2.0] * len(sources)
    plain = trickle(name, sources, dials, 4, 5, made=made)
    recorded = trickle(name, sources, dials, 4, 5, made=made, kind=recorded_engine)
    for a, b in zip(plain, recorded, strict=True):
        assert [(e.token, e.read) for e in a.writes] == [(e.token, e.read) for e in b.writes]


@CUDA
@pytest.mark.parametrize(("name", "fits"), [("wait-info", True), ("reject-odd-tokens", False)])
def test_on_a_gpu_steps_are_recorded_or_fall_back(name: str, fits: bool) -> None:
    """A policy that copies values to the host cannot be recorded; it works all the same."""
    model, system = build(name, heads=2)
    engine = recorded_engine(model.float().cuda(), system, slots=4, capacity=20)
    engine.feed(engine.open(2.0), [5, 6, 7, 8], complete=True)
    assert any(event.kind == WRITE for event in engine.run())
    assert [key[0] for key, graph in engine.backend.recorder.graphs.items() if graph is None] == (
        []
        if fits
        else ["write"] * (len(engine.backend.recorder.graphs) - engine.backend.recorder.recorded)
    )
    assert engine.backend.recorder.recorded > 0
