"""A shifted slot goes on exactly as a decoder without caches that starts from what was kept."""

from __future__ import annotations

import random

import pytest
import torch

from tests.engines import ENGINES, MODELS, EngineKind, recorded_engine
from tests.oracle import Unfinished, dial_near, uncached_rest
from waitinfo.streaming.engine import WRITE, Engine
from waitinfo.streaming.engine.engine import align_by_path
from waitinfo.text.special import BOS, EOS


def begun(engine: Engine, source: list[int], k: float, given_first: int) -> int:
    """A slot that has read and written what it can of the beginning of a source."""
    slot = engine.open(k)
    engine.feed(slot, source[:given_first])
    engine.run()
    return slot


@pytest.mark.parametrize(("name", "kind"), [each for each in ENGINES if each[0] != "full"])
def test_equals_the_uncached_oracle(name: str, kind: EngineKind) -> None:
    """Four slots, shifted by different amounts, at random places."""
    model, system = MODELS[name]
    draw = random.Random(name)
    engine = kind(model, system, slots=4, capacity=40, round_tokens=8)
    sources = [[draw.randint(4, 39) for _ in range(draw.randint(4, 10))] for _ in range(4)]
    dials = [dial_near(system, 1.0 + number % 3) for number in range(4)]
    given = [draw.randint(3, len(source)) for source in sources]
    slots = [begun(engine, *each) for each in zip(sources, dials, given, strict=True)]
    rows = []
    for slot, source, k, fed in zip(slots, sources, dials, given, strict=True):
        seen, written, path = engine.state.history(slot)
        read = len(seen)
        cut = draw.randint(0, len(written))
        drop = draw.randint(0, read - 1)  # a target is never kept without a source
        path = [max(1, g - drop) for g in path[cut:]]
        row = Unfinished([*source[drop:], EOS], k, read - drop, written[cut:], path)
        row.memory = engine.remembered(slot)
        rows.append(row)
        engine.shift(slot, k, drop, cut)
        engine.feed(slot, source[fed:], complete=True)
    kept = [(len(row.written), row.read) for row in rows]
    found: dict[int, list[tuple[int, int]]] = {slot: [] for slot in slots}
    reads = dict.fromkeys(slots, 0)
    for event in engine.run():
        if event.kind == WRITE:
            found[event.slot].append((event.token, event.read))
        else:
            reads[event.slot] += 1
    expected = uncached_rest(model, system, rows)
    for slot, row, (tokens, path), (before, read) in zip(slots, rows, expected, kept, strict=True):
        assert found[slot] == list(zip(tokens[before:], path[before:], strict=True))
        assert reads[slot] == len(row.source) - read, "kept tokens are not read again"


@torch.no_grad()
@pytest.mark.parametrize("kind", [Engine, recorded_engine])
def test_info_totals_are_those_of_the_kept_tokens(kind: EngineKind) -> None:
    model, system = MODELS["wait-info"]
    engine = kind(model, system, slots=1, capacity=40)
    source = list(range(5, 25))
    slot = begun(engine, source, 1.0, 20)
    _, written, _ = engine.state.history(slot)
    kept, written = source[6:], written[3:]
    assert written
    engine.shift(slot, 1.0, 6, 3)
    engine.feed(slot, [25, 26], complete=True)
    event = engine.run()[-1]
    read, tokens, _ = engine.state.history(slot)
    assert read[:-3] == kept and read[-3:-1] == [25, 26]
    info = model.embed_source(torch.tensor([read])).info[0].sum()
    assert event.source_info == pytest.approx(float(info), abs=1e-9)
    assert tokens[: len(written)] == written
    info = model.embed_target(torch.tensor([[BOS, *tokens]])).info[0, 1:].sum()
    assert event.target_info == pytest.approx(float(info), abs=1e-9)


@pytest.mark.parametrize("kind", [Engine, recorded_engine])
def test_alignment_is_the_softmax_of_cross_attention(kind: EngineKind) -> None:
    """Against the decoder's own attention, recorded while it runs over the whole target."""
    model, system = MODELS["wait-info"]
    engine = kind(model, system, slots=2, capacity=40)
    begun(engine, [7, 7, 8], 2.0, 3)  # a neighbour
    slot = begun(engine, list(range(5, 20)), 2.0, 15)
    found = torch.from_numpy(engine.alignment(slot))
    source, tokens, path = engine.state.history(slot)
    read = len(source)
    assert found.shape == (len(tokens), read)
    assert torch.allclose(found.sum(-1), torch.ones(len(tokens), dtype=torch.float64))
    for row, seen in zip(found, path, strict=True):
        assert not row[seen:].any(), "what was not read has no weight"

    recorded = []
    cross = model.decoder_layers[-2].cross
    plain = cross.attend

    def recording(q, k, v, bias, causal, dropout):  # the values are the positions themselves
        weights = plain(q, k, torch.eye(k.shape[2], dtype=k.dtype).expand(*k.shape[:3], -1),
                        bias, causal, dropout)  # fmt: skip
        recorded.append(weights.mean(1)[0])
        return plain(q, k, v, bias, causal, dropout)

    cross.attend = recording
    try:
        encoded = model.encode(model.embed_source(torch.tensor([source])), torch.tensor([read]))
        target = model.embed_target(torch.tensor([[BOS, *tokens[:-1]]]))
        model.decode(target, encoded, torch.tensor([path]))
    finally:
        cross.attend = plain
    assert torch.allclose(found, recorded[0], atol=1e-9)


def test_alignment_by_path_removes_the_initial_wait() -> None:
    found = align_by_path([3, 4, 4, 6], 6)
    assert found.argmax(-1).tolist() == [0, 1, 1, 3] and found.sum() == 4
