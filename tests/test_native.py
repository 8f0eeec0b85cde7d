"""Compiled kernels against NumPy: the same bits, on every kind of CPU."""

from __future__ import annotations

import os
import random
import shutil
import signal
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.integers import FOUND, NEEDS_KERNELS, integers
from waitinfo.model import IntegerModel, ModelConfig, Transformer
from waitinfo.model.integers import matrix as products
from waitinfo.model.integers import model as networks
from waitinfo.model.integers.info import consistency
from waitinfo.model.native import KINDS, SWITCH, NativeMatrix, find_kernels, library
from waitinfo.model.native.library import Library, divide, run
from waitinfo.model.native.weights import CHUNK, weight_memory
from waitinfo.streaming.engine import Engine
from waitinfo.streaming.engine.compiled import NativeBackend
from waitinfo.systems import build_system
from waitinfo.text.special import BOS

pytestmark = NEEDS_KERNELS


@pytest.fixture(params=KINDS)
def code(request: pytest.FixtureRequest) -> Library:
    if request.param not in Library(FOUND[-1]).kinds:  # raises if it was built from other sources
        pytest.skip(f"this CPU has no {request.param}")
    return Library(FOUND[-1], request.param)


@pytest.mark.parametrize(
    ("outputs", "inputs", "rows"),
    [(5, 3, 1), (130, 2048, 1), (70, 18, 7), (130, 2048, 13), (200, 517, 75)],
)
def test_products(code: Library, outputs: int, inputs: int, rows: int) -> None:
    """Against int64, with sizes that fill no block and no vector."""
    draw = np.random.default_rng(outputs)
    weight = draw.integers(-127, 128, (outputs, inputs)).astype(np.int8)
    factor = draw.random(outputs).astype(np.float32)
    bias, x = normal(draw, outputs), normal(draw, rows, inputs)
    x[0] = 0
    largest = np.maximum(np.abs(x).max(1, keepdims=True), np.float32(1e-30))
    whole = (x * (np.float32(127) / largest)).round()
    sums = (whole.astype(int) @ weight.astype(int).T).astype(np.float32)
    found = NativeMatrix(code, weight, factor, None)(whole, whole=True)
    assert np.array_equal(found, sums * factor)
    turned = np.asfortranarray(weight)  # the same numbers in another order in memory
    for matrix in (weight, turned):
        found = NativeMatrix(code, matrix, factor, bias)(x)
        assert np.array_equal(found, sums * factor * largest + bias)


def normal(draw: np.random.Generator, *shape: int) -> np.ndarray:
    return draw.standard_normal(shape).astype(np.float32)


def test_the_largest_sums(code: Library) -> None:
    weight = np.full((64, 2048), -127, np.int8)
    weight[1] = 127
    x = np.full((3, 2048), 127, np.float32)
    found = NativeMatrix(code, weight, np.ones(64, np.float32), None)(x, whole=True)
    assert found[0, 0] == -2048 * 127 * 127 and found[2, 1] == 2048 * 127 * 127


@pytest.mark.parametrize("count", [1, 63, 64, 65, 200])
def test_the_best_output(code: Library, count: int) -> None:
    draw = np.random.default_rng(count)
    weight = draw.integers(-127, 128, (count, 32)).astype(np.int8)
    matrix = NativeMatrix(code, weight, draw.random(count).astype(np.float32), None)
    x = normal(draw, 9, 32)
    scores = matrix(x)
    never = np.array([count // 2], np.int32)
    if count > 1:
        scores[:, never] = -np.inf
    found = matrix.best(x, never if count > 1 else never[:0], True, True)
    best, value, everything, two = found
    assert (best == scores.argmax(1)).all()
    assert (value == scores.max(1)).all()
    assert everything is not None and (everything == scores).all()
    powers = np.sort(np.exp(scores.astype(np.float64) - value[:, None]), 1)[:, ::-1]
    shares = np.pad(powers, ((0, 0), (0, 1)))[:, :2] / powers.sum(1, keepdims=True)
    assert np.allclose(two, shares, rtol=1e-6, atol=1e-80)


CONFIGS = [
    {"norm": "post", "info": "attention"},
    {"norm": "pre", "info": "attention", "info_self_attention": False},
    {"norm": "pre", "info": "none", "width": 192, "heads": 1},
    {"norm": "post", "info": "frequency", "info_cross_attention": False},
    {"norm": "post", "info": "attention", "prepared": True},
    {"norm": "pre", "info": "none", "width": 30, "heads": 2, "prepared": True},
    {"norm": "post", "info": "attention", "decoder": "ssru", "output_bias": True},
    {"norm": "pre", "info": "none", "decoder": "ssru", "activation": "swish"},
]


@pytest.fixture
def both(
    code: Library, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[IntegerModel, IntegerModel]]:
    """A model in compiled code, and the same one computed by NumPy."""
    torch.manual_seed(3)
    shape = {"width": 64, "ffn": 96, "heads": 2, "encoder_layers": 2, "decoder_layers": 2}
    changes = dict(request.param)
    prepared, damaged = changes.pop("prepared", False), changes.pop("damaged", "")
    config = ModelConfig(90, 90, **(shape | changes))
    made = Transformer(config).eval()
    for parameter in made.parameters():  # biases and norms that do something
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    if damaged:
        made.state_dict()[damaged].fill_(torch.nan)
    found = []
    for kernels in (code, None):
        for module in (products, networks):
            monkeypatch.setattr(module, "find_kernels", lambda kernels=kernels: kernels)
        found.append(integers(made, prepared))
    assert found[0].native is not None and found[1].native is None
    yield found[0], found[1]


@pytest.mark.parametrize("both", CONFIGS, indirect=True, ids=str)
def test_passes_equal_those_of_numpy(both: tuple[IntegerModel, IntegerModel]) -> None:
    """Sources of rows in pieces, then targets token by token: every state, bit for bit.

    Of two rows, and of so many that the kernels compute them in two halves.
    """
    model, plain = both
    kernels, config = model.native, model.config
    assert kernels is not None
    draw = np.random.default_rng(1)
    sources, targets = draw.integers(4, 90, (2, 21)), draw.integers(4, 90, (2, 19))
    targets[:, 0] = BOS
    visible = np.tile(np.arange(3, 22), (2, 1))
    encoded = plain.encode(plain.embed_source(sources), np.array([21, 21]))
    embedded = plain.embed_target(targets)
    right = plain.decode(embedded, encoded, visible)
    source, target = model.embed_source(sources), model.embed_target(targets)
    assert np.array_equal(target.x, embedded.x)
    for some in ([4, 1], draw.permutation(70)[:54]):
        rows = np.array(some, np.int32)
        which = np.arange(len(rows)) % 2
        caches, memories = (kernels.new_caches(2, 70, 30) for _ in range(2))
        written = kernels.new_target_caches(70, 30)
        for start, end in ((0, 1), (1, 7), (7, 21)):
            at = np.tile(np.arange(start, end, dtype=np.int32), len(rows))
            info = None
            if config.info_self_attention and source.info is not None:
                info = source.info[which, start:end].ravel()
            x = source.x[which, start:end].reshape(len(at), -1)
            kernels.encode(x, np.repeat(rows, end - start), at, info, caches, memories)
        for i in range(19):
            seen = visible[which, i].astype(np.int32)
            info = bias = None
            if target.info is not None:
                if config.info_self_attention:
                    info = target.info[which, i]
                if config.info_cross_attention:
                    bias = consistency(source.info[which], target.info[which, i : i + 1])
                    bias = bias.reshape(source.info[which].shape)
            x = target.x[which, i]
            at = np.full(len(rows), i, np.int32)
            kernels.decode(x, rows, at, seen, info, bias, written, memories)
            assert np.array_equal(x, right.states[which, i])
    logits = plain.logits(right.states[:, -1])
    assert (kernels.best(x, True)[2][:, 4:] == logits[which, 4:]).all()


@pytest.mark.parametrize("both", CONFIGS[:1], indirect=True, ids=str)
def test_cross_attention_to_long_sources_equals_that_of_numpy(
    both: tuple[IntegerModel, IntegerModel],
) -> None:
    """The consistency of info counts at all positions, also beyond 255, the most of a byte."""
    model, plain = both
    kernels = model.native
    assert kernels is not None and model.config.info_cross_attention
    draw = np.random.default_rng(2)
    visible = np.array([[255, 256, 259, 272, 530]])
    sources, targets = draw.integers(4, 90, (1, 530)), draw.integers(4, 90, (1, 5))
    encoded = plain.encode(plain.embed_source(sources), np.array([530]))
    right = plain.decode(plain.embed_target(targets), encoded, visible)
    source, target = model.embed_source(sources), model.embed_target(targets)
    caches, memories = (kernels.new_caches(2, 1, 530) for _ in range(2))
    written, at = kernels.new_target_caches(1, 8), np.arange(530, dtype=np.int32)
    assert source.info is not None and target.info is not None
    rows = np.zeros(1, np.int32)
    kernels.encode(source.x[0], np.repeat(rows, 530), at, source.info[0], caches, memories)
    for i in range(5):
        bias = consistency(source.info, target.info[:, i : i + 1]).reshape(1, 530)
        step = np.full(1, i, np.int32), visible[:, i].astype(np.int32)
        kernels.decode(target.x[:, i], rows, *step, target.info[:, i], bias, written, memories)
        assert np.array_equal(target.x[:, i], right.states[:, i]), visible[0, i]


@pytest.mark.parametrize("both", CONFIGS, indirect=True, ids=str)
def test_embeddings_equal_those_of_numpy(both: tuple[IntegerModel, IntegerModel]) -> None:
    """Every token at many positions, in one pass and alone."""
    model, plain = both
    assert model.native_source is not None and model.native_target is not None
    table = model.position_table(60)
    tokens, at = np.tile(np.arange(90), (5, 1)), np.random.default_rng(0).integers(0, 60, (5, 90))
    for name in ("embed_source", "embed_target"):
        ours, theirs = (getattr(m, name)(tokens, at, table) for m in (model, plain))
        alone = getattr(model, name)(tokens[3:, 7:8], at[3:, 7:8], table)
        assert np.array_equal(ours.x, theirs.x) and np.array_equal(alone.x, ours.x[3:, 7:8])
        assert (ours.info is None) is (model.config.info == "none") is (theirs.info is None)
        if ours.info is not None:
            assert np.array_equal(ours.info, theirs.info)
            assert np.array_equal(alone.info, ours.info[3:, 7:8])
            assert (ours.info[:, BOS] == 1).all()


def test_rows_are_divided_among_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "thread_count", lambda: 3)
    assert divide(7) == [slice(0, 7)]
    assert divide(9) == [slice(0, 3), slice(3, 6), slice(6, 9)]
    rows = np.array([5, 5, 5, 5, 5, 2, 2, 2, 7, 7], np.int32)  # a row is one thread's
    assert divide(10, rows) == [slice(0, 5), slice(5, 8), slice(8, 10)]
    assert divide(10, np.zeros(10, np.int32)) == [slice(0, 10)]
    assert len(divide(2000)) == 8
    done: list[slice] = []
    run(divide(9), done.append)
    assert sorted(part.start for part in done) == [0, 3, 6]
    with pytest.raises(ZeroDivisionError):
        run(divide(9), lambda part: done.append(slice(1 // (part.start - 6), 0)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_threads_in_a_child_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads of its parent are not there."""
    monkeypatch.setattr(library, "thread_count", lambda: 2)
    done: list[slice] = []
    run(divide(10), done.append)
    child = os.fork()
    if not child:
        signal.alarm(60)  # instead of waiting for ever
        run(divide(10), done.append)
        os._exit(len(done))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4


@pytest.mark.parametrize("both", CONFIGS[:1], indirect=True, ids=str)
def test_what_is_not_a_number_stays_in_its_row(both: tuple[IntegerModel, IntegerModel]) -> None:
    kernels = both[0].native
    assert kernels is not None
    x = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)
    alone = x[1:].copy()
    x[0, 5] = np.nan
    some, at = np.array([0, 1], np.int32), np.zeros(2, np.int32)
    for rows, values in ((some, x), (some[1:], alone)):
        caches, memories = kernels.new_caches(2, 2, 4), kernels.new_caches(2, 2, 4)
        kernels.encode(values, rows, at[: len(rows)], None, caches, memories)
    assert not np.isfinite(x[0]).all()
    assert (x[1] == alone[0]).all()


DAMAGED = [
    {"info": "frequency", "damaged": "source_info.table"},
    {"info": "frequency", "damaged": "source_info.table", "info_self_attention": False},
    {"info": "frequency", "damaged": "target_info.table", "info_cross_attention": False},
    {"norm": "pre", "damaged": "decoder_layers.1.around_feed_forward.norm.bias"},
    {"info": "none", "damaged": "decoder_layers.1.cross.queries.bias"},
]


@pytest.mark.parametrize("both", DAMAGED, indirect=True, ids=str)
def test_damaged_models_are_noticed(both: tuple[IntegerModel, IntegerModel]) -> None:
    """Neither attention nor relu makes numbers of what is none, as in NumPy."""
    for model in both:
        engine = Engine(model, build_system("wait-k"), slots=1, capacity=20)
        slot = engine.open(2.0)
        engine.feed(slot, [5, 6, 7, 8, 9], complete=True)
        engine.run()
        assert engine.failed == {slot}


@pytest.mark.parametrize("both", CONFIGS[:1], indirect=True, ids=str)
def test_a_pass_that_finds_no_memory_keeps_what_it_has(
    both: tuple[IntegerModel, IntegerModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(both[0], build_system("adaptive-wait-k"), slots=20, capacity=20)
    assert isinstance(engine.backend, NativeBackend)
    writing, zeros = engine.backend.writing, np.zeros
    before = dict(writing.arrays)

    def without_room_for_scores(shape: tuple[int, ...], kind: type) -> np.ndarray:
        if shape[1:] == (90,):
            raise MemoryError
        return zeros(shape, kind)

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(np, "zeros", without_room_for_scores)
        writing.reserve(17)
    assert all(writing.arrays[name] is array for name, array in before.items())
    writing.reserve(17)
    assert {len(array) for array in writing.arrays.values()} == {32}


@pytest.mark.parametrize(("value", "found"), [("0", False), ("plain", True), ("nonsense", True)])
def test_the_switch(value: str, found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, value)
    chosen = find_kernels.__wrapped__()
    assert (chosen is not None) is (found and (value == "plain" or best_kind() > 0))


def test_code_of_other_sources_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a pull: one line says what to do, and NumPy computes."""
    folder = Path(library.__file__).parent
    for file in (FOUND[-1], *folder.glob("*.[ch]")):
        shutil.copy(file, tmp_path)
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    monkeypatch.setenv(SWITCH, "plain")
    assert find_kernels.__wrapped__() is not None
    with (tmp_path / "types.h").open("a") as file:
        file.write("\n")
    with pytest.warns(RuntimeWarning, match=r"build it again: .* build_ext --inplace") as caught:
        assert find_kernels.__wrapped__() is None
    assert "\n" not in str(caught[0].message)


def best_kind() -> int:
    return Library(FOUND[-1]).kind


@pytest.mark.parametrize("both", CONFIGS[:1], indirect=True, ids=str)
def test_shifted_slots_equal_those_of_numpy(both: tuple[IntegerModel, IntegerModel]) -> None:
    """Three slots that drop different amounts of what they have read and written."""
    records = []
    for model in both:
        engine = Engine(model, build_system("wait-info"), slots=3, capacity=40)
        slots = [engine.open(2.0) for _ in range(3)]
        for slot in slots:
            engine.feed(slot, list(range(5 + slot, 25 + slot)))
        events = engine.run()
        weights = [engine.alignment(slot) for slot in slots]
        for slot, drop in zip(slots, (0, 7, 12), strict=True):
            engine.shift(slot, 2.0, drop, engine.state.written.item(slot) * drop // 20)
            engine.feed(slot, [30, 31, 32], complete=True)
        records.append(([*events, *engine.run()], weights))
    assert records[0][0] == records[1][0]
    for ours, theirs in zip(records[0][1], records[1][1], strict=True):
        assert np.allclose(ours, theirs) and (ours.max(1) < 1).any(), "attention, not the path"


REREAD = {"info": "none", "encoder": "bidirectional", "activation": "swish", "output_bias": True}
ROUNDS = [
    ({"info": "attention"}, "wait-k"),
    ({"info": "attention"}, "wait-info"),
    ({"info": "attention"}, "adaptive-wait-k"),
    ({"info": "none", "write_head": True}, "gsimt"),
    ({"info": "attention", "decoder": "ssru"}, "wait-info"),
    *((REREAD, name) for name in ("full", "wait-k", "local-agreement", "alignatt", "confidence")),
    (REREAD | {"decoder": "ssru", "norm": "pre", "activation": "relu"}, "local-agreement"),
]


@pytest.mark.parametrize(("both", "name"), ROUNDS, indirect=["both"], ids=str)
def test_rounds_equal_those_of_numpy(both: tuple[IntegerModel, IntegerModel], name: str) -> None:
    """Many slots whose words come at different times, one of which has tokens to write first."""
    records = []
    for model in both:
        draw = random.Random(5)
        system = build_system(name)
        engine = Engine(model, system, slots=20, capacity=40)
        assert name == "gsimt" or (engine.backend.name == "native") is (model.native is not None)
        k = 0.5 if name in ("gsimt", "confidence") else 2.0
        slots = [engine.open(k) for _ in range(20)]
        engine.force(slots[3], [(7, 2), (8, 2), (9, 4)])
        events = []
        for turn in range(6):
            for slot in slots:
                some = [draw.randrange(4, 90) for _ in range(draw.randrange(4))]
                engine.feed(slot, some, complete=turn == 5)
            events += engine.run()
        records.append(events)
    assert records[0] == records[1]
    written = [event.token for event in records[0] if event.slot == 3 and event.kind == "WRITE"]
    assert written[:3] == [7, 8, 9]


@pytest.mark.parametrize("both", CONFIGS[:1], indirect=True, ids=str)
def test_the_bias_of_cross_attention(both: tuple[IntegerModel, IntegerModel]) -> None:
    """Against the logarithm in float64, also of info at its limits and beyond."""
    model = both[0]
    engine = Engine(model, build_system("wait-info"), slots=1, capacity=2000)
    assert isinstance(engine.backend, NativeBackend) and engine.backend.next_info is not None
    draw = np.random.default_rng(0)
    theirs = np.concatenate([2 * draw.random(1990), [0, 1, 2, 2.5, -0.5, np.nan]])
    engine.backend.info[0, : len(theirs)] = theirs
    for info in (0.0, 0.3, 1.0, 2.0):
        engine.backend.next_info[0] = info
        engine.backend.writing(np.array([0]), np.array([len(theirs)]))
        bias = engine.backend.writing.arrays["bias"][0, : len(theirs)]
        weight = np.float32(2) - np.abs(np.float32(info) - theirs.astype(np.float32))
        weight = np.maximum(weight, np.float32(1e-4))
        assert np.array_equal(bias, np.log(weight.astype(float)).astype(np.float32), equal_nan=True)


def test_memory_of_weights() -> None:
    """Pieces are aligned, do not overlap, and are freed with their last user."""
    pieces = [weight_memory(size) for size in (1, 63, 64, 5000, CHUNK + 1, 10)]
    for number, piece in enumerate(pieces):
        assert piece.ctypes.data % 64 == 0
        piece[:] = number
    assert [len(piece) for piece in pieces] == [1, 63, 64, 5000, CHUNK + 1, 10]
    assert all((piece == number).all() for number, piece in enumerate(pieces))
    base = pieces[4].base
    assert base is not None
    gone = weakref.ref(base)
    del base, pieces, piece
    weight_memory(CHUNK + 2)  # so that the rest of the chunk is not kept for the next piece
    assert gone() is None
