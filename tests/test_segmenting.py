"""Streams with and without sentence ends: any chunks, any length; nothing is lost or taken back."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.streams import WORDS, record, some_text, toy_model
from waitinfo import Translator
from waitinfo.errors import WaitinfoError
from waitinfo.streaming.event import Event
from waitinfo.streaming.segmenter import Pauses, Segmentation
from waitinfo.streaming.stream import Stream
from waitinfo.streaming.window import Boundary, Cut, Window

SEGMENTS = ["auto:9", "none:8", "none:8", "pause", "punctuation", "whole"]


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator(toy_model(), streams=3, capacity=64)


def translate(
    translator: Translator, pieces: list[str], segment: str, raw: bool = True, k: float = 2
) -> list[Event]:
    stream = translator.stream(k, raw, segment, history=0)
    events = []
    for piece in pieces:
        events += stream.push(piece, at=0.0)
    return events + stream.finish()


def words_read(events: list[Event]) -> list[str]:
    return [event.word for event in events if event.kind == "READ" and event.word]


def plain(draw: random.Random, count: int) -> str:
    return " ".join(draw.choices(WORDS, k=count))


@settings(max_examples=12)
@given(st.sampled_from(SEGMENTS), st.booleans(), st.integers(0, 10**6), st.data())
def test_chunking_does_not_matter(
    translator: Translator, segment: str, punctuated: bool, seed: int, data: st.DataObject
) -> None:
    draw = random.Random(seed)
    text = some_text(draw, 9) if punctuated else plain(draw, 16)
    text += " " + plain(draw, draw.randrange(12))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    whole = translate(translator, [text], segment)
    assert record(translate(translator, pieces, segment)) == record(whole)
    assert record(translate(translator, text.split(), segment, raw=False)) == record(whole)
    assert words_read(whole) == text.split(), "every word is read, once and in order"


@pytest.mark.parametrize("name", ["wait-info", "mma", "gsimt", "moe-wait-k", "full"])
def test_every_system_can_go_on_without_sentence_ends(name: str) -> None:
    translator = Translator(toy_model(name), streams=2, capacity=13)
    k = None if name in ("mma", "gsimt", "full") else 2.0
    text = plain(random.Random(4), 20)
    stream = translator.stream(k, segment="none", history=0)
    events = [event for word in text.split() for event in stream.push(word)] + stream.finish()
    together = translator.stream(k, segment="none", history=0)
    whole = together.push(text) + together.finish()
    assert record(events) == record(whole)
    assert words_read(events) == text.split() and events[-1].sentence > 0


def test_auto_is_punctuation_where_the_text_has_it(translator: Translator) -> None:
    """A sentence may even be longer than the window, once the text has shown its punctuation."""
    draw = random.Random(1)
    text = f"{some_text(draw, 6)}. {plain(draw, 20)} ba. {some_text(draw, 4)}"
    found = [translate(translator, [text], segment) for segment in ("auto:16", "punctuation")]
    assert record(found[0]) == record(found[1])
    assert max(event.read for event in found[0]) > 20


def test_auto_follows_the_text(translator: Translator) -> None:
    """Unpunctuated text moves through a window; after a sentence end, sentences count again."""
    text = plain(random.Random(2), 36)
    events = translate(translator, [text], "auto:16")
    assert max(event.read for event in events) <= 17 and events[-1].sentence > 2
    rest = "ba be bi. " + plain(random.Random(3), 18) + "."
    events = translate(translator, [f"{text} {rest}"], "auto:16")
    last = [event for event in events if event.sentence == events[-1].sentence]
    assert " ".join(words_read(last)) == rest.removeprefix("ba be bi. "), "one long sentence"


def sizes(stream: Stream) -> list[int]:
    """Everything that a stream keeps of its text, counted."""
    engine, channel = stream._scheduler.engine, stream._channel
    session, state, slot = channel.session, engine.state, channel.slot
    assert slot is not None
    window, reader, builder = session._window, session._reader, session._builder
    return [
        *map(len, (window.words, window.starts, window.marks, window.reads)),
        *map(len, (reader.queue, reader._letters, builder._open, channel.inbox)),
        state.length.item(slot),
        state.written.item(slot),
    ]


@pytest.mark.parametrize("segment", ["none:12", "auto:12"])
def test_hours_without_a_sentence_end_stay_bounded(translator: Translator, segment: str) -> None:
    draw = random.Random(9)
    stream = translator.stream(2, segment=segment, history=10)
    lags, largest, read, shown = [], 0, 0, 0
    for _ in range(150):
        word = draw.choice(WORDS)
        events = stream.push(word)
        assert words_read(events) == [word], "a word is read when it comes"
        largest = max(largest, *sizes(stream))
        lags += [event.lag for event in events]
        read += sum(event.kind == "READ" for event in events)
        shown += sum(event.kind == "WRITE" for event in events)
    events = stream.finish()
    assert largest <= 2 * 12 + 10 + 1 and max(lags) <= 13
    assert events[-1].sentence > 150 // 12, "the window has moved on all the time"
    assert shown > 150 // 12


def test_what_was_shown_stays(translator: Translator) -> None:
    stream = translator.stream(2, segment="none:12", history=None)
    seen = ""
    for word in plain(random.Random(5), 30).split():
        events = stream.push(word)
        assert stream.text == seen + "".join(event.text for event in events).lstrip(
            "" if seen else " "
        )
        seen = stream.text
    stream.finish()
    assert stream.text.startswith(seen)


# Pauses


def test_pauses_by_hand() -> None:
    pauses = Pauses(1.0)
    times = [(0.0, True), (0.5, True), (1.5, True), (2.0, False), (2.5, False), (9.0, True)]
    assert [pauses.found(at, words) for at, words in times] == [
        False, False, True, False, True, False,
    ]  # fmt: skip


def sentences(events: list[Event]) -> list[str]:
    count = events[-1].sentence + 1
    return [" ".join(words_read([e for e in events if e.sentence == n])) for n in range(count)]


def test_a_pause_ends_a_sentence(translator: Translator) -> None:
    stream = translator.stream(9, segment="pause:0.5", history=0)
    events = []
    for word, at in [("ba", 0.0), ("be.", 0.4), ("bi", 0.8), ("bo", 1.4), ("bu", 1.5)]:
        events += stream.push(word, at=at)
    assert sentences(events) == ["ba be. bi", "bo bu"]
    late = stream.push("", at=2.0)
    assert late[-1].token == "</s>", "time that passes without words ends a sentence too"
    with pytest.raises(WaitinfoError, match=r"at = 1\.9: times are seconds and must not go back"):
        stream.push("da", at=1.9)
    with pytest.raises(WaitinfoError, match="at = nan"):
        stream.push("da", at=float("nan"))
    events = stream.push("da", at=2.1) + stream.finish()
    assert words_read(events) == ["da"]


def test_pauses_in_real_time() -> None:
    now = [100.0]
    translator = Translator(
        toy_model(), streams=1, capacity=64, segment="pause", clock=lambda: now[0]
    )
    stream = translator.stream(9, raw=True, history=0)
    events = []
    for text, wait in [("ba b", 0.6), ("e", 0.6), (" bi", 1.1), ("bo", 0.1), ("bu ", 0.0)]:
        events += stream.push(text)
        now[0] += wait
    events += stream.finish()
    assert sentences(events) == ["ba be bi", "bobu"], "a pause also ends a word"


def test_times_do_not_matter_without_pauses(translator: Translator) -> None:
    stream = translator.stream(2, segment="punctuation", history=0)
    found = [e for n, w in enumerate(["ba", "be.", "bi"]) for e in stream.push(w, at=100.0 * n)]
    assert record(found + stream.finish()) == record(
        translate(translator, ["ba be. bi"], "punctuation")
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auto", Segmentation("auto")), ("none:40", Segmentation("none", window=40)),
        ("pause:0.7", Segmentation("pause", pause=0.7)), ("whole", Segmentation("whole")),
    ],
)  # fmt: skip
def test_segmentation_is_parsed(text: str, expected: Segmentation) -> None:
    assert Segmentation.parse(text) == expected


@pytest.mark.parametrize(
    "text", ["", "words", "none:7", "none:8.5", "pause:0", "pause:nan", "whole:3", "auto:inf"]
)
def test_wrong_segmentations(text: str) -> None:
    with pytest.raises(WaitinfoError, match="segment"):
        Segmentation.parse(text)


# Windows


def window(starts: str, marks: str, reads: list[int]) -> Window:
    """`starts` has an x where a source word starts; `marks` has w and s after words, sentences."""
    found = Window()
    found.starts = [letter == "x" for letter in starts]
    found.words = ["w" if start else None for start in [*found.starts[1:], True]]
    codes = {"-": Boundary.NOTHING, "w": Boundary.WORD, "s": Boundary.SENTENCE}
    found.marks = [codes[letter] for letter in marks]
    found.reads, found.shown = reads, [0] * len(marks)
    return found


def diagonal(columns: list[int], width: int) -> np.ndarray:
    return np.eye(width)[columns]


def test_a_full_window_is_cut_where_a_sentence_ended() -> None:
    """Six words of one token; two sentences of three words, translated one to one."""
    found = window("xxxxxx", "wwswww", [2, 3, 4, 5, 6, 6])
    assert found.cut_full(diagonal([0, 1, 2, 3, 4, 5], 6), 1) == Cut(3, 3)
    # The first words of the second sentence look at the third word: it stays.
    assert found.cut_full(diagonal([0, 1, 1, 2, 2, 5], 6), 1) == Cut(2, 3)


def test_a_full_window_without_a_sentence_end_is_cut_in_the_middle() -> None:
    found = window("xxxxxx", "w-w-w-", [2, 3, 4, 5, 6, 6])
    assert found.cut_full(diagonal([0, 1, 2, 3, 4, 5], 6), 1) == Cut(3, 3)
    assert found.cut_full(diagonal([0, 0, 0, 0, 0, 0], 6), 2) is None, "it would hardly move on"
    assert window("xxxx", "", []).cut_full(np.zeros((0, 4)), 1) is None, "nothing was written"


def test_words_are_not_divided() -> None:
    found = window("x-x--x", "wwswww", [3, 4, 5, 6, 6, 6])
    assert found.cut_full(diagonal([0, 1, 3, 4, 5, 5], 6), 1) == Cut(2, 3)


def test_after_the_models_own_end_the_rest_stays() -> None:
    """Three words were translated and five read: the last token is end-of-sentence."""
    found = window("xxxxx", "wwws", [3, 4, 5, 5])
    weights = np.zeros((3, 5))
    weights[range(3), range(3)] = 1
    assert found.cut_ended(weights) == Cut(3, 4)
    # Every token also looks at the beginning, and few tokens see the end; that says nothing.
    assert found.cut_ended(0.3 * weights + 0.2 * np.eye(5)[[0, 0, 1]]) == Cut(3, 4)
    # A word of three tokens leaves as a whole, and not more than was read before the end.
    assert window("xx--x", "wwws", [3, 4, 4, 5]).cut_ended(weights) == Cut(4, 4)
    assert window("xxxxx", "wwws", [3, 4, 4, 5]).cut_ended(np.eye(5)[[0, 3, 4]]) == Cut(4, 4)


@given(st.integers(1, 8), st.integers(2, 8), st.integers(0, 10**6))
def test_only_what_was_read_leaves_a_window(source: int, target: int, seed: int) -> None:
    draw = random.Random(seed)
    starts = "x" + "".join(draw.choices("x-", k=source - 1))
    reads = sorted(draw.randint(1, source) for _ in range(target))
    found = window(starts, "".join(draw.choices("-ws", k=target)), reads)
    weights = np.random.default_rng(seed).random((target, source))
    if (cut := found.cut_full(weights, 1)) is not None:
        assert 1 <= cut.source <= reads[cut.target - 1] and 1 <= cut.target < target
        assert cut.source == source or found.starts[cut.source]
        assert found.marks[cut.target - 1]
    cut = found.cut_ended(weights[:-1])
    assert 1 <= cut.source <= reads[-2] and cut.target == target
    found.drop(cut)
    assert found.kept == 0 and len(found.words) == source - cut.source
