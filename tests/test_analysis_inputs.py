"""`waitinfo analyse` with dials, texts and folders that are out of the ordinary."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import sacrebleu

from experiments import collect
from tests.commands import Done, called
from waitinfo.analysis.summaries import for_json
from waitinfo.evaluation.quality import from_statistics, score, sentence_statistics

PAIRS = [
    ("Das Haus ist alt.", "The house is old."),
    ("Er wohnt seit zehn Jahren in Berlin.", "He has lived in Berlin for ten years."),
    ("Wir haben gestern lange gesprochen.", "We talked for a long time yesterday."),
    ("Meine Mutter kommt mit dem Zug.", "My mother is coming by train."),
    ("Der Hund schläft.", "The dog is asleep."),
    ("Ich trinke gern Kaffee am Morgen.", "I like to drink coffee in the morning."),
]


def write(folder: Path, pairs: list[tuple[str, str]]) -> Path:
    for number, side in enumerate(("de", "en")):
        (folder / f"t.{side}").write_text("".join(f"{p[number]}\n" for p in pairs), "utf-8")
    return folder


def analyse(folder: Path, *more: object) -> Done:
    return called("analyse", "--source", folder / "t.de", "--reference", folder / "t.en",
                  "--out", folder / "out", *more)  # fmt: skip


def numbers(folder: Path, name: str) -> dict:
    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is no JSON")

    text = (folder / "out" / f"{name}.json").read_text("utf-8")
    return json.loads(text, parse_constant=refuse)[name]


def test_no_common_latency_leaves_significance_out(tmp_path: Path) -> None:
    given = ("--k", "1", "--against-k", "9")
    done = analyse(write(tmp_path, PAIRS), *given)
    assert done.returncode == 0, done.stderr
    assert "left out: significance: the systems have no latency in common" in done.stderr
    assert "compared at unequal paper.AL: veto 1 at" in done.stderr
    report = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert 'id="difficulty"' in report and "no latency in common" in report
    # What was asked for is an error, but the rest is not lost.
    done = analyse(tmp_path, *given, "--what", "ratio, significance")
    assert done.returncode == 2 and "no latency in common" in done.stderr
    report = (tmp_path / "out" / "report.html").read_text("utf-8")
    # The analyses that the folder has already are in the report, too.
    assert 'id="ratio"' in report and 'id="difficulty"' in report
    # Those of other dials are not.
    done = analyse(tmp_path, "--k", "3", "--what", "ratio")
    assert "not in the report: difficulty.json, which is of other systems" in done.stderr
    report = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert 'id="ratio"' in report and 'id="difficulty"' not in report
    # A second system makes no difference to what is of the first alone.
    given = ("--k", "3", "--what", "early-stop", "--against-system", "multipath")
    done = analyse(tmp_path, *given, "--against-set", "catch_up=6", "--against-k", "1")
    assert done.returncode == 0, done.stderr
    report = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert 'id="ratio"' in report and 'id="early-stop"' in report
    texts = (tmp_path / "out" / "translations" / "veto-1-guard.txt").read_text("utf-8")
    assert len(texts.splitlines()) == len(PAIRS)


def test_what_is_published_has_no_text(tmp_path: Path) -> None:
    """Test sets may not be published: numbers only, for case study and difficulty."""
    given = ("--what", "case,difficulty", "--k", "1,5")
    done = analyse(write(tmp_path, PAIRS), *given)
    assert done.returncode == 0, done.stderr
    report = (tmp_path / "out" / "report.html").read_text("utf-8")
    found = numbers(tmp_path, "difficulty")["differences"]
    shown = [*found["best_for_first"], *found["best_for_second"]]
    assert shown and all((each["source"], each["reference"]) in PAIRS for each in shown)
    assert all(PAIRS[each["line"] - 1][0] == each["source"] for each in shown)
    assert shown[0]["source"] in report and shown[0]["written"][1] in done.stdout
    collect.analysis(tmp_path / "out", tmp_path / "kept.json", None)
    kept = (tmp_path / "kept.json").read_text("utf-8")
    words = {word.strip(".") for pair in PAIRS for text in pair for word in text.split()}
    written = set(re.findall(r"[^\W\d_]{4,}", kept))
    assert '"best_for_first"' in kept and '"written"' in kept
    assert not {word for word in words if len(word) > 3} & written


def test_sentences_of_one_token(tmp_path: Path) -> None:
    done = analyse(write(tmp_path, [(".", ".")] * 3), "--k", "1,3")
    assert done.returncode == 0, done.stderr
    assert "left out: significance: needs at least 5 sentences" in done.stderr
    assert {layer["tokens"] for layer in numbers(tmp_path, "attention")["encoder"]} == {0}


def test_what_is_undefined_is_not_drawn(tmp_path: Path) -> None:
    """YAAL counts what is written before the source ends: nothing, if all is read first."""
    done = analyse(write(tmp_path, PAIRS), "--k", "3,60", "--x", "paper.YAAL")
    assert done.returncode == 0, done.stderr
    assert "left out: early-stop: paper.YAAL is undefined for every sentence" in done.stderr
    assert "Warning" not in done.stderr
    assert (tmp_path / "out" / "case.png").exists()
    for path in (tmp_path / "out").glob("*.json"):
        numbers(tmp_path, path.stem)
    assert for_json({"a": [float("nan"), 1.5, None, (float("inf"),)]}) == {
        "a": [None, 1.5, None, [None]]
    }


def test_dials_that_only_the_first_system_has(tmp_path: Path) -> None:
    """Wait-k needs whole numbers, the veto does not."""
    done = analyse(write(tmp_path, PAIRS), "--k", "2.5", "--what", "early-stop", "--set",
                   "floor=false")  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second = numbers(tmp_path, "early-stop")["subjects"]
    assert (first["name"], [at["k"] for at in first["dials"]]) == ("veto floor=false", [2.5])
    assert (second["name"], len(second["dials"])) == ("multipath", 5)


def test_settings_with_the_name_of_their_section(tmp_path: Path) -> None:
    given = ("--against-system", "multipath", "--against-set", "system.catch_up=6")
    done = analyse(write(tmp_path, PAIRS), *given, "--what", "significance", "--k", "1,5")
    assert done.returncode == 0, done.stderr
    (other,) = numbers(tmp_path, "significance")["against"]
    assert other["name"] == "multipath catch_up=6"


def test_the_case_is_one_of_the_sentences_asked_for(tmp_path: Path) -> None:
    done = analyse(write(tmp_path, PAIRS), "--sentences", 3, "--case", 2, "--what", "ratio,case")
    assert done.returncode == 0, done.stderr
    assert numbers(tmp_path, "ratio")["sentences"] == 3
    assert numbers(tmp_path, "case")["line"] == 2


def test_a_wrong_model_leaves_no_folder(tmp_path: Path) -> None:
    assert analyse(write(tmp_path, PAIRS), "--model", tmp_path / "none").returncode == 2
    assert not (tmp_path / "out").exists()


def test_scores_without_spaces_are_of_characters() -> None:
    references = ["今日は天気がいいです。", "私は学生です。"]
    written = ["今日は天気が悪いです。", "私は先生です。"]
    sums = sentence_statistics("BLEU", written, references).sum(0)
    expected = sacrebleu.corpus_bleu(written, [references], tokenize="char").score
    assert expected > 10
    assert from_statistics("BLEU", sums) == pytest.approx(expected)
    assert score("BLEU", written, references).score == pytest.approx(expected)


def test_latency_without_spaces_is_of_characters(tmp_path: Path) -> None:
    """Words of the source, characters of the target, as `evaluate` counts."""
    source = "".join(f"{text}\n" for _, text in PAIRS[:2])
    (tmp_path / "t.de").write_text(source, "utf-8")
    (tmp_path / "t.en").write_text("その家は古い。\n彼は十年間ベルリンに住んでいる。\n", "utf-8")
    given = ("--model", "en-de", "--k", "3")
    done = analyse(tmp_path, *given, "--x", "word.AL", "--what", "early-stop")
    assert done.returncode == 0, done.stderr
    done = called("evaluate", "--source", tmp_path / "t.de", "--reference", tmp_path / "t.en",
                  *given, "--out", tmp_path / "points")  # fmt: skip
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "points").glob("*.json")
    point = json.loads(path.read_text("utf-8"))
    first, *_ = numbers(tmp_path, "early-stop")["subjects"]
    found = first["dials"][0]["latency"]["guard"]
    assert np.isclose(found, point["word"]["AL"])
