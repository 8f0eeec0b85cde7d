"""Text as it is spoken: numbers in words, marks, errors at a rate, windows, and determinism."""

from __future__ import annotations

import random
import re
import string
import subprocess
import sys
import unicodedata
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracle import edits
from waitinfo.errors import WaitinfoError
from waitinfo.text.files import Pair
from waitinfo.text.speech import PLAIN, Copies, Speaker, SpeechStyle, Windows, style_of
from waitinfo.text.speech.numbers import READERS, English, German
from waitinfo.text.speech.speaker import Lexicon, join, lower_without_punctuation

SENTENCES = [
    "Am 3. Mai 2015 waren es 1.500 Menschen, d.h. 3,5 % mehr als 1995.",
    "Die Kommission hat gestern in Brüssel einen neuen Vorschlag vorgelegt.",
    "Wir müssen seit langem über den Bericht des Herrn Präsidenten sprechen!",
    "Das ist wahr, und man war sich dessen bewusst.",
    "Ein kleines Land hat kleine Häfen; kleinen Häfen hilft das.",
    "Vielen Dank, Herr Kommissar.",
]

# Numbers


def german_value(text: str) -> int:
    """The value of a German number below a million, worked out from the right."""
    small = {word: value for value, word in enumerate(German.SMALL)} | {"ein": 1}
    tens = {word: 10 * value for value, word in enumerate(German.TENS, 2)}
    total = 0
    for factor, name in ((1000, "tausend"), (100, "hundert")):
        head, found, rest = text.partition(name)
        if found:
            total += factor * (german_value(head) if head else 1)
            text = rest
    if not text:
        return total
    if text in small or text in tens:
        return total + {**small, **tens}[text]
    ones, _, ten = text.partition("und")
    return total + small[ones] + tens[ten]


def english_value(text: str) -> int:
    small = {word: value for value, word in enumerate(English.SMALL)}
    small |= {word: 10 * value for value, word in enumerate(English.TENS, 2)}
    total = part = 0
    for word in text.split():
        if word == "hundred":
            part *= 100
        elif word in ("thousand", "million", "billion"):
            total += part * {"thousand": 10**3, "million": 10**6, "billion": 10**9}[word]
            part = 0
        elif word != "and":
            part += small[word]
    return total + part


@given(st.integers(0, 999_999))
def test_german_numbers_can_be_read_back(number: int) -> None:
    assert german_value(German().cardinal(number)) == number


@given(st.integers(0, 10**12 - 1))
def test_english_numbers_can_be_read_back(number: int) -> None:
    assert english_value(English().cardinal(number)) == number


@pytest.mark.parametrize(
    ("language", "written", "said"),
    [
        ("de", "Am 3. Mai 2015", "am dritten mai zweitausendfünfzehn"),
        ("de", "der 2. Weltkrieg", "der zweite weltkrieg"),
        ("de", "3,14 % und 5 €", "drei komma eins vier prozent und fünf euro"),
        ("de", "1.500 Euro, 1 000 000 Tonnen", "eintausendfünfhundert euro eine million tonnen"),
        ("de", "25 Mio. Euro", "fünfundzwanzig millionen euro"),
        ("de", "um 14:30 Uhr, 8.05 Uhr", "um vierzehn uhr dreißig acht uhr fünf"),
        ("de", "am 12.5.2004", "am zwölften fünften zweitausendvier"),
        ("de", "von 1995-1999", "von neunzehnhundertfünfundneunzig bis "
                                "neunzehnhundertneunundneunzig"),
        ("de", "Es steht 2:1.", "es steht zwei zu eins"),
        ("de", "z. B. bei -5 °C bzw. 101 km/h",
         "zum beispiel bei minus fünf grad celsius beziehungsweise einhunderteins kilometer pro "
         "stunde"),
        ("de", "Wir waren 3.", "wir waren drei"),
        ("de", "Punkt 1. Das gilt.", "punkt eins das gilt"),
        ("de", "im A380 mit H5N1, Art. 7", "im a380 mit h5n1 artikel sieben"),
        ("de", "die 21. Sitzung usw.", "die einundzwanzigste sitzung und so weiter"),
        ("de", "007 und 123456789012345", "null null sieben und eins zwei drei vier fünf sechs "
                                          "sieben acht neun null eins zwei drei vier fünf"),
        ("en", "On May 3rd, 2015, 1,500 people (3.5%)",
         "on may third twenty fifteen one thousand five hundred people three point five percent"),
        ("en", "$5 million, i.e. £20", "five million dollars that is twenty pounds"),
        ("en", "at 2:30, 8:05, 9:00", "at two thirty eight oh five nine"),
        ("en", "in 1905, 2005 and 1900",
         "in nineteen oh five two thousand five and nineteen hundred"),
        ("en", "Mr. Smith's 21st, 40th and 12th",
         "mister smith's twenty first fortieth and twelfth"),
        ("en", "3/4 of 10-15 mph", "three quarters of ten to fifteen miles per hour"),
    ],
)  # fmt: skip
def test_numbers_as_they_are_read(language: str, written: str, said: str) -> None:
    assert lower_without_punctuation(READERS[language].read(written)) == said


# Case and punctuation


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("„Straße“ – STRAẞE…", "straße straße"),
        ("EU-Staaten und/oder e-mail - ja", "eu-staaten und oder e-mail ja"),
        ("Don’t 'quote' John's, it's 3,5 14:30 5%", "don't quote john's it's 3,5 14:30 5%"),
        ("你好，世界。今天很好！", "你好世界今天很好"),
        ("हिन्दी में, यह।", "हिन्दी में यह"),
        ("¿Qué tal? ¡Hola!", "qué tal hola"),
    ],
)
def test_marks(written: str, said: str) -> None:
    assert lower_without_punctuation(written) == said


@given(st.text())
def test_no_capitals_and_no_marks_are_left(text: str) -> None:
    said = lower_without_punctuation(text)
    assert said == said.lower() and said == " ".join(said.split())
    for word in said.split():
        for place, letter in enumerate(word):
            if unicodedata.category(letter)[0] == "P":
                assert letter in "%‰&@#§" or 0 < place < len(word) - 1
    assert lower_without_punctuation(said) == said


def test_sentences_are_joined_as_the_script_writes_them() -> None:
    assert join("Ja.", "Nein.") == "Ja. Nein."
    assert join("你好。", "再见。") == "你好。再见。"


# Speakers


@settings(max_examples=60)
@given(st.lists(st.text(min_size=1, max_size=60), min_size=1, max_size=4), st.sampled_from(
    ["de", "en", "fr", None]))  # fmt: skip
def test_any_text_can_be_said(lines: list[str], language: str | None) -> None:
    """A line with words never becomes empty; one without words stays."""
    speaker = Speaker(language, SpeechStyle(errors=0.5), lines)
    for line in lines:
        said = speaker.say(line)
        if lower_without_punctuation(line):
            assert said.split()
        else:
            assert said == line


def test_the_same_seed_says_the_same() -> None:
    def told(seed: int) -> list[str]:
        speaker = Speaker("de", SpeechStyle(errors=0.2), SENTENCES, seed)
        return [speaker.say(line) for line in SENTENCES * 5]

    assert told(1) == told(1) != told(2)


def test_a_plain_speaker_removes_case_and_marks_only() -> None:
    speaker = Speaker("de", PLAIN)
    assert [speaker.say(line) for line in SENTENCES] == [
        lower_without_punctuation(line) for line in SENTENCES
    ]


@pytest.mark.parametrize("rate", [0.05, 0.15])
@pytest.mark.parametrize("language", ["de", "en", None])
def test_errors_come_at_their_rate(rate: float, language: str | None) -> None:
    speaker = Speaker(language, style_of(rate, full=False), SENTENCES)
    lines = [lower_without_punctuation(line).split() for line in SENTENCES] * 400
    found = sum(
        edits(line, speaker.say(text).split())
        for line, text in zip(lines, SENTENCES * 400, strict=True)
    )
    # 22,000 words: the standard deviation of the rate is below 0.0015 at 5%, 0.0025 at 15%.
    assert found / sum(map(len, lines)) == pytest.approx(rate, abs=0.01)


def test_confusable_words() -> None:
    german = Lexicon(map(lower_without_punctuation, SENTENCES), "de")
    assert set(german.similar("war")) == {"wahr", "waren"}
    assert set(german.similar("kleines")) == {"kleine", "kleinen"}
    english = Lexicon(["there their they are two to then than report reports"], "en")
    assert english.similar("their") == ["there"] and "to" in english.similar("two")
    assert english.similar("then") == ["than"] and english.similar("reports") == ["report"]


def test_fillers_and_repeated_words() -> None:
    style = SpeechStyle(numbers=0, hyphens=0, fillers=0.1, repeats=0.1, errors=0)
    speaker = Speaker("de", style, (), 3)
    said = [speaker.say(SENTENCES[1]).split() for _ in range(300)]
    base = lower_without_punctuation(SENTENCES[1]).split()
    assert any("ähm" in words for words in said)
    assert any(a == b for words in said for a, b in pairwise(words))
    for words in said:  # nothing is lost, and the order stays
        rest = iter(words)
        assert all(word in rest for word in base)


def test_styles_are_checked() -> None:
    with pytest.raises(WaitinfoError, match="errors 2: must be from 0 to 1"):
        SpeechStyle(errors=2)
    for options in ((1.5, 0, 0), (0, -1, 0), (0, 0, 3)):
        with pytest.raises(WaitinfoError, match="must be a share from 0 to 1"):
            Copies(*options, "de", 1)


# Windows


def windows_of(count: int, share: float, gaps: set[int], seed: int) -> list[list[int]]:
    """The members of all windows over `count` numbered pairs."""
    windows = Windows(share, random.Random(seed))
    found, position = [], 0
    for number in range(count):
        position += 2 if number in gaps else 1
        found.append(windows.add(Pair(f"s{number}.", f"t{number}."), position))
    found.append(windows.take())
    members = []
    for window in filter(None, found):
        numbers = [int(n) for n in re.findall(r"s(\d+)\.", window.source)]
        assert window.source == " ".join(f"s{n}." for n in numbers)
        assert window.target == " ".join(f"t{n}." for n in numbers)
        members.append(numbers)
    return members


@given(st.integers(0, 60), st.floats(0.05, 1), st.sets(st.integers(0, 60)), st.integers(0, 1 << 30))
def test_windows_are_runs_of_neighbours(
    count: int, share: float, gaps: set[int], seed: int
) -> None:
    members = windows_of(count, share, gaps, seed)
    for numbers in members:
        assert numbers == list(range(numbers[0], numbers[-1] + 1)) and 2 <= len(numbers) <= 6
        assert not gaps & set(numbers[1:])
    used = [number for numbers in members for number in numbers]
    assert len(used) == len(set(used))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_share_of_pairs_in_windows(share: float) -> None:
    used = sum(map(len, windows_of(30_000, share, set(), 7)))
    assert used / 30_000 == pytest.approx(share, abs=0.02)
    sizes = {len(numbers) for numbers in windows_of(30_000, share, set(), 7)}
    assert sizes == {2, 3, 4, 5, 6}


def test_long_sentences_make_short_windows() -> None:
    windows = Windows(1.0, random.Random(1))
    line = Pair(" ".join(string.ascii_lowercase) + " " + "w " * 20, "t")
    found = [windows.add(line, position) for position in range(40)]
    assert {len(window.source.split()) for window in found if window} == {92}  # two of 46 words


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "a.de"
    file.write_text("\n".join(SENTENCES) + "\n", "utf-8")
    command = [sys.executable, "-m", "waitinfo.text.speech", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [lower_without_punctuation(line) for line in SENTENCES]
    failed = subprocess.run(
        [*command, "--errors", "7"], capture_output=True, text=True, check=False
    )
    assert failed.returncode == 1 and "errors 7: must be from 0 to 1" in failed.stderr
