"""Which translations are learned from, by cases worked by hand and by sacrebleu."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.conftest import toy_pairs, write_pairs
from waitinfo.distillation.filters import (
    Candidates,
    Chooser,
    ChosenTranslation,
    Filters,
    bleu,
    chrf,
    is_copy,
    is_repetitive,
    read_translations,
    words,
)
from waitinfo.distillation.mixing import Data, Draw, Row, parse_mix
from waitinfo.errors import WaitinfoError
from waitinfo.text.files import ParallelText
from waitinfo.text.languages import Languages
from waitinfo.text.prepare import PrepareOptions, prepare

GERMAN = Languages("de", "en")


def reason(source: str, target: str, reference: str | None = None, **options: object) -> str | None:
    filters = Filters(languages=GERMAN, **options)  # type: ignore[arg-type]
    lengths = (len(source.split()), len(target.split()))  # words for tokens
    return filters.of_pair(source, target, lengths, reference)


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("Das ist gut.", "That is good.", None),
        ("Das ist gut.", "", "empty"),
        # 10 words against 3 are a ratio of 3.33, against 4 of 2.5; nine words are too few to judge.
        ("a b c d e f g h i j", "x y z", "length ratio over 3"),
        ("a b c d e f g h i j", "w x y z", None),
        ("a b c d e f g h i", "x", None),
        ("x y z", "a b c d e f g h i j", "length ratio over 3"),
        # Copies: the same words, or four of five; three of four are too few to judge.
        ("Anna Schmidt, Berlin", "anna schmidt - Berlin!", "copy of the source"),
        ("der Hund und die Katze", "der Hund und die dog", "copy of the source"),
        ("der Hund und Katze", "der Hund und dog", None),
        ("12.30 – 14.00", "12.30 – 14.00", None),
        # Once too often: a word four times, two words three times, four words twice.
        ("Nein.", "no no no no", "repeated words"),
        ("Nein.", "no, no, no", None),
        ("Das war es.", "it was it was it was over", "repeated words"),
        ("Das war es.", "it was it was over", None),
        ("Er sagte es.", "he said it was he said it was", "repeated words"),
        ("Nein nein nein nein!", "no no no no", None),
        # Languages.
        ("Ich weiß es nicht.", "Ich glaube nicht, dass wir das so machen können.",
         "target in another language"),
        ("Ich weiß es nicht.", "I do not know it.", None),
    ],
)  # fmt: skip
def test_filters(source: str, target: str, expected: str | None) -> None:
    assert reason(source, target) == expected


def test_what_the_reference_has_is_right() -> None:
    copied = "Berlin Hamburg Bremen Kiel Ulm"
    assert reason(copied, copied) == "copy of the source"
    assert reason(copied, copied, reference=copied) is None
    assert reason(copied, copied, reference="Five towns in Germany.") == "copy of the source"


def test_other_filters() -> None:
    assert reason("a b c", "x y z", max_tokens=2) == "longer than 2 tokens"
    assert reason("a b c d e f g h i j", "x y z", max_ratio=4) is None
    filters = Filters(languages=GERMAN)
    assert filters.of_source("") == "empty"
    assert filters.of_source("Ich weiß es nicht.") is None
    french = "Je ne sais pas si nous pouvons faire cela dans le temps qui reste."
    assert filters.of_source(french) == "source in another language"
    assert Filters().of_source(french) is None
    with pytest.raises(WaitinfoError, match="max_ratio 0.5: must be at least 1"):
        Filters(max_ratio=0.5)


def test_repetition_in_text_without_spaces() -> None:
    assert is_repetitive("これはこれはこれはこれはペンです")
    assert not is_repetitive("これはペンです。それは本です。")
    assert not is_repetitive("ええええ、本当ですか。")


def test_repetition_by_brute_force() -> None:
    """Against a search for every group at every place."""

    def slow(text: str) -> bool:
        found = text.split()
        for size in range(1, 13):
            times = {1: 4, 2: 3, 3: 3}.get(size, 2)
            for start in range(len(found)):
                group = found[start : start + size]
                if len(group) == size and found[start : start + size * times] == group * times:
                    return True
        return False

    draw = random.Random(1)
    seen = set()
    for _ in range(400):
        text = " ".join(draw.choice("abc") for _ in range(draw.randint(0, 14)))
        seen.add(slow(text))
        assert is_repetitive(text) == slow(text), text
    assert seen == {True, False}


def test_copies_are_symmetric_in_case_only() -> None:
    assert is_copy("Guten Tag", "guten tag.") and not is_copy("Guten Tag", "Good day")


# Similarity


def sentences() -> list[tuple[str, str]]:
    draw = random.Random(2)
    known = ["the", "cat", "sat", "on", "a", "mat", ",", "and", "then", ".", "hm", "don't", "3 %"]
    made = [
        (" ".join(draw.choices(known, k=draw.randint(1, 12))),
         " ".join(draw.choices(known, k=draw.randint(1, 12)))) for _ in range(60)
    ]  # fmt: skip
    return [*made, ("the cat sat .", "the cat sat ."), ("", "the cat"), ("x", "the cat")]


def test_chrf_is_that_of_sacrebleu() -> None:
    metric = pytest.importorskip("sacrebleu").metrics.CHRF()
    for translation, reference in sentences():
        expected = metric.sentence_score(translation, [reference]).score
        assert chrf(reference)(translation) == pytest.approx(expected, abs=1e-6)


def test_bleu_is_that_of_sacrebleu() -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    metric = sacrebleu.metrics.BLEU(tokenize="none", effective_order=True)
    for translation, reference in sentences():
        tokens = [" ".join(words(text, False)) for text in (translation, reference)]
        expected = metric.sentence_score(tokens[0], [tokens[1]]).score
        assert bleu(reference)(translation) == pytest.approx(expected, abs=1e-6)
    assert bleu("これはペンです")("これはペンです") == pytest.approx(100)
    assert 0 < bleu("これはペンです")("これは本です") < 100


# Choices


def candidates(
    reference: str | None, *translations: str, scores: list[float] | None = None
) -> Candidates:
    return Candidates(
        "das ist ein Haus", reference, list(translations), scores, [(4, 4)] * len(translations)
    )


def test_the_best_that_passes_is_chosen() -> None:
    by_score = Chooser("score", Filters())
    assert by_score.choose(candidates(None, "one house", "a house")) == ChosenTranslation(0, None)
    assert by_score.choose(
        candidates(None, "a", "b", "c", scores=[-3, -1, -2])
    ) == ChosenTranslation(1, None)
    assert by_score.choose(candidates(None, "", "no no no no", "b")) == ChosenTranslation(2, None)
    assert by_score.choose(candidates(None, "", "no no no no")) == ChosenTranslation(None, "empty")
    by_similarity = Chooser("chrf", Filters())
    right = "that is a house"
    assert (
        by_similarity.choose(candidates(right, "x", "this is a house", "that is a houses")).number
        == 2
    )
    assert Chooser("bleu", Filters()).choose(candidates(right, "x", right)).number == 1
    # Without a reference, the teacher's order counts.
    assert by_similarity.choose(candidates(None, "x", right)).number == 0
    with pytest.raises(WaitinfoError, match="unknown choose 'best'; choose one of: score, chrf"):
        Chooser("best", Filters())


def test_lines_of_translations() -> None:
    assert read_translations("a b\tc", False) == (["a b", "c"], None)
    assert read_translations("-1.5\ta b\t-2.0\tc", True) == (["a b", "c"], [-1.5, -2.0])
    with pytest.raises(WaitinfoError, match="with force"):
        read_translations("-1.5\ta\t-2", True)


# Data and shares


def test_shares() -> None:
    assert parse_mix(["original=0.5", "monotone=0"]) == {"original": 0.5, "monotone": 0.0}
    for given, error in (
        ("copies=1", "unknown mix 'copies=1'; choose one of: original=SHARE"),
        ("original=x", "'x' is not a number"),
        ("original", "'' is not a number"),
        ("original=1.5", "from 0 to 1"),
        ("original=nan", "from 0 to 1"),
    ):
        with pytest.raises(WaitinfoError, match=error):
            parse_mix([given])
    rows = [Row("a", "b", ("original", "distilled")[i % 2]) for i in range(4000)]
    draws = [
        list(map(Draw({"original": 0.25, "monotone": 0.5}, "monotone", 1), rows)) for _ in range(2)
    ]
    assert draws[0] == draws[1]
    translated = [one for one, _ in draws[0]]
    assert not any(translated[1::2])  # what a teacher has made is not translated again
    kept = [other for _, other in draws[0]]
    assert all(kept[1::2])
    # Three standard deviations of 2,000 draws.
    assert abs(sum(translated) - 1000) < 68 and abs(sum(kept[::2]) - 500) < 59
    assert Draw({}, "distilled", 1)(Row("a", None, "original")) == (True, False)


def test_a_corpus_and_its_text_are_the_same_data(tmp_path: Path) -> None:
    pairs = toy_pairs(50)
    tsv = write_pairs(tmp_path / "pairs.tsv", pairs)
    dev = [tmp_path / "dev.a", tmp_path / "dev.b"]
    for path, line in zip(dev, ("ba be", "abs ebs"), strict=True):
        path.write_text(f"{line}\n", "utf-8")
    prepare(
        ParallelText(tsv=[tsv]), tmp_path / "corpus",
        PrepareOptions(vocab="bpe:300", keep_duplicates=True), dev=ParallelText([dev[0]], [dev[1]]),
    )  # fmt: skip
    text = tmp_path / "more.txt"
    text.write_text("bo bu\n", "utf-8")
    expected = [*(Row(*pair, "original") for pair in pairs), Row("bo bu", None, "original")]
    assert list(Data(tsv, [text])) == list(Data(tmp_path / "corpus", [text])) == expected
    tsv.write_text("a\tb\tmonotone\nc\td\telse\n", "utf-8")
    assert [row.origin for row in Data(tsv)] == ["monotone", "original"]
    tsv.write_text("a\tb\nc\n", "utf-8")
    with pytest.raises(WaitinfoError, match="line 2: no tab"):
        list(Data(tsv))
    with pytest.raises(WaitinfoError, match="not a prepared corpus"):
        Data(tmp_path)
