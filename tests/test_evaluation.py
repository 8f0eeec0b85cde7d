"""Evaluation: traces in words, points that survive interruption, quality, timing."""

from __future__ import annotations

import gzip
import re
import sys
import types
from pathlib import Path

import pytest

from tests.evaluations import SENTENCES, evaluated_model, interrupt_once, written_set
from tests.streams import live_delays
from waitinfo.errors import WaitinfoError
from waitinfo.evaluation import quality, timing
from waitinfo.evaluation.evaluate import Decoding, Evaluation, TestSet, evaluate_point
from waitinfo.evaluation.output import FolderOutput, UnfinishedPoint
from waitinfo.evaluation.timing import Timing
from waitinfo.evaluation.trace import word_trace
from waitinfo.streaming.decoder import Decoder, Hypothesis
from waitinfo.streaming.translator import Translator
from waitinfo.trained.saving import LoadedModel, load_model, save_model


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return evaluated_model(tmp_path_factory.mktemp("model") / "m")


@pytest.fixture
def test_set(tmp_path: Path) -> TestSet:
    return written_set(tmp_path)


# Words


def test_a_word_waits_for_the_token_after_it(loaded: LoadedModel) -> None:
    """By hand: tokens of three words, with the source tokens read before each."""
    target = loaded.vocabulary.target
    first, second, third = (target.encode(w) for w in ("That", "is", "everywhere"))
    source = "Das ist gut."
    ends = []  # source tokens read when each word is complete
    for word in source.split():
        ends.append((ends[-1] if ends else 0) + len(loaded.vocabulary.source.encode(word)))
    tokens = [*first, *second, *third]
    starts = {0: ends[0], len(first): ends[0], len(first) + len(second): ends[1]}
    path, now = [], 0
    for i in range(len(tokens)):
        now = starts.get(i, now)
        path.append(now)
    hypothesis = Hypothesis(tokens, [*path, ends[2] + 1], ends[2] + 1, [], [], True)
    trace = word_trace(loaded.vocabulary, source, hypothesis)
    # "That" is shown when "is" starts, "is" when "everywhere" starts, the last at the end.
    assert trace.words == ["That", "is", "everywhere"]
    assert trace.delays == [1, 2, 3]
    assert trace.source_words == 3


def test_traces_are_what_a_stream_shows(loaded: LoadedModel) -> None:
    """Word delays of the batch equal those of a stream that gets one word at a time."""
    sources = [source for source, _ in SENTENCES]
    for k in (1.0, 3.0):
        found = Decoder(loaded.model, loaded.system).decode(
            [loaded.vocabulary.source.encode(s) for s in sources], k
        )
        for source, hypothesis in zip(sources, found, strict=True):
            trace = word_trace(loaded.vocabulary, source, hypothesis)
            stream = Translator(loaded, streams=1).stream(k, segment="whole")
            assert (trace.words, trace.delays) == live_delays(stream, source.split())


# Points


def test_an_interrupted_point_continues_where_it_stopped(
    loaded: LoadedModel, test_set: TestSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = Evaluation(loaded, test_set)
    whole = evaluate_point(evaluation, Decoding(2.0), FolderOutput(tmp_path / "whole"))

    asked = interrupt_once(monkeypatch)
    output = FolderOutput(tmp_path / "cut")
    with pytest.raises(KeyboardInterrupt):
        evaluate_point(evaluation, Decoding(2.0), output)
    assert not (output.folder / "wait-info-2.json").exists()
    (partial,) = output.folder.glob(".wait-info-2.*.partial.jsonl")
    damaged = partial.read_text() + '[9, {"no": 1}]\n[4, {"tok'  # an incomplete line
    partial.write_text(damaged)
    resumed = evaluate_point(evaluation, Decoding(2.0), output)
    assert asked == [5, 3] and not partial.exists()
    for part in ("quality", "paper", "word", "settings"):
        assert resumed[part] == whole[part]
    assert evaluate_point(evaluation, Decoding(2.0), output)["paper"] == whole["paper"]
    assert asked == [5, 3]  # a finished point is not computed again


def test_an_unfinished_point_of_other_settings_is_neither_used_nor_lost(
    loaded: LoadedModel, test_set: TestSet, tmp_path: Path
) -> None:
    evaluation = Evaluation(loaded, test_set)
    other = Decoding(2.0, "allow")
    partial = UnfinishedPoint(tmp_path, "wait-info-2", evaluation.settings(other))
    partial.add(0, Hypothesis([], [1], 1, [], [], True))
    point = evaluate_point(evaluation, Decoding(2.0), FolderOutput(tmp_path))
    assert point["empty"] == 0
    with pytest.raises(WaitinfoError, match="another process is evaluating this point"):
        UnfinishedPoint(tmp_path, "wait-info-2", evaluation.settings(other))
    partial.close()
    assert len(UnfinishedPoint(tmp_path, "wait-info-2", evaluation.settings(other)).found) == 1


def test_later_requests_are_added_to_a_point(
    loaded: LoadedModel, test_set: TestSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation, bare = Evaluation(loaded, test_set), FolderOutput(tmp_path, text=False)
    point = evaluate_point(evaluation, Decoding(2.0), bare, Timing(3.0, 2))
    bare.write({**point, "label": "two"})
    with_text = evaluate_point(evaluation, Decoding(2.0), FolderOutput(tmp_path))
    assert with_text["timed"] == point["timed"] and with_text["label"] == "two"
    monkeypatch.setattr(Decoder, "results", None)  # translating would fail from here on
    faster = evaluate_point(evaluation, Decoding(2.0), FolderOutput(tmp_path), Timing(6.0, 2))
    assert faster["timed"]["words_per_second"] == 6 and faster["label"] == "two"
    assert (
        evaluate_point(evaluation, Decoding(2.0), FolderOutput(tmp_path), Timing(6.0, 2)) == faster
    )


def test_overwriting_leaves_nothing_of_the_old_point(
    loaded: LoadedModel, test_set: TestSet, tmp_path: Path
) -> None:
    evaluation = Evaluation(loaded, test_set)
    evaluate_point(evaluation, Decoding(2.0), FolderOutput(tmp_path))
    assert (tmp_path / "wait-info-2" / "instances.log").exists()
    bare = FolderOutput(tmp_path, text=False, overwrite=True)
    evaluate_point(evaluation, Decoding(2.0, "allow"), bare)
    assert not (tmp_path / "wait-info-2").exists()
    with pytest.raises(WaitinfoError, match="contains a point wait-info-2 with another ending"):
        evaluate_point(evaluation, Decoding(2.0), FolderOutput(tmp_path))


def test_checksums_do_not_depend_on_compression(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x\ny\n")
    with gzip.open(tmp_path / "a.gz", "wt") as stream:
        stream.write("x\ny\n")
    (tmp_path / "b").write_text("x\nz\n")
    plain, packed, other = (
        TestSet.read(tmp_path / name, tmp_path / "a").facts["source"]["sha256"]
        for name in ("a", "a.gz", "b")
    )
    assert plain == packed != other


def test_settings_distinguish_models(
    loaded: LoadedModel, test_set: TestSet, tmp_path: Path
) -> None:
    weights = loaded.model.weights()
    save_model(tmp_path / "other", loaded.model, weights, loaded.system, loaded.vocabulary)
    weights["encoder_norm.bias"] = weights["encoder_norm.bias"] + 1e-3
    save_model(tmp_path / "changed", loaded.model, weights, loaded.system, loaded.vocabulary)
    first, same, changed = (
        Evaluation(load_model(folder), test_set).model_facts["sha256"]
        for folder in (loaded.folder, tmp_path / "other", tmp_path / "changed")
    )
    assert first == same != changed


def test_a_point_by_hand(loaded: LoadedModel, tmp_path: Path) -> None:
    """Invented translations with known paths: token metrics include end-of-sentence."""
    encode = loaded.vocabulary.source.encode
    source, reference = "Das ist gut.", "That is good."
    n = len(encode(source)) + 1
    (tmp_path / "s").write_text(f"{source}\n" * 2)
    (tmp_path / "r").write_text(f"{reference}\n" * 2)
    evaluation = Evaluation(loaded, TestSet.read(tmp_path / "s", tmp_path / "r"))
    tokens = encode("That is")
    whole = Hypothesis(tokens, [n] * (len(tokens) + 1), n, [], [], True)  # read all, then write
    early = Hypothesis([], [2], n, [], [], True)  # ends after two source tokens, without words
    cut = Hypothesis(tokens, [1] * len(tokens), n, [], [], False)  # stopped by the length limit
    found = [whole, early]
    point = evaluation.score(Decoding(1.0), found, evaluation.traces(found))
    assert point["paper"]["CW"] == pytest.approx((n + 2) / 2)
    assert point["paper"]["AP"] == pytest.approx((1 + 2 / n) / 2)
    assert point["paper"]["AL"] == pytest.approx((n + 2) / 2)
    assert point["paper"]["YAAL"] == pytest.approx(2)  # only the second has one
    assert point["word"]["AL"] == pytest.approx(3)  # only the first has words
    assert (point["early_stop"], point["cut_off"], point["empty"]) == (0.5, 0, 1)
    assert point["length_ratio"] == pytest.approx(2 / 6)
    assert point["target_per_source"] == pytest.approx((len(tokens) + 2) / (2 * n))
    both = [cut, whole]
    assert evaluation.score(Decoding(1.0), both, evaluation.traces(both))["cut_off"] == 0.5


def test_intervals_equal_sacrebleu() -> None:
    from sacrebleu.metrics import BLEU

    references = [f"the cat number {i} sat on the mat" for i in range(40)]
    texts = [r.replace("sat", "sits") if i % 3 else r for i, r in enumerate(references)]
    found = quality.score("BLEU", texts, references, 1000)
    expected = BLEU().corpus_score(texts, [references], n_bootstrap=1000)
    assert found.interval == pytest.approx(expected._ci, rel=1e-6) and found.interval > 0.5
    assert "bs:1000" in found.signature
    assert "bs:" not in quality.score("BLEU", texts, references).signature


def test_scores_of_a_point(loaded: LoadedModel, test_set: TestSet) -> None:
    import sacrebleu

    evaluation = Evaluation(loaded, test_set)
    found = evaluation.translate(Decoding(3.0))
    traces = evaluation.traces(found)
    point = evaluation.score(Decoding(3.0), found, traces)
    texts = [" ".join(trace.words) for trace in traces]
    references = [reference for _, reference in SENTENCES]
    expected = sacrebleu.corpus_bleu(texts, [references])
    assert point["quality"]["BLEU"] == pytest.approx(expected.score)
    lowered = sacrebleu.corpus_bleu(texts, [references], lowercase=True)
    assert point["quality"]["BLEU_lowercase"] == pytest.approx(lowered.score)
    bare = [[re.sub(r"[.,!?]", "", line).lower() for line in side] for side in (texts, references)]
    words = sacrebleu.corpus_bleu(bare[0], [bare[1]], tokenize="none")
    assert point["quality"]["BLEU_words"] == pytest.approx(words.score)
    assert point["quality"]["chrF"] == pytest.approx(
        sacrebleu.corpus_chrf(texts, [references]).score
    )
    assert point["early_stop"] == 0 and point["empty"] == sum(not text for text in texts)
    length = sum(len(text.split()) for text in texts)
    assert point["length_ratio"] == pytest.approx(length / sum(len(r.split()) for r in references))


def test_empty_lines_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x\ny\n")
    (tmp_path / "b").write_text("x\n \n")
    with pytest.raises(WaitinfoError, match="line 2: the reference is empty"):
        TestSet.read(tmp_path / "a", tmp_path / "b")
    with pytest.raises(WaitinfoError, match="line 2: the sentence is empty"):
        TestSet.read(tmp_path / "b", tmp_path / "a")


def test_words_alone_are_compared_without_case_and_punctuation() -> None:
    references = ["He said: \"Don't go, it's 3.5 km!\"", "…", "One, two; three (four)."]
    spoken = ["he said don't go it's 3.5 km", "", "one two three four"]
    assert quality.score("BLEU_words", spoken, references).score == pytest.approx(100)
    assert quality.score("BLEU_lowercase", spoken, references).score < 60
    assert quality.paired_bootstrap("BLEU_words", spoken, references, references).p_value == 1
    assert quality.sentence_scores("BLEU_words", spoken, references)[0] == pytest.approx(100)


# Significance and COMET


def test_paired_bootstrap_distinguishes_better_from_equal() -> None:
    references = [f"the cat number {i} sat on the mat" for i in range(60)]
    worse = [r.replace("the mat", "a rug") for r in references]
    slightly = [r.replace("sat", "sits") if i == 7 else r for i, r in enumerate(references)]
    assert quality.paired_bootstrap("BLEU", worse, references, references).p_value < 0.01
    assert quality.paired_bootstrap("BLEU", slightly, references, references).p_value > 0.05
    assert quality.paired_bootstrap("BLEU", worse, worse, references).p_value == 1
    upper = [text.upper() for text in worse]
    assert quality.paired_bootstrap("BLEU_lowercase", worse, upper, references).p_value == 1


def test_comet_is_called_correctly_and_its_absence_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quality.load_comet.cache_clear()
    monkeypatch.setitem(sys.modules, "comet", None)
    with pytest.raises(WaitinfoError, match=r"pip install 'waitinfo\[comet\]'"):
        quality.comet(["a"], ["b"], ["c"])

    class Model:
        def predict(self, data, batch_size, gpus, progress_bar):
            assert data == [{"src": "a", "mt": "b", "ref": "c"}] and gpus == 0
            return types.SimpleNamespace(system_score=0.75)

    fake = types.ModuleType("comet")
    fake.download_model = lambda name: f"downloaded {name}"
    fake.load_from_checkpoint = lambda path: Model()
    monkeypatch.setitem(sys.modules, "comet", fake)
    assert quality.comet(["a"], ["b"], ["c"]) == 0.75
    quality.load_comet.cache_clear()


# Timing


def test_the_clock_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two words per second; processing the first takes 0.7 s, so the second has to wait."""
    now = [100.0]
    costs = {
        "one": [(0.7, "eins")],
        "two": [(0.1, None), (0.2, "zwei drei")],
        "three": [(0.1, None)],
    }

    class Stream:
        began = 100.0

        def push(self, word: str) -> list:
            events = []
            for cost, shown in costs[word]:
                now[0] += cost
                event = types.SimpleNamespace(kind="WRITE", word=shown, time=now[0] - self.began)
                events.append(event)
            return events

        def finish(self) -> list:
            now[0] += 0.4
            return [types.SimpleNamespace(kind="WRITE", word="vier", time=now[0] - self.began)]

    monkeypatch.setattr(timing.time, "monotonic", lambda: now[0])
    translator = types.SimpleNamespace(stream=lambda k, segment: Stream())
    trace = timing.timed_trace(translator, "one two three", 1.0, rate=2.0)
    # Word 1 arrives at 500 ms and is done at 1200. Word 2 arrives at 1000, starts at 1200 and is
    # shown at 1500. Word 3 arrives and starts at 1500, and the end is shown 500 ms later.
    assert trace.shown == pytest.approx([1200, 1500, 1500, 2000])
    assert trace.said == [500, 1000, 1000, 1500]
    assert trace.work == pytest.approx([700, 300, 500])
    assert trace.behind == pytest.approx(500) and trace.source == 1500


def test_timed_points(loaded: LoadedModel, test_set: TestSet, tmp_path: Path) -> None:
    evaluation = Evaluation(loaded, test_set)
    output = FolderOutput(tmp_path, text=False)
    point = evaluate_point(evaluation, Decoding(2.0), output, Timing(3.0, 4))
    found = point["timed"]
    assert found["sentences"] == 4 and found["ms_per_source_word"] > 0
    for metric in ("AL", "LAAL", "DAL", "AP"):
        assert found["computation_aware_ms"][metric] > found["ideal_ms"][metric]
    words = evaluation.score(Decoding(2.0), *_chosen(evaluation, [0, 1, 2, 3]))["word"]
    for metric in ("AL", "LAAL", "DAL"):  # at 3 words per second, a word takes 333 ms
        assert found["ideal_ms"][metric] == pytest.approx(words[metric] * 1000 / 3), metric
    for rate in (0, float("inf")):
        with pytest.raises(WaitinfoError, match="^rate"):
            Timing(rate, 4)


def _chosen(evaluation: Evaluation, numbers: list[int]) -> tuple:
    """The translations of some sentences, and the test set reduced to them."""
    found = evaluation.translate(Decoding(2.0))
    test = evaluation.test
    evaluation.test = TestSet(
        test.source, test.reference, [test.sources[i] for i in numbers],
        [test.references[i] for i in numbers],
    )  # fmt: skip
    evaluation.reference_tokens = [evaluation.reference_tokens[i] for i in numbers]
    chosen = [found[i] for i in numbers]
    return chosen, evaluation.traces(chosen)


def test_full_sentence_models_are_timed_too(
    loaded: LoadedModel, test_set: TestSet, tmp_path: Path
) -> None:
    whole = load_model(loaded.folder, system="full")
    point = evaluate_point(
        Evaluation(whole, test_set), Decoding(1.0), FolderOutput(tmp_path), Timing(3, 2)
    )
    assert point["k"] is None and point["timed"]["computation_aware_ms"]["AL"] > 0
