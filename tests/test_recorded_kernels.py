"""The kernels of the backend for GPUs: attention to blocks, fused steps, the best token."""

from __future__ import annotations

import os
from dataclasses import fields

import pytest
import torch

from tests.engines import build, outline, recorded_engine
from tests.oracle import dial_near
from waitinfo.model.attention import attend
from waitinfo.model.cache import Pages
from waitinfo.streaming.engine import WRITE
from waitinfo.streaming.recorded.memory import BLOCK
from waitinfo.streaming.recorded.steps import Steps
from waitinfo.text.special import BOS, PAD

KERNELS = pytest.mark.skipif(
    not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1",
    reason="without a GPU the kernels need TRITON_INTERPRET=1",
)


def pages_of(rows: int, heads: int, width: int, seed: int, device: str = "cpu"):
    """Random keys and values in shuffled blocks, lengths, and a bias with masked ends."""
    draw = torch.Generator().manual_seed(seed)
    blocks = 9
    pools = [torch.randn(rows * blocks + 1, heads, BLOCK, width, generator=draw) for _ in "kv"]
    table = torch.randperm(rows * blocks, generator=draw).view(rows, blocks) + 1
    count = torch.randint(1, blocks * BLOCK + 1, (rows,), generator=draw)
    length = blocks * BLOCK
    hidden = torch.arange(length) >= count[:, None]
    bias = torch.randn(rows, length, generator=draw).masked_fill(hidden, -torch.inf)
    queries = torch.randn(rows, heads, 1, width, generator=draw)
    keys, values = (
        Pages(pool.to(device), table.to(device), count.to(device), length) for pool in pools
    )
    return queries.to(device), keys, values, bias[:, None, None].to(device)


def reference(queries, keys: Pages, values: Pages, bias) -> torch.Tensor:
    """Row by row in float64, by the table."""
    out = []
    for row, count in enumerate(keys.count.tolist()):
        places = [(int(keys.table[row, at // BLOCK]), at % BLOCK) for at in range(count)]
        k, v = (
            torch.stack([pages.pool[block, :, at] for block, at in places], 1).double()
            for pages in (keys, values)
        )  # [H, count, d]
        scores = (k @ queries[row, :, 0].double()[..., None])[..., 0] * k.shape[-1] ** -0.5
        weights = (scores + bias[row, 0, 0, :count].double()).softmax(-1)
        out.append((weights[:, None] @ v)[:, 0])
    return torch.stack(out)[:, :, None]


def test_gathered_pages_equal_the_formula() -> None:
    queries, keys, values, bias = pages_of(5, 2, 8, seed=0)
    found = attend(queries, keys, values, bias, False, 0.0)
    torch.testing.assert_close(found, reference(queries, keys, values, bias).float())


@KERNELS
@pytest.mark.parametrize("width", [16, 64])
def test_the_kernel_for_pages_equals_the_formula(width: int) -> None:
    paged = pytest.importorskip("waitinfo.model.kernels.rows", reason="Triton is not installed")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    queries, keys, values, bias = pages_of(4, 2, width, seed=1, device=device)
    expected = reference(queries, keys, values, bias).float()
    torch.testing.assert_close(
        paged.paged_attention(queries, keys, values, bias), expected, rtol=1e-4, atol=1e-5
    )
    by_head = bias.expand(-1, 2, -1, -1).contiguous()
    torch.testing.assert_close(
        paged.paged_attention(queries, keys, values, by_head), expected, rtol=1e-4, atol=1e-5
    )


@KERNELS
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("wait-info", {"norm": "post"}),
        ("wait-info", {"norm": "pre", "info_self_attention": True}),
        ("adaptive-wait-k", {"norm": "post", "width": 48, "heads": 3}),
    ],
)
def test_fused_steps_equal_the_plain_ones(
    name: str, changes: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All kernels of a round: one row and several, forced tokens, refusals, ends and a shift."""
    fused = pytest.importorskip("waitinfo.streaming.recorded.fused", reason="needs Triton")
    monkeypatch.setattr("waitinfo.model.kernels.rows.FEW_ROWS", 1)
    monkeypatch.setattr("waitinfo.model.kernels.rows.PROGRAMS", 2)  # each takes long to interpret
    monkeypatch.setattr("waitinfo.streaming.recorded.backend.ROWS", (1, 2))
    monkeypatch.setattr("waitinfo.streaming.recorded.backend.WINDOWS", (8,))
    model, system = build(name, **{"heads": 2, "decoder_layers": 1, **changes})
    model = model.float().to("cuda" if torch.cuda.is_available() else "cpu")
    k = dial_near(system, 1.0)
    found = []
    for kind in (Steps, fused.FusedSteps):
        engine = recorded_engine(model, system, slots=2, capacity=16, ending="guard")
        engine.backend.steps = kind(**vars_of(engine.backend.steps))
        slots = [engine.open(k) for _ in range(2)]
        engine.force(slots[1], [(9, 1), (12, 3)])
        events = []
        for rows in (slots, slots[:1]):
            for slot in rows:
                engine.feed(slot, [5 + slot, 9, 7 + slot])
            events += engine.run()
        engine.shift(slots[0], k, 2, min(1, len(engine.state.history(slots[0])[1])))
        for slot in slots:
            engine.feed(slot, [], complete=True)
        events += engine.advance()
        found.append(sorted(events, key=lambda event: event.slot))
    plain, quick = found
    assert outline(plain) == outline(quick)
    for value in ("info", "source_info", "target_info"):
        a, b = ([getattr(event, value) for event in events] for events in found)
        assert a == pytest.approx(b, abs=1e-4)


@pytest.mark.filterwarnings("ignore:invalid value")
@KERNELS
def test_fused_steps_find_numbers_that_are_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = pytest.importorskip("waitinfo.streaming.recorded.fused", reason="needs Triton")
    monkeypatch.setattr("waitinfo.model.kernels.rows.PROGRAMS", 2)
    monkeypatch.setattr("waitinfo.streaming.recorded.backend.ROWS", (1, 2))
    model, system = build("wait-info", heads=2, decoder_layers=1)
    model = model.float().to("cuda" if torch.cuda.is_available() else "cpu")
    engine = recorded_engine(model, system, slots=2, capacity=16)
    engine.backend.steps = fused.FusedSteps(**vars_of(engine.backend.steps))
    for slot in [engine.open(0.0) for _ in range(2)]:
        engine.feed(slot, [5, 6, 7, 8])
    assert (0, WRITE) in {(event.slot, event.kind) for event in engine.advance()}
    blocks = engine.backend.target.table.owned_by(0)
    engine.backend.target.all[-1].values[blocks] = torch.nan
    for slot in range(2):
        engine.feed(slot, [8], complete=True)
    events = engine.advance()
    assert engine.failed == {0} and {event.slot for event in events} == {1}


@KERNELS
def test_the_kernel_for_the_best_token() -> None:
    rows = pytest.importorskip("waitinfo.model.kernels.rows", reason="Triton is not installed")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    logits = torch.randn(5, 5000, generator=torch.Generator().manual_seed(1)).to(device)
    logits[0, PAD] = logits[0, BOS] = 100.0  # never written
    logits[1, 4999] = logits[1, 4998] = 50.0  # the first of two
    logits[2, 17] = torch.nan
    logits[3, 18] = torch.inf
    forced = torch.tensor([0, 0, 0, 0, 9], device=device)
    expected = logits.clone()
    expected[:, [PAD, BOS]] = -torch.inf
    tokens, finite = rows.best_tokens(logits, forced)
    assert finite.tolist() == [True, True, False, False, True]
    assert tokens[[0, 1, 4]].tolist() == [int(expected[0].argmax()), 4998, 9]
    assert torch.equal(logits[:, [PAD, BOS]], expected[:, [PAD, BOS]])


def vars_of(steps: Steps) -> dict:
    return {field.name: getattr(steps, field.name) for field in fields(Steps)}
