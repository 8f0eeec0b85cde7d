"""The text side of a stream, without an engine: words to tokens, tokens to words."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest

from tests.streams import toy_tokenizer
from waitinfo.streaming.engine import READ, WRITE, Kind, TokenEvent
from waitinfo.streaming.segmenter import Segmentation
from waitinfo.streaming.session import Session
from waitinfo.streaming.words import WordBuilder, WordPart
from waitinfo.text.special import EOS
from waitinfo.text.tokenizer import Tokenizer, Vocabulary


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


class Counted(list[int]):
    """Counts how many tokens are copied."""

    copied = 0

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        if isinstance(place, slice):
            Counted.copied += len(found)
            return Counted(found)
        return found


def test_cutting_a_long_word_copies_every_token_once() -> None:
    stream = session(limit=20)
    stream._reader.queue.append(WordPart("word", Counted(ids("a") * 4_000)))
    Counted.copied = taken = 0
    while (found := stream.next_input()) is not None and found.tokens:
        taken += len(found.tokens)
        stream.record(token(WRITE, EOS, len(found.tokens) + 1, 1, last=True), 0.0)
    assert taken == Counted.copied == len(ids("a")) * 4_000


def test_showing_a_long_word_decodes_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A word without end, as a model writes that has lost its way."""
    stream = session()
    tokenizer = stream.vocabulary.target
    inside = next(
        t for t in range(4, len(tokenizer))
        if not (tokenizer.starts_word(t) or tokenizer.is_byte(t)) and tokenizer.piece(t).isascii()
    )  # fmt: skip
    decode, decoded = Tokenizer.decode, []

    def counted(self: Tokenizer, tokens: Iterable[int]) -> str:
        decoded.append(len(given := list(tokens)))
        return decode(self, given)

    monkeypatch.setattr(Tokenizer, "decode", counted)
    builder = WordBuilder(tokenizer)
    assert not any(builder.add(inside) for _ in range(2_000))
    assert builder.add(inside, last=True) == tokenizer.piece(inside) * 2_001
    assert sum(decoded) <= 2_001 + 1


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


@pytest.mark.parametrize("module", ["session", "event", "segmenter", "words", "window"])
def test_the_text_side_needs_no_torch(module: str) -> None:
    script = f"import sys, waitinfo.streaming.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
