"""Text in another language is noticed; short, mixed and odd text passes."""

from __future__ import annotations

import lzma
import random
import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from tests.streams import toy_model
from waitinfo.cli.app import main
from waitinfo.streaming.translator import Translator, load
from waitinfo.text.identification import (
    NAMES,
    SCRIPTS,
    WORDS,
    LanguageWarning,
    LanguageWatch,
    other_language,
)
from waitinfo.text.languages import Languages
from waitinfo.trained.saving import LoadedModel

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"

# Written for this test: two everyday sentences in each language.
SAMPLES = {
    "de": "Gestern war ich mit meiner Schwester in der Stadt, weil wir ein Geschenk für unsere "
    "Mutter gesucht haben. Leider gab es nichts, was ihr gefallen hätte.",
    "en": "Yesterday I went to town with my sister because we were looking for a present for our "
    "mother. Sadly there was nothing that she would have liked.",
    "fr": "Hier je suis allé en ville avec ma sœur parce que nous cherchions un cadeau pour notre "
    "mère. Malheureusement il n'y avait rien qui lui aurait plu.",
    "es": "Ayer fui al centro con mi hermana porque estábamos buscando un regalo para nuestra "
    "madre. Por desgracia no había nada que le hubiera gustado.",
    "it": "Ieri sono andato in città con mia sorella perché cercavamo un regalo per la nostra "
    "mamma. Purtroppo non c'era niente che le sarebbe piaciuto.",
    "pt": "Ontem fui à cidade com a minha irmã porque estávamos à procura de um presente para a "
    "nossa mãe. Infelizmente não havia nada de que ela gostasse.",
    "nl": "Gisteren ben ik met mijn zus naar de stad gegaan omdat we een cadeau voor onze moeder "
    "zochten. Helaas was er niets dat ze mooi zou vinden.",
    "sv": "Igår var jag på stan med min syster eftersom vi letade efter en present till vår "
    "mamma. Tyvärr fanns det inget som hon skulle ha tyckt om.",
    "da": "I går var jeg i byen med min søster, fordi vi ledte efter en gave til vores mor. "
    "Desværre var der ikke noget, som hun ville have syntes om.",
    "pl": "Wczoraj byłem z siostrą w mieście, ponieważ szukaliśmy prezentu dla naszej mamy. "
    "Niestety nie było tam nic, co by się jej spodobało.",
    "cs": "Včera jsem byl se svou sestrou ve městě, protože jsme hledali dárek pro naši maminku. "
    "Bohužel tam nebylo nic, co by se jí líbilo.",
    "tr": "Dün kız kardeşimle şehre gittim çünkü annemiz için bir hediye arıyorduk. Ne yazık ki "
    "onun hoşuna gidecek bir şey yoktu ama yine de çok güzel bir gündü.",
    "vi": "Hôm qua tôi đã đi vào thành phố với chị tôi vì chúng tôi tìm một món quà cho mẹ. Tiếc "
    "là không có gì mà mẹ sẽ thích.",
    "ru": "Вчера я был в городе с сестрой, потому что мы искали подарок для нашей мамы.",
    "el": "Χθες πήγα στην πόλη με την αδερφή μου γιατί ψάχναμε ένα δώρο για τη μητέρα μας.",
    "ja": "昨日は母へのプレゼントを探していたので、妹と一緒に町へ行きました。",
    "ko": "어제 어머니께 드릴 선물을 찾느라 여동생과 함께 시내에 갔습니다.",
}  # fmt: skip


@pytest.mark.parametrize("expected", ["de", "en", "vi", "ja"])
@pytest.mark.parametrize("language", SAMPLES)
def test_two_sentences_are_enough(language: str, expected: str) -> None:
    found = other_language(SAMPLES[language], expected)
    assert (found is None) == (language == expected)
    if found is not None and language in WORDS:
        near = {"da": {"Danish", "Norwegian"}}.get(language, {NAMES[language]})
        assert found in near


def test_text_without_capitals_and_punctuation_is_recognised() -> None:
    for language in ("en", "fr", "es"):
        plain = "".join(c for c in SAMPLES[language].lower() if c.isalpha() or c in " '")
        assert other_language(plain, "de") == NAMES[language]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "1, 2, 3 … 42 %",
        "OK",
        "Stop!",
        "Yes, please.",
        "New York Times",
        "C'est la vie!",
        "Je ne sais pas.",  # too short to be sure
        "The show must go on, das war mein Lieblingslied, und das ist es immer noch.",
        "Der Film „The Good, the Bad and the Ugly“ läuft heute im Kino.",
        "Er sagte nur: „This is the end of the world as we know it“, und dann ging er nach Hause.",
        "Kirche Saint-Martin de la Place in der Rue de la Paix",
        "const char *name = malloc(sizeof(int) * n); return 0;",
        "Москва",
        "Die Städte Москва, Санкт-Петербург und Новосибирск liegen in Russland.",
        "https://www.example.org/this/is/a/page?with=the&query=of",
        "ich hab dich lieb",
        "ja nein vielleicht",
        "😀😀😀 🎉🎉🎉 😀😀😀 🎉🎉🎉",
    ],
)
def test_short_and_mixed_text_passes(text: str) -> None:
    assert other_language(text, "de") is None


def test_languages_that_are_not_known_are_never_complained_about() -> None:
    for text in SAMPLES.values():
        assert other_language(text, None) is None and other_language(text, "xx") is None
    assert other_language(SAMPLES["en"], "pt-BR") == "English"
    assert other_language(SAMPLES["pt"], "pt-BR") is None
    assert other_language(SAMPLES["ru"], "de-AT") == "Cyrillic script"
    assert other_language(SAMPLES["de"], "ja") == "German"


def test_the_lists_are_clean() -> None:
    assert NAMES.keys() == WORDS.keys() | SCRIPTS.keys()
    for language, words in WORDS.items():
        found = words.split()
        assert all(word == word.lower() for word in found), language
        assert len(set(found)) >= 60, language


def lines(name: str, count: int = 3000) -> Iterator[str]:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    reader = lzma.open if path.suffix == ".xz" else open
    with reader(path, "rt", encoding="utf-8") as stream:  # type: ignore[operator]
        yield from islice((line.rstrip("\n") for line in stream), count)


@pytest.mark.parametrize(
    ("name", "language", "other"),
    [
        ("de-en/newstest2013.de", "de", "en"),
        ("de-en/newstest2013.en", "en", "de"),
        ("en-vi/tst2013.vi", "vi", "de"),
        ("en-ja/test.ja", "ja", "en"),
    ],
)
def test_on_real_text(name: str, language: str, other: str) -> None:
    """No false alarm in thousands of lines; most lines of ten words or more are recognised."""
    found = list(lines(name))
    assert [line for line in found if other_language(line, language)] == []
    long = [line for line in found if len(line.split()) >= 10 or (language == "ja" and line)]
    noticed = sum(other_language(line, other) is not None for line in long)
    assert noticed > 0.5 * len(long)


def test_no_false_alarms_in_spoken_and_everyday_text() -> None:
    for name, language in (
        ("de-en/tatoeba.train.de.xz", "de"),
        ("english/chitchat.txt.xz", "en"),
        ("english/podcasts.txt.xz", "en"),
    ):
        assert [line for line in lines(name) if other_language(line, language)] == []


# Streams


def test_a_watch_reports_once_however_text_arrives() -> None:
    draw, text = random.Random(1), SAMPLES["fr"]
    whole = LanguageWatch("de")
    assert whole.add(text) == "the text looks like French, but the model translates from German"
    assert whole.add(text) is None and whole.other == "French"
    for _ in range(20):
        watch, rest, reports = LanguageWatch("de", raw=True), text * 2, []
        while rest:
            size = draw.randint(1, 9)
            reports.append(watch.add(rest[:size]))
            rest = rest[size:]
        assert [report for report in reports if report] == [whole.message]
    words = LanguageWatch("de")
    assert sum(words.add(word) is not None for word in text.split()) == 1
    silent = LanguageWatch(None)
    assert silent.add(text) is None and silent.other is None


def test_a_sentence_without_spaces_is_enough() -> None:
    """However it arrives: a letter says as much as a syllable."""
    assert other_language("你好，世界。", "de") == "CJK script"
    assert other_language("こんにちは", "en") == "Hiragana script"
    assert other_language("こんにちは", "ja") is None
    watch = LanguageWatch("de", raw=True)
    assert [bool(watch.add(letter)) for letter in "今日は天気"] == [False] * 3 + [True, False]
    assert other_language("东京", "de") is None, "a name"
    assert other_language("Der Präsident heißt auf Chinesisch 习近平主席.", "de") is None
    translator = Translator(in_german(), 1)
    with pytest.warns(LanguageWarning, match="Cyrillic"), translator.stream(2, raw=True) as stream:
        stream.push("Здравствуйте")
        assert stream.other_language is None, "the word may go on"
        stream.finish()


def test_a_watch_ends() -> None:
    watch = LanguageWatch("de")
    for _ in range(20):
        assert watch.add(SAMPLES["de"]) is None
    assert watch.add(SAMPLES["fr"] * 100) is None


def in_german() -> LoadedModel:
    return replace(toy_model("wait-info"), languages=Languages("de", "en"))


def test_streams_warn_once_each() -> None:
    translator = Translator(in_german(), 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for text in (SAMPLES["fr"], SAMPLES["fr"], SAMPLES["de"]):
            with translator.stream(2) as stream:
                for word in text.split():
                    stream.push(word)
                assert stream.other_language == (None if text == SAMPLES["de"] else "French")
                stream.push(text)
    assert [warning.category for warning in caught] == [LanguageWarning] * 2
    assert "looks like French" in str(caught[0].message)


def call(*arguments: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    assert stopped.value.code in (0, None)


def test_the_command_line_says_so_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call("translate", *SAMPLES["es"].split(". "), "Hola.")
    shown = capsys.readouterr()
    assert shown.err.count("note: the text looks like Spanish") == 1
    assert "the model translates from German" in shown.err and len(shown.out.splitlines()) == 3
    assert not [warning for warning in caught if warning.category is LanguageWarning]
    call("translate", "Guten Morgen!")
    assert "looks like" not in capsys.readouterr().err
    source = tmp_path / "in.txt"
    source.write_text(f"Guten Morgen!\n{SAMPLES['fr']}\n{SAMPLES['en']}\n", "utf-8")
    call("translate", "--input", str(source), "--out", str(tmp_path / "out.txt"))
    shown = capsys.readouterr()
    assert "in.txt, line 2 and 1 others: not in the model's source language" in shown.err


def test_python_users_are_warned() -> None:
    translator = load(device="cpu")
    with pytest.warns(LanguageWarning, match="looks like English"):
        translator.translate(SAMPLES["en"], 3)
