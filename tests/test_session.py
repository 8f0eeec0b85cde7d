"""The text side of a stream, without an engine: words to tokens, tokens to words."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.streams import toy_tokenizer
from waitinfo.streaming.engine import READ, WRITE, Kind, TokenEvent
from waitinfo.streaming.segmenter import Segmentation
from waitinfo.streaming.session import Session
from waitinfo.text.special import EOS
from waitinfo.text.tokenizer import Vocabulary


def session(limit: int = 20, segment: str = "punctuation", **options: bool) -> Session:
    tokenizer = toy_tokenizer()
    segmentation = Segmentation.parse(segment)
    return Session(Vocabulary(tokenizer, tokenizer), limit, segmentation=segmentation, **options)


def ids(text: str) -> list[int]:
    return toy_tokenizer().encode(text)


def token(kind: Kind, token: int, read: int, written: int, last: bool = False) -> TokenEvent:
    return TokenEvent(0, kind, token, 0.5, read, written, 1.5, 0.5, last)


def test_words_become_tokens_up_to_the_end_of_the_sentence() -> None:
    text = session()
    text.add("ba be. bi")
    assert text.next_input() == (ids("ba be."), True)
    assert text.next_input() is None, "the engine is still at the first sentence"
    text.record(token(WRITE, EOS, 5, 1, last=True), 0.0)
    assert text.next_input() == (ids("bi"), False)
    assert text.next_input() is None
    text.end()
    assert text.next_input() == ([], True)


def test_raw_text_waits_for_the_end_of_a_word() -> None:
    text = session(raw=True)
    for piece, expected in (("b", None), ("a", None), (" b", "ba"), ("", None), ("e ", "be")):
        text.add(piece)
        found = text.next_input()
        assert found == (None if expected is None else (ids(expected), False))


def test_sentences_without_segmentation_end_at_the_end() -> None:
    text = session(segment="whole")
    text.add("ba. be!")
    assert text.next_input() == (ids("ba. be!"), False)
    text.end()
    assert text.next_input() == ([], True)


def test_a_sentence_that_is_too_long_is_continued() -> None:
    text = session(limit=4)
    words = ["ba", "be", "bi", "bo", "bu"]
    text.add(" ".join(words))
    text.end()
    found = []
    while (part := text.next_input()) is not None:
        assert 0 < len(part.tokens) <= 4 and part.complete
        found += part.tokens
        text.record(token(WRITE, EOS, len(part.tokens) + 1, 1, last=True), 0.0)
    assert found == ids(" ".join(words))


def test_a_word_that_is_too_long_is_cut() -> None:
    text = session(limit=4)
    text.add("x" * 10)
    text.end()
    found, words = [], []
    while (part := text.next_input()) is not None:
        for number, piece in enumerate(part.tokens, 1):
            words.append(text.record(token(READ, piece, number, 0), 0.0)[0].word)
        found += part.tokens
        text.record(token(WRITE, EOS, len(part.tokens) + 1, 1, last=True), 0.0)
    assert found == ids("x" * 10)
    assert [word for word in words if word] == ["x" * 10]


def test_events_contain_the_words_read_and_shown() -> None:
    text = session()
    text.add("ba be.")
    (tokens, _) = text.next_input()
    read = [text.record(token(READ, t, n, 0), 2.5)[0] for n, t in enumerate([*tokens, EOS], 1)]
    assert [e.word for e in read if e.word] == ["ba", "be."] and read[-1].token == "</s>"
    assert all(e.time == 2.5 and e.sentence == 0 and e.info == 0.5 for e in read)
    assert [e.lag for e in read] == list(range(1, len(read) + 1))
    written = [
        text.record(token(WRITE, t, len(read), n, t == EOS), 3.0)[0]
        for n, t in enumerate([*ids("abs ebs"), EOS], 1)
    ]
    assert [e.word for e in written if e.word] == ["abs", "ebs"]
    assert written[-1].word == "ebs", "the end of the sentence completes the last word"
    assert text.sentence == 1


def test_words_after_an_early_end_are_skipped() -> None:
    text = session()
    text.add("ba be")
    text.next_input()
    text.record(token(WRITE, EOS, 1, 1, last=True), 0.0)  # the model ends before the source does
    text.add("bi bo. bu")
    assert text.next_input() == (ids("bu"), False)


@pytest.mark.parametrize(
    "module", ["session", "event", "observer", "segmenter", "reader", "window"]
)
def test_the_text_side_needs_no_torch(module: str) -> None:
    script = f"import sys, waitinfo.streaming.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
