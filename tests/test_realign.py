"""Realignment of long translations to reference sentences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations_with_replacement, pairwise
from math import inf
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracle import edits
from waitinfo.errors import WaitinfoError
from waitinfo.evaluation import edit_alignment, soft_alignment
from waitinfo.evaluation.edit_alignment import Pairs
from waitinfo.evaluation.realign import METHODS, realign

WORDS = st.sampled_from(["the", "cat", "sat", "a", "mat", "dog", "-", "The", "cats"])
REFERENCES = st.lists(st.lists(WORDS, max_size=4), min_size=1, max_size=4)


@given(st.lists(WORDS, max_size=9), REFERENCES, st.sampled_from(["soft", "mwer"]))
def test_every_word_has_one_sentence(words: list[str], references: list, method: str) -> None:
    found = realign(words, references, method)
    assert len(found) == len(references)
    if any(references):
        assert [i for place in found for i in place] == list(range(len(words)))
    assert all(references[i] or not place for i, place in enumerate(found))


@given(st.lists(WORDS, max_size=7), REFERENCES)
def test_edits_are_as_few_as_any_segmentation_has(words: list[str], references: list) -> None:
    if not all(references):
        return
    lowered = [word.lower() for word in words]

    def cost(ends: tuple[int, ...]) -> int:
        parts = pairwise((0, *ends, len(words)))
        return sum(
            edits([w.lower() for w in reference], lowered[start:end])
            for reference, (start, end) in zip(references, parts, strict=True)
        )

    places = range(len(words) + 1)
    least = min(map(cost, combinations_with_replacement(places, len(references) - 1)))
    found = realign(words, references, "mwer")
    assert cost(tuple(place.stop for place in found[:-1])) == least


def plain_alignment(reference: list[str], words: list[str], method: str) -> Pairs:
    """The whole table, cell by cell; a match first, then a reference word that is left out."""
    similarity = METHODS[method].similarity
    gap = {"soft": 0, "mwer": 1}[method]
    table = [[-gap * (i + j) for j in range(len(words) + 1)] for i in range(len(reference) + 1)]

    def steps(i: int, j: int) -> tuple[float, float, float]:
        match = table[i - 1][j - 1] + similarity(reference[i - 1], words[j - 1])
        return match, table[i - 1][j] - gap, table[i][j - 1] - gap

    for i in range(1, len(reference) + 1):
        for j in range(1, len(words) + 1):
            table[i][j] = max(steps(i, j))
    pairs: Pairs = []
    i, j = len(reference), len(words)
    while i or j:
        found = steps(i, j) if i and j else (-inf, 0 if i else -inf, 0)
        step = found.index(max(found))  # the first of equal ones
        i -= step != 2
        j -= step != 1
        pairs.append((None if step == 2 else i, None if step == 1 else j))
    return pairs[::-1]


@contextmanager
def small_tables(corridor: int = 1) -> Iterator[None]:
    """Tables are cut into parts of a few cells."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edit_alignment, "BLOCK", 2)
        for name, value in {"LANES": 2, "ROWS": 2, "TILE": 4, "CORRIDOR": corridor}.items():
            patch.setattr(soft_alignment, name, value)
        yield


TEXT = st.lists(WORDS, min_size=1, max_size=30)


@given(TEXT, TEXT, st.sampled_from(sorted(METHODS)), st.integers(0, 4))
def test_alignments_are_those_of_the_whole_table(
    reference: list[str], words: list[str], method: str, corridor: int
) -> None:
    expected = plain_alignment(reference, words, method)
    assert METHODS[method].align(reference, words) == expected
    with small_tables(corridor):
        assert METHODS[method].align(reference, words) == expected


@given(st.integers(0, 1000), st.sampled_from([0.0, 0.3, 0.7, 1.0]))
@settings(max_examples=20)
def test_long_texts_are_aligned_as_by_the_whole_table(seed: int, changed: float) -> None:
    """A translation that says the same with other words, more or fewer, leaves columns out."""
    draw = Random(seed)
    known = ["".join(draw.choices("abcdefgh", k=draw.randint(1, 6))) for _ in range(40)]
    reference = draw.choices(known, k=120)
    words = [draw.choice(known) if draw.random() < changed else word
             for word in reference if draw.random() < 0.9]  # fmt: skip
    for method in METHODS:
        expected = plain_alignment(reference, words, method)
        with small_tables(corridor=8):
            assert METHODS[method].align(reference, words) == expected


def test_cells_that_no_optimal_path_can_pass_are_left_out() -> None:
    computed = 0

    def count(old: Any, similar: Any, new: Any) -> None:
        nonlocal computed
        computed += old.size
        plain(old, similar, new)

    plain = soft_alignment._next_row
    text = [f"{number:03}" for number in range(200)]
    with small_tables(corridor=8), pytest.MonkeyPatch.context() as patch:
        patch.setattr(soft_alignment, "_next_row", count)
        assert soft_alignment.align(text, text) == [(i, i) for i in range(200)]
    assert computed < 200 * 200 / 4


def test_by_hand() -> None:
    sentences = ["Good morning .", "The cat sat on the mat .", "Yes ."]
    references = [sentence.split() for sentence in sentences]
    expected = ["Good morning to you .", "The cats sat there .", "Yes indeed ."]
    words = " ".join(expected).split()
    for method in ("soft", "mwer"):
        found = [" ".join(words[i] for i in place) for place in realign(words, references, method)]
        assert found == expected
    with pytest.raises(WaitinfoError, match="unknown realignment 'x'"):
        realign(words, references, "x")


def test_similarity_of_words() -> None:
    soft, exact = (METHODS[name].similarity for name in ("soft", "mwer"))
    assert soft("cats", "cat") == 3 / 4 and soft("aab", "ba") == 1 and soft("a", "b") == 0
    assert soft(",", "a") == soft("a", ",") == -inf and soft(",", ".") == 0
    assert (exact("a", "a"), exact("a", "b")) == (0, -1)
