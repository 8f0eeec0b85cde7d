"""The engine: a stream gives the same result in any batch and order of arrival as alone."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tiny_config
from tests.engines import (
    ENGINES,
    MODELS,
    NAMES,
    TRAINED,
    EngineKind,
    build,
    recorded_engine,
    sentences,
    trickle,
)
from tests.oracle import dial_near, uncached_decode, uncached_decodes
from waitinfo.errors import WaitinfoError
from waitinfo.model import Transformer
from waitinfo.streaming.engine import READ, WRITE, Engine
from waitinfo.systems import build_system
from waitinfo.text.special import EOS
from waitinfo.text.tokenizer import VocabularySpec, train_tokenizer


@pytest.mark.parametrize("name", NAMES)
def test_the_oracle_gives_the_same_for_single_sentences(name: str) -> None:
    """The oracle computes sentences of one shape together, which must not change them."""
    model, system = MODELS[name]
    sources = [s[:5] for s in sentences(5, seed=12)]
    dials = [dial_near(system, k) for k in (1.0, 1.0, 2.0, 2.0, 4.0)]
    together = uncached_decodes(model, system, sources, dials)
    for source, k, found in zip(sources, dials, together, strict=True):
        assert found == uncached_decode(model, system, source, k)


@pytest.mark.parametrize(("name", "kind"), ENGINES)
def test_random_arrivals_equal_the_uncached_oracle(name: str, kind: EngineKind) -> None:
    sources = [s[:7] for s in sentences(16, seed=11)]
    model, system = MODELS[name]
    draws = [random.Random(i).choice([1.0, 2.0, 4.0]) for i in range(len(sources))]
    dials = [dial_near(system, k) for k in draws]
    records = trickle(name, sources, dials, slots=7, seed=1, kind=kind)
    expected = uncached_decodes(model, system, sources, dials)
    for source, (tokens, path), record in zip(sources, expected, records, strict=True):
        assert [event.token for event in record.writes] == tokens
        assert [event.read for event in record.writes] == path
        # The tokens read are the source, in order, up to the end of the translation.
        assert [event.token for event in record.reads] == [*source, EOS][: len(record.reads)]


@pytest.fixture(scope="module")
def real_sentences() -> list[list[int]]:
    """Real German sentences, in subwords."""
    corpus = Path(__file__).parents[1] / "examples" / "data" / "tatoeba.de-en.tsv"
    lines = [line.split("\t")[0] for line in corpus.read_text("utf-8").splitlines()[:1500]]
    tokenizer, _ = train_tokenizer(lines, VocabularySpec("bpe", 600))
    return [tokenizer.encode(line) for line in lines[::30]]


@pytest.mark.parametrize("name", [*TRAINED, "reject-odd-tokens"])
def test_real_sentences_in_random_batches(name: str, real_sentences: list[list[int]]) -> None:
    """Fifty sentences per system, thirty at a time, against decoding without caches."""
    made = build(name, vocabulary=600)
    dials = [dial_near(made[1], 1.0 + i % 5) for i in range(len(real_sentences))]
    expected = uncached_decodes(*made, real_sentences, dials)
    for kind in (Engine, recorded_engine) if name == "wait-info" else (Engine,):
        records = trickle(name, real_sentences, dials, slots=30, seed=7, made=made, kind=kind)
        for (tokens, path), record in zip(expected, records, strict=True):
            assert [event.token for event in record.writes] == tokens
            assert [event.read for event in record.writes] == path


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(ENGINES), st.integers(1, 6), st.integers(0, 10**6))
def test_other_streams_and_order_change_nothing(
    engine: tuple[str, EngineKind], slots: int, seed: int
) -> None:
    name, kind = engine
    sources = sentences(8, seed=seed % 50)
    dials = [dial_near(MODELS[name][1], 1.0 + (seed + i) % 4) for i in range(len(sources))]
    together = trickle(name, sources, dials, slots, seed, kind=kind)
    alone = [
        trickle(name, [s], [k], 1, seed, kind=kind)[0] for s, k in zip(sources, dials, strict=True)
    ]
    for a, b in zip(together, alone, strict=True):
        assert [(e.token, e.read) for e in a.writes] == [(e.token, e.read) for e in b.writes]
        assert [e.info for e in a.writes] == pytest.approx([e.info for e in b.writes], abs=1e-6)


@pytest.mark.parametrize("kind", [Engine, recorded_engine])
def test_running_totals_are_sums_of_infos(kind: EngineKind) -> None:
    record = trickle("wait-info", sentences(1, seed=5), [2.0], 1, 0, kind=kind)[0]
    events = sorted([*record.reads, *record.writes], key=lambda e: (e.read, e.written))
    for event in events:
        reads = sum(e.info for e in record.reads[: event.read])
        writes = sum(e.info for e in record.writes[: event.written])
        assert event.source_info == pytest.approx(reads, abs=1e-9)
        assert event.target_info == pytest.approx(writes, abs=1e-9)
    assert {e.kind for e in events} == {READ, WRITE}


def test_nothing_is_encoded_or_decoded_twice(monkeypatch) -> None:
    """Counts positions through the encoder and steps through the decoder."""
    model, system = MODELS["wait-info"]
    encoded, steps = [], []
    extend, step = Transformer.extend, Transformer.step
    monkeypatch.setattr(
        Transformer, "extend", lambda s, x, *a: encoded.append(x.at.numel()) or extend(s, x, *a)
    )
    monkeypatch.setattr(Transformer, "step", lambda s, *a, **o: steps.append(1) or step(s, *a, **o))
    source = [5, 6, 7, 8, 9, 10, 11, 12]
    engine = Engine(model, system, slots=1, capacity=16, ending="allow")
    slot = engine.open(2.0)
    writes = 0
    for token in source:
        engine.feed(slot, [token])
        writes += sum(e.kind == WRITE for e in engine.run())
    engine.feed(slot, [], complete=True)
    writes += sum(e.kind == WRITE for e in engine.run())
    assert sum(encoded) <= len(source) + 1
    assert len(steps) == writes


def test_waiting_input_is_encoded_in_one_pass(monkeypatch) -> None:
    model, system = MODELS["wait-info"]
    passes = []
    extend = Transformer.extend
    monkeypatch.setattr(
        Transformer, "extend", lambda s, x, *a: passes.append(x.at.shape) or extend(s, x, *a)
    )
    engine = Engine(model, system, slots=4, capacity=16)
    for source in ([5, 6, 7], [8, 9, 10, 11, 12], [13]):
        engine.feed(engine.open(1.0), source, complete=True)
    engine.run()
    assert passes == [(3, 6)]


@pytest.mark.parametrize("kind", [Engine, recorded_engine])
def test_a_new_dial_applies_from_the_next_decision(kind: EngineKind) -> None:
    model, system = MODELS["wait-k"]
    engine = kind(model, system, slots=1, capacity=40)
    slot = engine.open(1.0)
    engine.feed(slot, [5, 6, 7])
    before = [e.read for e in engine.run() if e.kind == WRITE]
    engine.set_dial(slot, 5.0)
    for token in range(8, 20):
        engine.feed(slot, [token])
        events = [e for e in engine.run() if e.kind == WRITE]
        if events:
            break
    assert before[-1] == len(before)
    assert events[0].read == len(before) + 5  # k + i - 1


def test_a_bidirectional_encoder_sums_info_as_it_reads() -> None:
    torch.manual_seed(2)
    config = tiny_config(info="attention", encoder="bidirectional")
    model = Transformer(config).double().eval()
    engine = Engine(model, build_system("full"), slots=1, capacity=9)
    slot = engine.open(1.0)
    engine.feed(slot, [])
    source = [5, 6, 7]
    infos = []
    for token in source:
        engine.feed(slot, [token])
        infos += [event.info for event in engine.run()]
    expected = model.embed_source(torch.tensor([source])).info[0].tolist()
    assert infos == pytest.approx(expected)


def test_a_trained_policy_requires_a_causal_encoder() -> None:
    model = Transformer(tiny_config(encoder="bidirectional", info="attention"))
    with pytest.raises(WaitinfoError, match="requires a causal encoder"):
        Engine(model, build_system("wait-info"))


@pytest.mark.parametrize("kind", [Engine, recorded_engine])
def test_tokens_outside_the_vocabulary_are_refused(kind: EngineKind) -> None:
    model, system = MODELS["multipath"]
    engine = kind(model, system, slots=1, capacity=8)
    slot, size = engine.open(1.0), model.config.source_vocabulary
    for tokens in ([5, size], [-1, 6]):
        with pytest.raises(WaitinfoError, match=f"must be 0 to {size - 1}"):
            engine.feed(slot, tokens)
    for put in (engine.force, lambda slot, path: engine.begin(slot, path, 1)):
        with pytest.raises(WaitinfoError, match="must be 0 to"):
            put(slot, [(model.config.target_vocabulary, 1)])
    engine.feed(slot, [5, size - 1], complete=True)  # nothing of what was refused is left
    assert [e.token for e in engine.run() if e.kind != WRITE][:2] == [5, size - 1]


@pytest.mark.parametrize("kind", [Engine, recorded_engine])
def test_slots_are_limited_and_reused(kind: EngineKind) -> None:
    model, system = MODELS["multipath"]
    engine = kind(model, system, slots=2, capacity=8)
    first, second = engine.open(1.0), engine.open(1.0)
    with pytest.raises(WaitinfoError, match="all 2 streams are in use"):
        engine.open(1.0)
    engine.close(first)
    assert engine.open(3.0) == first != second
    with pytest.raises(WaitinfoError, match="over 7 tokens does not fit"):
        engine.feed(first, [5] * 8)
    small, large = (Engine(model, system, n, 8).bytes_per_slot for n in (1, 50))
    assert small == large > 0


def test_half_precision_runs() -> None:
    """In a new process: some virtual machines report matrix units that do not work."""
    script = """
        import torch
        from tests.conftest import tiny_config
        from waitinfo.model import Transformer
        from waitinfo.streaming.engine import Engine
        from waitinfo.systems import build_system
        torch.manual_seed(0)
        model = Transformer(tiny_config(info="attention")).to(torch.bfloat16).eval()
        engine = Engine(model, build_system("wait-info"), slots=2, capacity=16)
        engine.feed(engine.open(1.0), [5, 6, 7], complete=True)
        assert any(event.last for event in engine.run())
    """
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        check=True,
        cwd=Path(__file__).parents[1],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},
    )
