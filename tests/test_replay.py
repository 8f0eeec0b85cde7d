"""Interrupted streams: continued from what was accepted, they write what they would have."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

import waitinfo
from tests.streams import record, some_text, toy_model
from waitinfo import Event, Translator, WaitinfoError
from waitinfo.streaming.event import shown_text
from waitinfo.streaming.replay import Replay
from waitinfo.systems import SYSTEMS
from waitinfo.text.special import BOS, EOS, PAD, UNK

TEXT = some_text(random.Random(5), 30)


def translator(system: str = "wait-k") -> Translator:
    return Translator(toy_model(system), streams=4, capacity=48)


def path_of(server: Translator, events: list[Event]) -> list[tuple[int, int]]:
    tokens = server.vocabulary.target
    return [(tokens.token(e.token), e.read) for e in events if e.kind == "WRITE"]


def dialled(k: float, system: str) -> float | None:
    return None if SYSTEMS[system].dial is None else k


@pytest.mark.parametrize("system", ["wait-k", "wait-info", "full"])
def test_continues_word_for_word(system: str) -> None:
    """Cut after any word: the source from the beginning of the sentence, and what was written."""
    server = translator(system)
    words = TEXT.split()
    whole = server.stream(dialled(2, system), history=None)
    by_word = [whole.push(word) for word in words] + [whole.finish()]
    for cut in range(0, len(words), 6):
        before = [event for events in by_word[: cut + 1] for event in events]
        after = [event for events in by_word[cut + 1 :] for event in events]
        sentence = before[-1].sentence + (before[-1].token == "</s>") if before else 0
        kept = [event for event in before if event.sentence == sentence]
        start = sum(1 for e in before if e.kind == "READ" and e.word and e.sentence < sentence)
        again = server.stream(
            dialled(2, system),
            history=None,
            replay=Replay(path_of(server, kept), sentence, seconds=100.0),
        )
        events = again.push(" ".join(words[start : cut + 1]))
        assert record(events) == record(kept)
        assert all(event.time > 100 for event in events)
        for word in words[cut + 1 :]:
            events += again.push(word)
        assert record(events + again.finish()) == record(kept + after)
        assert 100 < again.replay().seconds < 1_000


@pytest.mark.parametrize("segment", ["auto", "none:8"])
def test_a_session_gives_its_own_replay(segment: str) -> None:
    """Cut after any events, whole sentences or windows: no event is missing or comes again."""
    server = translator("wait-info")
    text = TEXT if segment == "auto" else TEXT.replace(".", "")
    whole = server.stream(2, raw=True, segment=segment, history=None)
    expected = shown_text(whole.push(text) + whole.finish())
    for cut in range(1, len(text), 23):
        stream = server.stream(2, raw=True, segment=segment)
        progress, before = stream.session.progress, stream.push(text[:cut])
        progress.source.add(text[:cut])
        replay = stream.replay()
        for event in before:
            progress.take(event)
            replay = stream.replay()
        again = replace(stream.replay(), seconds=replay.seconds)
        assert again == replay, "the last one is whole, however often it is asked for"
        stream.close()
        again = server.stream(2, raw=True, segment=segment, replay=replay)
        follows = again.session.progress
        events = again.push(text[replay.position :]) + again.finish()
        new = [event for event in events if follows.take(event)]
        joined = "".join(event.text for event in [*before, *new])
        assert joined.split() == expected.split(), (cut, replay)


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_the_bundled_model_continues(dtype: str) -> None:
    """In compiled integers too, where the machine has them; cut in the middle of a sentence."""
    server = waitinfo.load(device="cpu", dtype=dtype, streams=2, capacity=64)
    words = ["Wir", "müssen", "dringend", "etwas", "gegen", "den", "Klimawandel", "unternehmen."]
    whole = server.stream(1, history=None)
    before = [event for word in words[:6] for event in whole.push(word)]
    after = [event for word in words[6:] for event in whole.push(word)] + whole.finish()
    path = path_of(server, before)
    assert path
    again = server.stream(1, history=None, replay=Replay(path))
    events = again.push(" ".join(words[:6]))
    for word in words[6:]:
        events += again.push(word)
    assert record(events + again.finish()) == record(before + after)
    other = [(token, read) for token, read in path[:1]] + [(EOS + 40, path[0][1])]
    forced = server.stream(1, history=None, replay=Replay(other))
    forced.push(" ".join(words))
    assert path_of(server, forced.trace)[:2] == other


def test_what_was_accepted_stays() -> None:
    """Another machine may have chosen other tokens, under another dial; they are kept."""
    server = translator()
    stream = server.stream(3, history=None)
    stream.push("ba be bi bo bu da")
    chosen = [(token, read + 1) for token, read in path_of(server, stream.trace)]
    chosen[1] = (chosen[1][0] + 1, chosen[1][1])
    again = server.stream(1, history=None, replay=Replay(chosen))
    again.push("ba be bi bo bu da de di do du")
    assert path_of(server, again.trace)[: len(chosen)] == chosen
    assert len(path_of(server, again.trace)) > len(chosen)  # and then the new dial counts


def test_other_streams_are_not_affected() -> None:
    server = translator()
    alone = server.stream(2, history=None)
    alone.push(TEXT)
    alone.finish()
    other, forced = server.stream(2, history=None), server.stream(2, replay=Replay([(9, 3)] * 30))
    server.push_many({other: TEXT, forced: TEXT})
    server.finish_many([other, forced])
    assert record(other.trace) == record(alone.trace)
    slot = server.stream(2, history=None)  # no forced token is left in a slot
    slot.push(TEXT)
    slot.finish()
    assert record(slot.trace) == record(alone.trace)


@pytest.mark.parametrize("path", [[(9, 0)] * 500, [(EOS, 1)], [(UNK, 3)]])
def test_impossible_paths_do_no_harm(path: list[tuple[int, int]]) -> None:
    server = translator()
    stream = server.stream(2, replay=Replay(path))
    stream.push(TEXT)
    stream.finish()
    assert server.open_streams == 0


@pytest.mark.parametrize(
    "path", [[(PAD, 1)], [(9, 1), (BOS, 1)], [(10**6, 1)], [(9, -1)], [(9, 10**30)]]
)
def test_impossible_tokens_are_refused(path: list[tuple[int, int]]) -> None:
    server = translator()
    with pytest.raises(WaitinfoError, match="cannot have been written"):
        server.stream(2, replay=Replay(path))
    assert server.open_streams == 0


def test_flush_ends_a_sentence() -> None:
    server = translator()
    stream = server.stream(2, raw=True, history=None)
    first = stream.push("ba be b") + stream.flush()
    assert {event.sentence for event in first} == {0}
    second = stream.push("i bo") + stream.finish()
    assert [e.word for e in first + second if e.kind == "READ" and e.word] == [
        "ba", "be", "b", "i", "bo",
    ]  # fmt: skip
    parts = [server.stream(2, history=None) for _ in range(2)]
    expected = [
        stream.push(text) + stream.finish()
        for stream, text in zip(parts, ("ba be b", "i bo"), strict=True)
    ]
    tokens = [[(e.kind, e.token, e.read) for e in events] for events in (first, second)]
    assert tokens == [[(e.kind, e.token, e.read) for e in events] for events in expected]
