"""Words, positions and replays from events, on a case worked by hand."""

from __future__ import annotations

import re
from functools import cache
from typing import Literal

import pytest

pytest.importorskip("pydantic", reason="needs the extra serve")

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.streams import toy_model, toy_tokenizer
from waitinfo import Translator
from waitinfo.serving.protocol import Resume, Words
from waitinfo.serving.transcript import Surrogates, Transcript, replay_of
from waitinfo.streaming import replay as replay_module
from waitinfo.streaming.event import Event
from waitinfo.streaming.replay import SourceText
from waitinfo.streaming.words import Reader
from waitinfo.text.files import normalise
from waitinfo.text.scripts import PILE, piles_marks


def event(
    kind: Literal["READ", "WRITE"], token: str, word: str | None, read: int, written: int,
    info: float = 0.5, sentence: int = 0, text: str = "",
) -> Event:  # fmt: skip
    return Event(kind, token, word, info, read, written, 0.5 * read, 0.5 * written, read - written,
                 sentence, time=float(read), text=text)  # fmt: skip


# "eins zwei. drei" is read as 1 + 2 + 1 tokens; "on-e two" and "thr…" are written.
EVENTS = [
    event("READ", "▁eins", "eins", 1, 0),
    event("READ", "▁zw", None, 2, 0),
    event("WRITE", "▁o", None, 2, 1),
    event("READ", "ei.", "zwei.", 3, 1),
    event("WRITE", "n", None, 3, 2),
    event("WRITE", "▁t", "on", 3, 3, text="on"),
    event("READ", "</s>", None, 4, 3),
    event("WRITE", "</s>", "t", 4, 4, text=" t"),
    event("READ", "▁drei", "drei", 1, 0, sentence=1),
    event("WRITE", "▁t", None, 1, 1, sentence=1),
]


@cache
def toy() -> Translator:
    return Translator(toy_model(), streams=99)


def transcript(resume: Resume | None = None) -> Transcript:
    found = Transcript(toy().stream(replay=None if resume is None else replay_of(resume)))
    found.source.add("eins  zwei. drei "[found.source.received :])
    return found


def test_a_case_worked_by_hand() -> None:
    one = transcript()
    found = one.take(EVENTS[:6], trace=False)
    assert found is not None and found.text == "on" and found.position == 11
    (word,) = found.words
    assert word.model_dump() == {
        "word": "on", "text": "on", "sentence": 0, "info": 1.0, "read": 2, "position": 11, "lag": 2,
        "source_info": 1.0, "target_info": 0.0, "time": 3.0,
    }  # fmt: skip
    assert found.replay.position == 0 and [read for _, read in found.replay.path] == [2, 3, 3]
    assert found.replay.read == 3 and found.replay.sentence == 0
    rest = one.take(EVENTS[6:], trace=True)
    assert rest is not None and [(w.word, w.lag) for w in rest.words] == [("t", 1)]
    assert rest.text == " t"
    assert rest.replay.position == 11 and rest.replay.sentence == 1
    assert [read for _, read in rest.replay.path] == [1] and rest.replay.read == 1
    assert rest.trace == [e.as_dict() for e in EVENTS[6:]]
    assert one.words_out == 2 and one.lags == 3


@pytest.mark.parametrize("cut", range(1, len(EVENTS) + 1))
def test_a_resumed_stream_repeats_nothing(cut: int) -> None:
    """After any cut, the events of the sentence come again, and the rest is reported."""
    whole = transcript().take(EVENTS, trace=True)
    before = transcript().take(EVENTS[:cut], trace=True)
    assert whole is not None and whole.trace is not None
    assert before is not None and before.trace is not None
    replay = before.replay
    again = transcript(Resume(**replay.model_dump()))
    events = [event for event in EVENTS if event.sentence >= replay.sentence]
    after = again.take(events, trace=True)
    shown = after.trace if after is not None and after.trace is not None else []
    assert before.trace + shown == whole.trace
    assert before.words + (after.words if after else []) == whole.words


def messages(server: Translator, text: str, segment: str, resume: Resume | None) -> list[Words]:
    """What a client is sent that hands in this text in small pieces, resumed or not."""
    replay = None if resume is None else replay_of(resume)
    stream = server.stream(2, raw=True, segment=segment, replay=replay)
    found = Transcript(stream)
    sent = []
    for piece in re.findall(".{1,3}", text):
        found.source.add(piece)
        sent.append(found.take(stream.push(piece), trace=False))
    sent.append(found.take(stream.finish(), trace=False))
    return [words for words in sent if words is not None]


@pytest.mark.parametrize("segment", ["auto:9", "none:8", "punctuation", "whole"])
def test_a_word_longer_than_a_window_is_not_translated_again(segment: str) -> None:
    """A stream is resumed after each of its messages, also within such a word's neighbours."""
    server = Translator(toy_model(), streams=1, capacity=24)
    text = f"ba be. bi {'bododu' * 12}. ba be bi {'dadedi' * 3} bo da de. di do du"
    whole = messages(server, text, segment, None)
    shown = "".join(message.text for message in whole)
    assert len(whole) > 2
    path: list = []
    for number, message in enumerate(whole):
        replay = message.replay.model_dump()
        new = number and replay["sentence"] != whole[number - 1].replay.sentence
        path = [*([] if new else path), *replay["path"]]
        resume = Resume.model_validate({**replay, "path": path})
        again = messages(server, text[resume.position :], segment, resume)
        before = "".join(earlier.text for earlier in whole[: number + 1])
        assert before + "".join(later.text for later in again) == shown


@given(st.lists(st.text("ab \t\u00a0\u0007e\u0301😀", max_size=6)))
def test_positions_are_ends_of_words(pieces: list[str]) -> None:
    """However text is cut, each word read moves the position to its end."""
    text = "".join(pieces)
    source = SourceText(100)
    for piece in pieces:
        source.add(piece)
    source.cut()
    for word in re.finditer(r"[^\s\x07]+", text):
        assert source.inside == (source.position == 100 + word.start())
        source.read(normalise(word.group()))
        assert source.aligned and source.position == 100 + word.end()
    assert source.received == 100 + len(text)


@given(st.text("ab日か\u3099。 ", max_size=30), st.lists(st.integers(1, 4)), st.integers(1, 9))
def test_positions_inside_words_without_spaces(text: str, lengths: list[int], cut: int) -> None:
    """Some characters at a time are read; a kana and its mark are two characters, and read as one.

    A mark is never read alone.
    """
    source = SourceText()
    for place in range(0, len(text), cut):
        source.add(text[place : place + cut])
    letters = [(m.group(), m.end()) for m in re.finditer("[^ \u3099]\u3099*|\u3099+", text)]
    while letters:
        count = lengths.pop() if lengths else 1
        word = "".join(letter for letter, _ in letters[:count])
        end = letters[:count][-1][1]
        del letters[:count]
        for part in re.findall(r"\S+", text[source.position : end]):
            source.read(normalise(part))
        assert source.aligned and source.position == end, word
    assert source.longest_word("") <= len(text)


NASTY = (
    "ab日か\u3099。\u0301\u0316\u0323é \n\u0007\u200b😀\u1112\u1161\u11ab\u0cc6\u0cc2\u0cd5"
    "\u09c7\u09be\u212bﬁ\uf900\u0344ｶﾞ\u2581\u3000\u037e\u1fef\u0f71\u0f80\u1e9b\u0958"
)


@settings(max_examples=300)
@given(st.lists(st.text(NASTY, min_size=1, max_size=9), max_size=5), st.booleans())
def test_positions_follow_the_tokenizer_through_any_text(pieces: list[str], flush: bool) -> None:
    """However letters are joined, split and sorted, all that was read is found in the text."""
    source, reader = SourceText(), Reader(toy_tokenizer(), raw=True)
    for piece in [*pieces, ""]:
        source.add(piece)
        reader.add(piece)
        if flush or not piece:
            source.cut()
            reader.end()
        for found in reader.queue:
            if found and found.text:
                source.read(found.text)
        reader.queue.clear()
    assert source.aligned
    assert not any(map(str.isprintable, "".join(pieces)[source.position :].replace(" ", "\n")))


@pytest.mark.parametrize("letter", ["e\u0301", "\u1112\u1161\u11ab", "か\u3099", "\u0344"])
def test_a_long_word_of_joined_letters_is_found_in_one_pass(
    letter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []

    def noted(text: str) -> str:
        looked.append(len(text))
        return normalise(text)

    monkeypatch.setattr(replay_module, "normalise", noted)
    source, word = SourceText(), letter * 1_000
    source.add(word)
    source.read(normalise(word))
    assert source.aligned and source.position == len(word) and sum(looked) <= 2 * len(word)


def test_piles_of_marks() -> None:
    source = SourceText()
    assert not piles_marks("e" + "\u0301" * PILE + " " + "é" * 999 + "!" * 999 + "—" * 999)
    assert piles_marks("e" + "\u0301\u0316" * PILE) and piles_marks("\u1112" + "\u1161" * 99)
    source.add("e" + "\u0301" * 40)  # it may come in pieces
    assert source.piles_marks("\u0301" * 40) and not source.piles_marks("e" + "\u0301" * 40)


@given(st.lists(st.text("a😀\u00e9", max_size=4), max_size=4))
def test_surrogates_are_joined(pieces: list[str]) -> None:
    text = "".join(pieces)
    units = text.encode("utf-16-le", "surrogatepass")
    halves = [
        units[n : n + 2].decode("utf-16-le", "surrogatepass") for n in range(0, len(units), 2)
    ]
    joined = Surrogates()
    assert "".join(joined.add(half) for half in halves) == text


def test_endless_spaces_are_forgotten() -> None:
    """A client may send them for ever, and no word."""
    source = SourceText()
    source.add("ba")
    source.read("ba")
    for _ in range(100):
        source.add(" \n\t\x00" * 100)
        assert len(source._text) <= 400 and source.ahead <= 400
    source.add("be ")
    source.read("be")
    assert source.position == 2 + 100 * 400 + 2 and source.aligned and not source.inside
