"""The everyday sentences: the file is sound, the judge is fair, and the bundled models do some."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from experiments import default_dial, moving_picture
from experiments import everyday as script
from experiments.everyday import (
    Item,
    expand,
    judge,
    judge_all,
    plain,
    read_set,
    summary,
)
from waitinfo.errors import WaitinfoError
from waitinfo.streaming.translator import load
from waitinfo.text.identification import other_language
from waitinfo.trained.folder import bundled_models, find_model, read_config

ROOT = Path(__file__).resolve().parents[1]
# By model, at K = 5: the least mean chrF and share of right translations, in percent. They are far
# below what was measured (92.0 and 77, 88.4 and 66), for other machines round in other places.
FLOORS = {"de-en": (84.0, 61.0), "en-de": (82.0, 55.0)}


@pytest.mark.parametrize(("source", "target"), [("de", "en"), ("en", "de")])
def test_the_set_is_sound(source: str, target: str) -> None:
    items = read_set(source, target)
    assert len(items) >= 150
    assert len({item.source for item in items}) == len(items)
    assert sum(len(item.translations) > 1 for item in items) > 0.9 * len(items)
    for item in items:
        for text in (item.source, *item.translations):
            assert not set(text) & set("[]|\t") and text == " ".join(text.split())
            assert text[-1] in ".?!" and (text[0].isupper() or text[0].isdigit()), text
            assert " ," not in text and " ." not in text and "  " not in text, text
        assert other_language(item.source, source) is None
        assert all(other_language(text, target) is None for text in item.translations)


def test_patterns() -> None:
    assert expand("a [b|c] d || e") == ["a b d", "a c d", "e"]
    assert expand("[a |]b[, c|].") == ["a b, c.", "a b.", "b, c.", "b."]
    assert expand("a[|b]") == ["a", "ab"]
    with pytest.raises(WaitinfoError, match="unknown languages 'de-fr'; choose one of: de-en"):
        read_set("de", "fr")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("I'm not here.", "i am not here"),
        ("I can't, I won't!", "I cannot. I will not."),
        ("It's three o’clock", "It is 3 o'clock."),
        ("Wie geht's?", "Wie geht es"),
        ("She's got ten eggs", "she is got 10 eggs"),
        ("Don't", "do not"),
    ],
)
def test_what_counts_as_equal(one: str, other: str) -> None:
    assert plain(one) == plain(other)


def test_what_does_not() -> None:
    for one, other in (("He is here.", "He was here."), ("not now", "now"), ("two", "three")):
        assert plain(one) != plain(other)


def test_the_judge() -> None:
    item = Item("x", "Mir ist kalt.", ["I'm cold.", "I feel cold."])
    right, wrong = judge(item, "i am cold"), judge(item, "I am old.")
    assert right.right and not wrong.right and 0 < wrong.chrf < 100
    assert judge(item, "I feel cold.").chrf == 100
    assert judge(item, "").chrf == 0 and not judge(item, "").right
    assert summary([judge(item, "I'm cold."), judge(item, "")]) == (50, 50)


def test_chrf_is_that_of_the_closest_reference() -> None:
    """Comparing with a few near references gives what comparing with all of them gives."""
    sacrebleu = pytest.importorskip("sacrebleu")
    metric = sacrebleu.metrics.CHRF()
    items = [item for item in read_set() if len(item.translations) > 30][:6]
    for item in items:
        translation = item.translations[-1].replace("the ", "").replace("a ", "one ")
        every = [metric.sentence_score(translation, [text]).score for text in item.translations]
        assert judge(item, translation).chrf == pytest.approx(max(every), abs=1e-6)


@pytest.mark.parametrize("name", FLOORS)
def test_bundled_models(name: str) -> None:
    if name not in bundled_models():
        pytest.skip(f"{name} is not among the bundled models")
    languages = read_config(find_model(name))["languages"]
    items = read_set(languages["source"], languages["target"])
    translator = load(name, device="cpu")
    verdicts = judge_all(items, translator.translate([item.source for item in items], 5))
    found, floor = summary(verdicts), FLOORS[name]
    assert found[0] >= floor[0] and found[1] >= floor[1], found


def test_every_bundled_model_has_a_floor() -> None:
    assert set(bundled_models()) <= set(FLOORS)


def test_the_script(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-m", "experiments.everyday", "--k", "3", "--spoken", "--show", "none",
         "--json", out],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text("utf-8"))
    last = done.stdout.splitlines()[-1].split()
    assert last[0] == "all" and int(last[3]) == figures["sentences"] == len(read_set())
    assert float(last[-1]) == pytest.approx(figures["chrF"], abs=0.06)
    assert figures["right"] == pytest.approx(100 * int(last[1]) / figures["sentences"])


# The table of examples


def test_the_table_takes_sentences_at_equal_distances() -> None:
    items = [Item("x", f"Satz {n}.", [f"Sentence {n}."]) for n in range(25)]
    written = judge_all(items, [f"Sentence {n}." for n in range(25)])
    spoken = judge_all(items, ["sentence"] * 25)
    made = script.examples(written, spoken, "de-en").splitlines()
    assert made[0].startswith("| German | English | English, from lower case")
    numbers = (0, 2, 5, 7, 10, 12, 15, 17, 20, 22)
    assert made[2:12] == [f"| Satz {n}. | ✓ Sentence {n}. | ✗ sentence |" for n in numbers]
    assert made[13].startswith("All 25: 100% right, chrF 100.0; without capitals and punctuation")


def test_the_table_goes_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- everyday de-en -->\nold\n<!-- end -->\nb <!-- end -->\n", "utf-8")
    for made in ("| x |\n", "| y |\n"):
        script.refresh(page, "de-en", made)
        expected = f"a\n<!-- everyday de-en -->\n\n{made}\n<!-- end -->\nb <!-- end -->\n"
        assert page.read_text("utf-8") == expected
    with pytest.raises(SystemExit, match="page.md: has no place for the table"):
        script.refresh(page, "en-de", "| x |\n")


@pytest.mark.parametrize("direction", ["de-en", "en-de"])
def test_the_tables_in_the_readme(direction: str) -> None:
    """Their sentences are those of the set, and the marks are what the judge says."""
    text = (ROOT / "README.md").read_text("utf-8")
    (block,) = re.findall(f"<!-- everyday {direction} -->(.*?)<!-- end -->", text, re.DOTALL)
    rows = [line[2:-2].split(" | ") for line in block.splitlines() if re.match(r"\|.*[✓✗]", line)]
    assert len(rows) == (script.EXAMPLES if direction in bundled_models() else 0)
    items = {item.source: item for item in read_set(*direction.split("-"))}
    for source, *shown in rows:
        for cell in shown:
            assert cell[0] == script.MARKS[judge(items[source], cell[2:]).right], cell


def test_the_default_dial_is_the_smallest_that_larger_ones_hardly_improve_on() -> None:
    def model(*rights: float) -> list[default_dial.Found]:
        dials = zip((1.0, 3.0, 5.0, 7.0), (3.0, 4.0, 5.0, 6.5), rights, strict=True)
        return [default_dial.Found(k, lag, right + 1, right - 1) for k, lag, right in dials]

    models = {"a": model(60, 70, 74, 80), "b": model(60, 70, 72, 80)}
    assert default_dial.choose(models, accepted=7.0) == 7
    assert default_dial.choose(models, accepted=6.0) == 5
    models = {"a": model(60, 70, 70.9, 80), "b": model(60, 70, 71, 80)}
    assert default_dial.choose(models, accepted=6.0) == 3
    with pytest.raises(WaitinfoError, match="every dial has a larger lag"):
        default_dial.choose(models, accepted=2.0)
    page = default_dial.page(models, 6.0, 3.0)
    assert "| 3 | 4.00 | 71.0 | 69.0 |" in page and "**3**" in page


def test_the_moving_picture_shows_words_when_they_are_written() -> None:
    sentence = "Ich kann dir morgen <helfen>."
    source, written = moving_picture.follow(load(streams=1), sentence, 3.0, pace=2.0)
    assert [(word.text, word.seconds) for word in source] == [
        (word, number / 2) for number, word in enumerate(sentence.split(), 1)
    ]
    assert [w.seconds for w in written] == sorted(w.seconds for w in written)
    drawn = ElementTree.fromstring(moving_picture.draw(source, written))
    words = [node.text for node in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert words == [word.text for word in (*source, *written)]
