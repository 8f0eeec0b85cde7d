"""Realignment of long translations to reference sentences."""

from __future__ import annotations

from itertools import combinations_with_replacement, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_speech import edits
from waitinfo.errors import WaitinfoError
from waitinfo.evaluation import realign as module
from waitinfo.evaluation.realign import align, realign

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


def brute_soft(reference: list[str], words: list[str]) -> float:
    """The largest total similarity of an alignment, by recursion."""

    def similarity(a: str, b: str) -> float:
        if (a in module.MARKS) != (b in module.MARKS):
            return float("-inf")
        return len(set(a) & set(b)) / len(set(a) | set(b))

    def best(i: int, j: int) -> float:
        if i == len(reference) or j == len(words):
            return 0.0
        match = similarity(reference[i], words[j]) + best(i + 1, j + 1)
        return max(match, best(i + 1, j), best(i, j + 1))

    return best(0, 0)


@given(st.lists(WORDS, min_size=1, max_size=6), st.lists(WORDS, min_size=1, max_size=6))
def test_similarity_is_as_large_as_any_alignment_has(reference: list, words: list) -> None:
    similarity = module.SoftSimilarity(words)
    pairs = align(reference, similarity)
    assert [i for i, _ in pairs if i is not None] == list(range(len(reference)))
    assert [j for _, j in pairs if j is not None] == list(range(len(words)))
    total = sum(
        similarity.row(reference[i])[j] for i, j in pairs if i is not None and j is not None
    )
    assert total == pytest.approx(brute_soft(reference, words))


@given(st.lists(WORDS, max_size=12), REFERENCES, st.sampled_from(["soft", "mwer"]))
def test_rows_that_are_computed_again_are_the_same(
    words: list[str], references: list, method: str
) -> None:
    whole = realign(words, references, method)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", 2)
        assert realign(words, references, method) == whole


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
