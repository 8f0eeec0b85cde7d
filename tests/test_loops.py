"""Loops are found, cut and reported; what a speaker repeats is not."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle import literal_loop
from tests.streams import some_text, toy_model
from waitinfo import Translator
from waitinfo.streaming.decoder import Decoder
from waitinfo.streaming.engine.loops import RepeatCounts, first_loop, last_runs
from waitinfo.streaming.engine.slots import Slots
from waitinfo.text.special import EOS

few = st.lists(st.integers(4, 6), max_size=60)


@given(few, few, st.integers(1, 6), st.integers(1, 12))
def test_equals_the_definition(
    start: list[int], source: list[int], length: int, times: int
) -> None:
    written = start + (start[:length] or [4]) * times
    literal = [literal_loop(written[: n + 1], source) for n in range(len(written))]
    assert first_loop(written, source) == (literal.index(True) if any(literal) else None)


@given(few, few, st.integers(1, 6), st.integers(1, 12))
def test_a_slot_equals_the_definition(
    start: list[int], source: list[int], length: int, times: int
) -> None:
    """Also beside what was not read yet, and after the slot was used before."""
    written = start + (start[:length] or [4]) * times
    slots = Slots(2, 160)
    slots.feed(1, [4] * 40, complete=False)
    slots.reset(1, 1.0)
    slots.feed(1, [*source, 99, 99, 99], complete=False)
    slots.read[1] = len(source)
    for place, token in enumerate(written):
        runs = slots.runs_after(1, token)
        assert slots.loops(1, runs) == literal_loop(written[: place + 1], source)
        slots.write(1, token, 0.0, runs, last=False, cut=None)
    assert slots.runs[1].tolist() == last_runs(np.array(written)).tolist()


@pytest.mark.parametrize(
    ("words", "source", "loop"),
    [
        ("very , very , very , very , very", "a", False),  # short enough
        ("0 0 0 0 0 0 0 0 0", "a", False),
        ("1 , 2 , 3 , 4 , 5 , 6 , 7 , 8 , 9 , 10", "a", False),  # only the comma is repeated
        ("no no no no no no no no no no no no no", "a", True),
        ("no no no no no no no no no no no no no", "x x x x x x x x x x x x x", False),
        ("in the Union and in the Union and in the Union and", "a", True),
        ("in the Union and in the Union and in the Union and", "a b c a b c a b c", False),
        ("in the Union and in the Union and in the Union", "a", False),  # not yet three times
        ("a b c d e f g h i j k l a b c d e f g h i j k l", "a", False),  # twice
    ],
)
def test_examples(words: str, source: str, loop: bool) -> None:
    ids = {word: number for number, word in enumerate(f"{words} {source}".split(), 4)}
    written = [ids[word] for word in words.split()]
    read = [ids[word] for word in source.split()]
    assert (first_loop(written, read) is not None) == loop


@pytest.mark.parametrize(
    ("tokens", "times"),
    [([], 1), ([5], 1), ([5, 6, 5], 1), ([5, 6, 5, 6, 5], 3), ([1, 2, 9, 9, 9, 9, 3], 4)],
)
def test_repeats(tokens: list[int], times: int) -> None:
    """Five tokens are "very, very, very"."""
    counts, every = RepeatCounts(1, 10), np.array([[*tokens, 0]])
    counts.extend(every, np.zeros(1, np.int64), np.array([len(tokens)]))
    assert counts.most[0, len(tokens)] == times


@pytest.fixture
def looping() -> Translator:
    """A model that writes the same two tokens for ever, whatever it reads."""
    loaded = toy_model()
    translator = Translator(loaded, streams=4, capacity=48)
    target: Any = translator._scheduler.engine.backend
    logits = loaded.model.logits

    def stuck(states: torch.Tensor) -> torch.Tensor:
        found = logits(states)
        found[:, 40 + target.stuck % 2] = 1e6
        return found

    compute = target._compute

    def counting(rows: object, state: Any, *given: object) -> object:
        target.stuck = int(state.written[0])
        loaded.model.logits = stuck
        try:
            return compute(rows, state, *given)
        finally:
            del loaded.model.logits

    target._compute = counting
    return translator


@pytest.mark.parametrize("segment", ["punctuation", "whole", "auto", "none:16"])
def test_a_loop_is_cut_and_reported(looping: Translator, segment: str) -> None:
    stream = looping.stream(2, segment=segment, history=None)
    events = stream.push("ba be bi bo bu da de di do du " * 4 + "ba.") + stream.finish()
    cuts = [event for event in events if event.kind == "CUT"]
    assert cuts and {event.reason for event in cuts} == {"loop"}
    assert all(event.token == "" and event.word is None and not event.text for event in cuts)
    before = [events[events.index(cut) - 1] for cut in cuts]
    assert all(event.kind == "WRITE" and event.token == "</s>" for event in before)
    assert sum(e.kind == "WRITE" for e in events) <= 12 * (events[-1].sentence + 1)
    assert sum(e.kind == "READ" and e.word is not None for e in events) == 41, "all was read"


def test_streams_and_the_batched_decoder_cut_alike() -> None:
    """Random models loop at times; both are also compared with the oracle, which knows loops."""
    loaded = toy_model()
    texts = [some_text(random.Random(seed), 20).replace(".", "") for seed in range(5)]
    sources = [loaded.vocabulary.source.encode(text) for text in texts]
    batch = Decoder(loaded.model, loaded.system).decode(sources, 2)
    for text, hypothesis in zip(texts, batch, strict=True):
        stream = Translator(loaded, streams=1, capacity=80).stream(2, segment="whole", history=None)
        for word in text.split():
            stream.push(word)
        stream.finish()
        written = [event for event in stream.trace if event.kind == "WRITE"]
        tokens = [*hypothesis.tokens, *([EOS] if hypothesis.ended else [])]
        assert [e.token for e in written] == [loaded.vocabulary.target.piece(t) for t in tokens]
        cut = stream.trace[-1].reason if stream.trace[-1].kind == "CUT" else None
        assert cut == ("loop" if hypothesis.looped else None if hypothesis.ended else "length")


def test_a_runaway_translation_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = toy_model()
    count = iter(range(10**6))
    logits = loaded.model.logits

    def restless(states: torch.Tensor) -> torch.Tensor:
        found = logits(states)
        found[:, 40 + next(count) ** 2 % 101] = 1e6  # never ends, and is no loop
        return found

    monkeypatch.setattr(loaded.model, "logits", restless)
    stream = Translator(loaded, streams=1, capacity=48).stream(2)
    events = stream.push("ba be.") + stream.finish()
    assert events[-1].kind == "CUT" and events[-1].reason == "length"
    assert events[-1].written == 2 * events[-1].read + 10
