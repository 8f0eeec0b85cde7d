"""Documents as streams, conditions, and degenerate policies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.commands import done_quietly
from tests.evaluations import SENTENCES, evaluated_model, written_set
from tests.streams import live_delays
from waitinfo.cli import main
from waitinfo.errors import WaitinfoError
from waitinfo.evaluation import documents
from waitinfo.evaluation.documents import (
    ALL,
    Condition,
    DocumentEvaluation,
    Documents,
    document_trace,
    evaluate_documents,
    parse_conditions,
    repeated,
)
from waitinfo.evaluation.evaluate import Decoding, Evaluation, TestSet
from waitinfo.evaluation.latency import Lags, degeneracy, yet_another_average_lagging
from waitinfo.evaluation.output import FolderOutput
from waitinfo.evaluation.trace import WordTrace
from waitinfo.progress import Silent
from waitinfo.streaming.translator import Translator
from waitinfo.trained.folder import find_model
from waitinfo.trained.saving import LoadedModel, load_model

TALK = """und dann haben wir gestern lange über den bericht gesprochen den die kommission vorgelegt
    hat aber niemand war damit zufrieden deshalb treffen wir uns morgen noch einmal """


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return evaluated_model(tmp_path_factory.mktemp("model") / "m")


@pytest.fixture
def test_set(tmp_path: Path) -> TestSet:
    return written_set(tmp_path)


# Documents


def test_documents_of_a_set(tmp_path: Path) -> None:
    assert Documents.parse("all", 5).ranges == (range(5),)
    assert Documents.parse("2", 5).ranges == (range(2), range(2, 4), range(4, 5))
    names = tmp_path / "names"
    names.write_text("a\na\nb\nb\nb\n")
    assert Documents.parse(str(names), 5).ranges == (range(2), range(2, 5))
    names.write_text("".join(f"docid={d},segid={s}\n" for d, s in ((0, 0), (0, 1), (1, 0))))
    assert Documents.parse(str(names), 3).ranges == (range(2), range(2, 3))
    with pytest.raises(WaitinfoError, match="has 3 lines, but the test set has 4"):
        Documents.parse(str(names), 4)
    with pytest.raises(WaitinfoError, match="no such file"):
        Documents.parse("nowhere", 4)
    for wrong in ("0", "-2", "2.5", "nan", "1e2"):
        with pytest.raises(WaitinfoError, match=f"documents {wrong}: use a whole number"):
            Documents.parse(wrong, 4)


def test_delays_of_a_document_are_those_of_a_live_stream(loaded: LoadedModel) -> None:
    """A stream that gets one word at a time shows each word after the same number of them."""
    words = " ".join(source for source, _ in SENTENCES).split()
    stream = Translator(loaded, streams=1).stream(2.0, history=None)
    expected = live_delays(stream, words)
    trace = document_trace(stream.trace, len(words))
    assert (trace.words, trace.delays) == expected


def test_documents_of_one_sentence_score_as_sentences_do(
    loaded: LoadedModel, test_set: TestSet
) -> None:
    """Nothing is realigned, and the document ends where the sentence does."""
    chosen = [0, 2, 3, 4]  # the other line has two sentences
    sources, references = ([texts[i] for i in chosen]
                           for texts in (test_set.sources, test_set.references))  # fmt: skip
    single = TestSet(test_set.source, test_set.reference, sources, references)
    decoding = Decoding(2.0)
    plain = Evaluation(loaded, single)
    found = plain.translate(decoding)
    expected = plain.score(decoding, found, plain.traces(found))
    whole = DocumentEvaluation(loaded, single, Documents.parse("1", len(chosen)))
    point, _ = whole.score_documents(decoding, whole.streams(decoding))
    assert point["quality"] == expected["quality"] and point["set"] == "t-documents"
    for metric in ("AL", "LAAL", "YAAL"):
        assert point["word"][metric] == pytest.approx(expected["word"][metric])
    assert point["documents"]["StreamLAAL"] == pytest.approx(expected["word"]["LAAL"])
    assert point["degeneracy"] == expected["degeneracy"]


def test_latency_of_a_document_by_hand(loaded: LoadedModel, test_set: TestSet) -> None:
    """Two sentences of two and three words; the translation lags one word behind, then waits."""
    two = TestSet(test_set.source, test_set.reference, ["a b", "c d e"], ["A B", "C D E"])
    evaluation = DocumentEvaluation(loaded, two, Documents.parse("all", 2))
    output = WordTrace(list("ABCDE"), [1, 3, 3, 5, 5], 5)
    point, sentences = evaluation.score_documents(Decoding(1.0), [output])
    assert [trace.text for trace in sentences] == ["A B", "C D E"]
    assert [trace.delays for trace in sentences] == [[1, 3], [1, 3, 3]]
    found = point["documents"]
    # B comes after its sentence, before the document ends; D and E come at the end.
    assert found["LongYAAL"] == pytest.approx(((1 + 3 - 1) / 2 + 1) / 2)
    assert found["LongLAAL"] == pytest.approx(((1 + 3 - 1) / 2 + (1 + 3 - 1) / 2) / 2)
    assert found["StreamLAAL"] == found["LongLAAL"]
    assert found["BLEU_by_edits"] == point["quality"]["BLEU"]
    assert yet_another_average_lagging([1, 3], 2, 2) == 1
    assert yet_another_average_lagging([1, 3], 2, 2, end=5) == 1.5


def test_documents_do_not_depend_on_those_beside_them(
    loaded: LoadedModel, test_set: TestSet
) -> None:
    """Few streams and small pieces of text, or all at once; progress ends at the end."""
    evaluation = DocumentEvaluation(loaded, test_set, Documents.parse("1", 5))
    together = evaluation.streams(Decoding(2.0))
    seen: list[tuple[float, float]] = []

    class Bar(Silent):
        def stage(self, name: str, total: float | None = None) -> None:
            self.total = total or 0

        def advance(self, done: float) -> None:
            seen.append((done, self.total))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "STREAMS", {"cpu": 2})
        patch.setattr(documents, "PUSHED", 3)
        assert [len(group) for group in evaluation._groups([3, 9, 4, 8, 5])] == [2, 2, 1]
        assert evaluation._groups([3, 9, 4, 8])[0] == [1, 3]
        assert evaluation.streams(Decoding(2.0), Bar()) == together
    assert seen == sorted(seen) and 0 < seen[0][0] <= seen[-1][0]
    assert seen[-1][0] == pytest.approx(seen[-1][1], rel=0.2)


def test_repeated_words() -> None:
    assert repeated(list("abcde")) == (0, 2)
    assert repeated(list("abcdabcda")) == (2, 6)
    assert repeated(["a"]) == (0, 0)


def test_a_point_of_documents(loaded: LoadedModel, test_set: TestSet, tmp_path: Path) -> None:
    evaluation = DocumentEvaluation(loaded, test_set, Documents.parse("2", 5))
    output = FolderOutput(tmp_path)
    point = evaluate_documents(evaluation, Decoding(2.0), output)
    assert point["documents"]["count"] == 3
    folder = tmp_path / "wait-info-2"
    assert len((folder / "hypotheses.txt").read_text("utf-8").splitlines()) == 5
    assert len((folder / "documents.log").read_text("utf-8").splitlines()) == 3
    again = evaluate_documents(evaluation, Decoding(2.0), output)
    assert again == json.loads(json.dumps(point))  # it was not computed again
    other = DocumentEvaluation(loaded, test_set, Documents.parse("3", 5))
    with pytest.raises(WaitinfoError, match="with another documents"):
        evaluate_documents(other, Decoding(2.0), output)
    with pytest.raises(WaitinfoError, match="streams are greedy"):
        evaluation.streams(Decoding(2.0, "allow"))


@pytest.mark.parametrize("segment", ["auto", "punctuation", "none", "none:8", "none:16"])
def test_documents_divided_as_asked(loaded: LoadedModel, test_set: TestSet, segment: str) -> None:
    """As a stream divides that is asked the same and gets one word at a time."""
    evaluation = DocumentEvaluation(loaded, test_set, Documents.parse("all", 5), segment=segment)
    (trace,) = evaluation.streams(Decoding(2.0))
    words = " ".join(evaluation.lines).split()
    stream = Translator(loaded, streams=1).stream(2.0, segment=segment)
    assert (trace.words, trace.delays) == live_delays(stream, words)
    assert evaluation.settings(Decoding(2.0)).get("segment", "auto") == segment


@pytest.mark.parametrize("segment", ["none:24", "auto:24", "punctuation"])
def test_delays_where_a_word_does_not_fit(segment: str) -> None:
    """The bundled model without sentence ends: windows move on, and full sentences are ended."""
    words = (TALK * 4).split()
    translator = Translator(load_model(find_model("de-en")), streams=1, capacity=48)
    stream = translator.stream(5.0, segment=segment, history=None)
    expected = live_delays(stream, words)
    trace = document_trace(stream.trace, len(words))
    assert (trace.words, trace.delays) == expected
    moves = [event for event in stream.trace if event.kind == "MOVE"]
    assert any(event.written for event in moves) or (segment == "punctuation" and not moves)


def test_points_divided_in_another_way_are_not_taken(
    loaded: LoadedModel, test_set: TestSet, tmp_path: Path
) -> None:
    documents, output = Documents.parse("all", 5), FolderOutput(tmp_path)
    other = DocumentEvaluation(loaded, test_set, documents, segment="none:8")
    evaluate_documents(other, Decoding(2.0), output)
    with pytest.raises(WaitinfoError, match="another window and segment"):
        evaluate_documents(DocumentEvaluation(loaded, test_set, documents), Decoding(2.0), output)


def test_a_file_has_no_pauses(loaded: LoadedModel, test_set: TestSet) -> None:
    with pytest.raises(WaitinfoError, match="come without pauses"):
        DocumentEvaluation(loaded, test_set, Documents.parse("all", 5), segment="pause:2")


# Degenerate policies


def test_degenerate_policies() -> None:
    steady = Lags([min(3 + i, 20) for i in range(20)], 20, 20)
    assert degeneracy([steady])["SWF"] == pytest.approx(85)
    assert degeneracy([steady])["EFSW"] == pytest.approx(85)
    assert not degeneracy([steady])["degenerate"]
    sudden = Lags([1, 2] + [20] * 18, 20, 20)  # two words at once, the rest at the end
    found = degeneracy([sudden])
    assert found["SWF"] == pytest.approx(10) and found["EFSW"] == pytest.approx(95)
    assert found["DSPTV"] == pytest.approx(85) and found["degenerate"]
    assert degeneracy([Lags([], 3, 3)])["SWF"] is None
    assert degeneracy([Lags([3, 3], 3, 2)])["SWF"] == 0


# Conditions


def test_names_of_conditions() -> None:
    assert [condition.name for condition in parse_conditions("all")] == list(ALL)
    assert parse_conditions("errors-7,errors-7") == [Condition("errors-7", False, True, 0.07)]
    assert Condition.parse("documents") == Condition("documents", True, False, 0)
    assert Condition.parse("documents-errors-15") == Condition(
        "documents-errors-15", True, True, 0.15
    )
    for wrong in ("", "loud", "errors-", "documents-", "lower-documents", "errors-100"):
        with pytest.raises(WaitinfoError, match="use clean, lower"):
            parse_conditions(wrong)


def test_a_set_under_conditions(test_set: TestSet) -> None:
    clean, lower, errors = (
        Condition.parse(name).apply(test_set, "de") for name in ("clean", "lower", "errors-50")
    )
    assert clean is test_set and lower.name == "t-lower" and errors.name == "t-errors-50"
    assert lower.sources[1] == "das ist gut sehr gut sogar"
    assert lower.references == test_set.references
    assert errors.sources != lower.sources and len(errors.sources) == len(lower.sources)
    assert Condition.parse("errors-50").apply(test_set, "de").sources == errors.sources
    assert Condition.parse("documents-lower").apply(test_set, "de").sources == lower.sources


# The command


def evaluate(loaded: LoadedModel, test_set: TestSet, *options: object) -> list[str]:
    files = ["--source", test_set.source, "--reference", test_set.reference]
    given = ["evaluate", "--model", loaded.folder, *files, "--threads", 1, *options]
    return [str(argument) for argument in given]


def test_conditions_side_by_side(
    loaded: LoadedModel, test_set: TestSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "points.jsonl"
    done_quietly(*evaluate(loaded, test_set, "--condition", "clean,errors-10,documents-lower",
                           "--documents", 2, "--k", 2, "--out", out))  # fmt: skip
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if "│" in line]
    assert [row.split()[1] for row in rows] == ["clean", "errors-10", "documents-lower"]
    points = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert [p["set"] for p in points] == ["t", "t-errors-10", "t-documents-lower"]
    folder = tmp_path / "folder"
    done_quietly(
        *evaluate(loaded, test_set, "--condition", "clean,lower", "--k", 2, "--out", folder)
    )
    assert (folder / "wait-info-2.json").exists() and (folder / "lower/wait-info-2.json").exists()


def test_words_are_needed(loaded: LoadedModel, test_set: TestSet) -> None:
    unspaced = replace(test_set, references=["これは本です。"] * len(test_set.sources))
    with pytest.raises(WaitinfoError, match="latency is counted in words, and t is written"):
        DocumentEvaluation(loaded, unspaced, Documents.parse("all", len(test_set.sources)))


def test_calibrating_and_asking_for_a_lag(
    loaded: LoadedModel, test_set: TestSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with pytest.raises(SystemExit):
        main(evaluate(loaded, test_set, "--lag", 3, "--out", out))
    assert "not calibrated for wait-info" in capsys.readouterr().err
    done_quietly(*evaluate(loaded, test_set, "--calibrate", "--k", "0,3,50"))
    stored = json.loads((loaded.folder / "calibration.json").read_text())
    points = stored["systems"]["wait-info"]["points"]
    assert [point["k"] for point in points] == [0, 3, 50]
    evaluation = Evaluation(loaded, test_set)
    for point in points:
        found = evaluation.translate(Decoding(point["k"]))
        scored = evaluation.score(Decoding(point["k"]), found, evaluation.traces(found))
        assert scored["word"]["LAAL"] == pytest.approx(point["lag"])
    lag = points[0]["lag"]
    done_quietly(*evaluate(loaded, test_set, "--lag", lag, "--out", out))
    (file,) = out.glob("wait-info-lag-*.json")
    point = json.loads(file.read_text())
    assert point["word"]["LAAL"] == pytest.approx(lag) and point["dial"] == "lag"
    assert point["settings"]["k"] == 0
    done_quietly(*evaluate(loaded, test_set, "--lag", lag, "--documents", "all", "--out", out))
    capsys.readouterr()
    for options, message in (
        (("--lag", 99, "--out", out), "--lag 99: this model is calibrated for lags from"),
        (("--lag", 3, "--k", 3, "--out", out), "leave out --k"),
        (("--calibrate", "--lag", 3), "--calibrate: leave out"),
        (("--calibrate", "--k", "3,3.0"), "two values of --k"),
        (("--k", 3), "--out: give a folder"),
        (("--documents", "2", "--condition", "lower", "--out", out), "--documents: not used"),
        (("--documents", "2", "--rate", "3", "--out", out), "not with documents"),
        (("--segment", "none", "--out", out), "--segment: for documents alone"),
        (("--documents", "2", "--segment", "some", "--out", out), "unknown segment 'some'"),
        (("--calibrate", "--segment", "none"), "--calibrate: leave out"),
    ):
        with pytest.raises(SystemExit):
            main(evaluate(loaded, test_set, *options))
        assert message in capsys.readouterr().err
    done_quietly("translate", "--model", loaded.folder, "--lag", lag, "Ja. Das ist gut.")
    assert capsys.readouterr().out.strip()
    with pytest.raises(SystemExit):
        main(["translate", "--model", str(loaded.folder), "--lag", "3", "--k", "2", "Ja."])
    assert "leave out --k" in capsys.readouterr().err
