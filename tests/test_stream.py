"""Streams of text: any chunking, any script, any length; shown words never change."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import toy_pairs, write_pairs
from waitinfo import AsyncTranslator, Translator, load
from waitinfo.errors import WaitinfoError
from waitinfo.streaming.event import Event
from waitinfo.streaming.segmenter import ends_sentence
from waitinfo.streaming.stream import Stream
from waitinfo.text.files import ParallelText
from waitinfo.text.prepare import PrepareOptions, prepare
from waitinfo.training import train
from waitinfo.training.display import SilentDisplay

WORDS = ["ba", "be", "bi", "bo", "bu", "da", "de", "di", "do", "du"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A subword model, trained briefly on a toy language."""
    folder = tmp_path_factory.mktemp("stream")
    pairs = [(s + ".", t + ".") for s, t in toy_pairs(800)]
    tsv = write_pairs(folder / "t.tsv", pairs)
    prepare(ParallelText(tsv=[tsv]), folder / "corpus", PrepareOptions(vocab="bpe:300", holdout=20))
    values = {
        "data": str(folder / "corpus"), "size": "tiny", "model": {"width": 64, "ffn": 64},
        "system": {"name": "wait-info", "whole_source_updates": 20},
        "training": {"updates": 200, "lr": 4e-3, "warmup": 30, "batch_tokens": 400,
                     "validate_sentences": 0, "cooldown": 0.4, "ema_decay": 0.95},
    }  # fmt: skip
    train(values, folder / "run", display=SilentDisplay())
    return folder / "run"


@pytest.fixture(scope="module")
def translator(run: Path) -> Translator:
    return load(run, streams=12, capacity=48)


def shown(events: list[Event]) -> list[str]:
    return [event.word for event in events if event.kind == "WRITE" and event.word]


def translate(translator: Translator, pieces: list[str], k: float, raw: bool) -> Stream:
    stream = translator.stream(k, raw=raw)
    for piece in pieces:
        stream.push(piece)
    stream.finish()
    return stream


def record(stream: Stream) -> list[tuple]:
    """The trace without its times."""
    return [(e.kind, e.token, e.word, e.read, e.written, e.sentence) for e in stream.trace]


def test_translates(translator: Translator) -> None:
    """More than half of the words, where chance finds one of fifteen."""
    right = total = 0
    for source, target in toy_pairs(50, seed=77):
        found, expected = (
            text.split() for text in (translator.translate(source + ".", k=9), target + ".")
        )
        right += sum(a == b for a, b in zip(found, expected, strict=False))
        total += len(expected)
    assert right > 0.5 * total, right / total


pieces_of = st.lists(st.sampled_from([*WORDS, "ba.", "be?", "  ", "😀", "e\u0301x", "42.", "שלום"]))


@settings(max_examples=40, deadline=None)
@given(words=pieces_of, k=st.sampled_from([1.0, 3.0]), data=st.data())
def test_chunking_does_not_matter(translator: Translator, words, k, data) -> None:
    text = " ".join(words)
    whole = translate(translator, [text], k, raw=True)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert record(translate(translator, pieces, k, raw=True)) == record(whole)
    assert record(translate(translator, list(text), k, raw=True)) == record(whole)
    assert record(translate(translator, text.split(), k, raw=False)) == record(whole)
    assert record(translate(translator, [text], k, raw=False)) == record(whole)


def test_events_equal_the_trace_and_only_append(translator: Translator) -> None:
    stream = translator.stream(k=1)
    events, seen = [], ""
    for word in ["ba", "be", "bi.", "do", "du", "da."]:
        new = stream.push(word)
        events += new
        assert stream.text.startswith(seen), "what was shown must stay"
        seen = stream.text
        assert [e.word for e in new if e.kind == "READ" and e.word] == [word]
    events += stream.finish()
    assert events == stream.trace
    assert " ".join(shown(events)) == stream.text
    assert [e.sentence for e in events] == sorted(e.sentence for e in events)
    assert [e.time for e in events] == sorted(e.time for e in events)
    assert all(e.lag == e.read - e.written for e in events)
    assert "\u2581" not in stream.text


def test_writing_begins_before_the_sentence_ends(translator: Translator) -> None:
    stream = translator.stream(k=1)
    early = [shown(stream.push(word)) for word in ["ba", "be", "bi", "bo", "bu"]]
    assert any(early)
    stream.close()


def test_they_say_what_they_are(translator: Translator) -> None:
    with translator.stream(k=3) as stream:
        stream.push("k0 k1 k2 k3 k4 ")
        shown = f"<Stream k=3, open: {stream.text!r}>"
        assert repr(stream) == shown
        assert f" on cpu, 1 of {translator.streams} streams" in repr(translator)
        assert translator.system.name in repr(translator)
    assert repr(stream) == shown.replace("open", "finished")


def test_empty_streams(translator: Translator) -> None:
    for pieces in ([], [""], ["   ", "\n\t"], [" \x07"]):
        stream = translate(translator, pieces, 3, raw=True)
        assert stream.trace == [] and stream.text == "" and stream.finished
    assert translator.translate("") == ""
    visible = translate(translator, ["\u200b"], 3, raw=True)
    assert [e.word for e in visible.trace if e.kind == "READ" and e.word] == ["\u200b"]


def test_many_streams_together_equal_each_alone(translator: Translator) -> None:
    draw = random.Random(4)
    texts = [
        " ".join(draw.choice(WORDS) + draw.choice(["", "", "", "."]) for _ in range(12))
        for _ in range(12)
    ]
    alone = [record(translate(translator, text.split(), 2, raw=False)) for text in texts]
    streams = [translator.stream(2) for _ in texts]
    left = [text.split() for text in texts]
    while any(left):
        chosen = [i for i in range(len(texts)) if left[i] and draw.random() < 0.6]
        translator.push_many({streams[i]: left[i].pop(0) for i in chosen})
    translator.finish_many(streams)
    assert [record(stream) for stream in streams] == alone


def test_ending_early_skips_to_the_next_sentence(run: Path) -> None:
    """If an early end is allowed, the chunking of the text must not matter."""
    translator = load(run, streams=2, capacity=48, ending="allow")
    text = "ba be bi bo bu da de di do du ba be. du do di."
    whole = record(translate(translator, [text], 1, raw=False))
    pieces = record(translate(translator, text.split(), 1, raw=False))
    assert [e for e in whole if e[0] == "WRITE"] == [e for e in pieces if e[0] == "WRITE"]
    assert whole[-1][-1] == 1, "two sentences"


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_caller_in_inference_mode(run: Path, dtype: str) -> None:
    """A stream opened there goes on outside, and the other way round."""
    text = ["ba be bi ", "bo. da ", "de di. "]
    expected = record(translate(load(run, capacity=48, dtype=dtype), text, 3, raw=False))
    with torch.inference_mode():
        translator = load(run, capacity=48, dtype=dtype)
        stream = translator.stream(3)
        stream.push(text[0])
    stream.push(text[1])
    with torch.inference_mode():
        stream.push(text[2])
    stream.finish()
    assert record(stream) == expected
    assert record(translate(translator, text, 3, raw=False)) == expected


def test_long_streams_reuse_one_slot(translator: Translator) -> None:
    stream = translator.stream(k=2)
    for number in range(60):
        stream.push(f"{WORDS[number % 10]} ba be.")
    stream.finish()
    assert stream.trace[-1].sentence == 59
    assert translator.open_streams == 0


def test_a_sentence_without_end_is_continued(translator: Translator) -> None:
    stream = translator.stream(k=1, segment="punctuation")
    for number in range(200):
        stream.push(WORDS[number % 10])
    stream.finish()
    last = stream.trace[-1].sentence
    assert last >= 3
    assert sum(e.kind == "READ" and e.word is not None for e in stream.trace) == 200
    writing = {e.sentence for e in stream.trace if e.kind == "WRITE" and e.word}
    assert writing == set(range(last + 1)), "each part writes words"


def test_a_word_longer_than_the_capacity_is_split(translator: Translator) -> None:
    stream = translate(translator, ["ba", "x" * 150, "be"], 1, raw=False)
    read = [e for e in stream.trace if e.kind == "READ"]
    assert sum(e.token == "<0x78>" for e in read) == 150, "every letter is read"
    assert [e.word for e in read if e.word] == ["ba", "x" * 150, "be"]


def test_the_dial_can_change_while_running(translator: Translator) -> None:
    stream = translator.stream(k=1)
    quick = [e for w in ["ba", "be", "bi"] for e in stream.push(w)]
    stream.k = 20
    slow = [e for w in ["bo", "bu", "da"] for e in stream.push(w)]
    stream.k = 1
    again = stream.push("de")
    assert shown(quick) and not shown(slow) and shown(again)
    with pytest.raises(WaitinfoError, match="K must be a number of at least 0"):
        stream.k = -1
    stream.close()


def test_limits_and_misuse(translator: Translator) -> None:
    streams = [translator.stream() for _ in range(12)]
    with pytest.raises(WaitinfoError, match=r"all 12 streams are in use.*each takes \d+ MiB"):
        translator.stream()
    streams[3].push("ba")
    for wrong in (None, 5, b"ba", ["ba"]):
        with pytest.raises(WaitinfoError, match="a stream takes text, not"):
            streams[4].push(wrong)
    for at in ("1", float("nan"), 10**400, [1]):
        with pytest.raises(WaitinfoError, match="at = .*: (must be a number|times are seconds)"):
            streams[4].push("ba", at=at)
    streams[4].push("ba", at=1)  # it goes on
    for stream in streams:
        stream.close()
    with pytest.raises(WaitinfoError, match="has been finished"):
        streams[0].push("ba")
    for history in (-1, 2.5, float("nan"), "9", 2**63):
        with pytest.raises(WaitinfoError, match="history = .*: must be a whole number"):
            translator.stream(history=history)
    with pytest.raises(WaitinfoError, match="not None"):
        translator.translate(None)
    for wrong in ({"streams": "x"}, {"streams": 0}, {"capacity": 2.5}, {"capacity": 1}):
        with pytest.raises(WaitinfoError, match="must be a whole number of at least"):
            Translator(translator.loaded, **wrong)
    assert translator.open_streams == 0
    translator.stream().close()


def test_async_streams_run_together(translator: Translator) -> None:
    expected = [record(translate(translator, text.split(), 2, raw=False)) for text in TEXTS]

    async def speak(server: AsyncTranslator, text: str) -> Stream:
        stream = server.stream(k=2)
        events = []
        for word in text.split():
            events += await stream.push(word)
            await asyncio.sleep(0)
        events += await stream.finish()
        assert events == stream.trace
        return stream

    async def everyone() -> list[Stream]:
        server = AsyncTranslator(translator)
        found = await asyncio.gather(*(speak(server, text) for text in TEXTS))
        server.close()
        return found

    assert [record(stream) for stream in asyncio.run(everyone())] == expected


TEXTS = ["ba be bi. bo bu", "du do di de da", "ba", "", "be be be be be be be."]


@pytest.mark.parametrize(
    ("word", "ends"),
    [
        ("Ende.", True), ("Wirklich?", True), ("Ja!", True), ("Ende.“", True), ('end."', True),
        ("(so.)", True), ("1999.", True), ("wait...", True), ("…", True), ("好。", True),
        ("Komma,", False), ("z.B.", False), ("Dr.", False), ("U.S.", False), ("e.g.", False),
        ("3.", False), ("24.", False), ("3.14", False), ("J.", False), ("(vgl.", False),
        ("bzw.", False), (".", False), ("-", False), ("", False), ("etc.", False), ("No.", True),
    ],
)  # fmt: skip
def test_sentence_ends(word: str, ends: bool) -> None:
    assert ends_sentence(word) is ends
