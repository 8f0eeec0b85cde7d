"""Tokenizers: no text is lost, and no token crosses a space."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waitinfo.errors import WaitinfoError
from waitinfo.text.files import normalise
from waitinfo.text.special import SPECIALS, UNK
from waitinfo.text.tokenizer import (
    Tokenizer,
    Vocabulary,
    VocabularySpec,
    fitting_size,
    train_tokenizer,
)

LINES = [f"der Hund {a} läuft {b} schnell" for a in "abcdefgh" for b in "uvwxyz"]


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train_tokenizer(LINES, VocabularySpec("bpe", 320))[0]


@settings(max_examples=300)
@given(st.text(st.characters()))
def test_bpe_represents_any_text(bpe: Tokenizer, text: str) -> None:
    tokens = bpe.encode(text)
    assert bpe.decode(tokens) == normalise(text)
    assert UNK not in tokens


@settings(max_examples=200)
@given(st.text(st.characters()))
def test_words_can_be_tokenized_one_by_one(bpe: Tokenizer, text: str) -> None:
    words = normalise(text).split(" ") if normalise(text) else []
    assert bpe.encode(text) == [token for word in words for token in bpe.encode(word)]


def test_every_word_starts_once(bpe: Tokenizer) -> None:
    text = "der Hund läuft zum Café 😀 !"
    assert sum(bpe.starts_word(token) for token in bpe.encode(text)) == len(text.split())


def test_large_vocabulary_is_reduced_with_a_note() -> None:
    tokenizer, note = train_tokenizer(LINES, VocabularySpec("bpe", 16000))
    assert len(tokenizer) < 16000
    assert note is not None and "reduced from 16,000" in note


@pytest.mark.parametrize(
    ("lines", "size"),
    [
        (["ein Wort"] * 10, 1000),
        (["der Hund bellt heute laut"] * 16_000, 2500),  # 8 times the root of 80,000: 2,263
        (["a b c d e f g h i j"] * 500_000, 16_000),
        (["猫と犬"] * 120_000, 4003),  # 1 and 3 // 2 words a line, and three characters
    ],
)
def test_a_vocabulary_fits_its_text(lines: list[str], size: int) -> None:
    assert fitting_size(lines) == size


def test_a_vocabulary_that_fits_is_not_said_to_be_reduced() -> None:
    tokenizer, note = train_tokenizer(LINES, VocabularySpec.parse("bpe"))
    assert len(tokenizer) < 1000 and note is None


def test_small_vocabulary_is_rejected() -> None:
    with pytest.raises(WaitinfoError, match="bpe:50: too small"):
        train_tokenizer(LINES, VocabularySpec("bpe", 50))


def test_words_keeps_only_frequent_words() -> None:
    lines = ["a a a b b c", "a b d d d d e", "f"]
    counts = Counter(word for line in lines for word in line.split())
    for threshold in (1, 2, 3, 4):
        tokenizer, _ = train_tokenizer(lines, VocabularySpec("words", threshold))
        frequent = {word for word, count in counts.items() if count >= threshold}
        assert len(tokenizer) == len(frequent) + SPECIALS
        for word in counts:
            assert (tokenizer.encode(word) == [UNK]) == (word not in frequent)
    assert tokenizer.decode(tokenizer.encode("a zzz d")) == "a <unk> d"


@pytest.mark.parametrize("text", ["bpe:", "bpe:x", "word:5", "words:0", ""])
def test_bad_specifications(text: str) -> None:
    with pytest.raises(WaitinfoError, match="not understood"):
        VocabularySpec.parse(text)


def test_vocabulary_folder(tmp_path: Path, bpe: Tokenizer) -> None:
    Vocabulary(bpe, bpe).save(tmp_path)
    loaded = Vocabulary.load(tmp_path)
    assert loaded.joint and loaded.source.encode(LINES[0]) == bpe.encode(LINES[0])
    other, _ = train_tokenizer(LINES, VocabularySpec("words", 1))
    Vocabulary(bpe, other).save(tmp_path)
    assert not Vocabulary.load(tmp_path).joint
    (tmp_path / "tokenizer.model").write_bytes(b"nonsense")
    with pytest.raises(WaitinfoError, match="not a SentencePiece model"):
        Vocabulary.load(tmp_path)


def test_adjacent_unknown_words_stay_separate() -> None:
    """Otherwise a sentence would not have the same tokens as its words one by one in a stream."""
    tokenizer, _ = train_tokenizer(["the cat sat", "the dog sat"] * 3, VocabularySpec("words", 1))
    text = "the foo bar cat foo"
    words = [tokenizer.encode(word) for word in text.split()]
    assert tokenizer.encode(text) == [token for word in words for token in word]
    assert tokenizer.encode(text).count(UNK) == 3
    assert tokenizer.encode_many([text, "cat"]) == [tokenizer.encode(text), tokenizer.encode("cat")]
