"""`evaluate --audio` and the speech processor of simulstream, with speech that is made of tones."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sacrebleu", reason="needs the extra bleu")

from tests.commands import called, done_quietly
from tests.listening import SENTENCES, WORDS, speech, spoken_manifest, tones
from tests.streams import toy_model
from waitinfo import Translator
from waitinfo.evaluation.latency import length_adaptive_average_lagging
from waitinfo.evaluation.speech import (
    Moment,
    Segment,
    Talk,
    hear,
    read_manifest,
    score,
    simulstream_log,
    word_errors,
    write_results,
)
from waitinfo.listening.audio import RATE


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Talk], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("speech")
    talks = hear(read_manifest(spoken_manifest(folder)), tones(), Translator(toy_model(), 1), 2)
    point = score(talks, resamples=0)
    write_results(folder / "out", talks, point)
    return folder / "out", talks, point


def test_what_was_spoken_is_heard_and_timed(heard: Any) -> None:
    _, talks, point = heard
    assert [word.text for talk in talks for word in talk.heard] == WORDS
    assert point["word_error_rate"] == 0 and point["words"] == len(WORDS)
    assert (point["recordings"], point["segments"], point["lost_seconds"]) == (2, 3, 0)
    for talk in talks:
        spoken = speech([0.4, *SENTENCES[0 if talk is talks[0] else 2]])[1]
        for word, truth in zip(talk.heard, spoken, strict=False):
            assert abs(word.spoken - truth.end) < 0.3
        for word in (*talk.heard, *talk.written):
            assert word.spoken <= word.audio + 1e-9 and word.audio <= word.time + 0.1
    delays = sorted(word.audio - word.spoken for talk in talks for word in talk.heard)
    assert point["recognised"]["audio"]["median"] == pytest.approx(np.median(delays))
    assert point["translated"]["time"]["mean"] >= point["translated"]["audio"]["mean"] - 0.1


def test_latency_of_a_case_worked_by_hand() -> None:
    """Two words, spoken in a second each; the second one is written in the silence after it."""
    written = [Moment("a", 1.0, 1.5, 1.6), Moment("b", 2.0, 2.5, 2.9)]
    talk = Talk(Path("x.wav"), [Segment(Path("x.wav"), "a b", 0.0, 2.0, "c d")], 3.0, [], written)
    found = score([talk], resamples=0)
    # LAAL stops at the first word after the source; its ideal writer writes at 0 and at 1.
    assert found["latency"]["StreamLAAL"] == pytest.approx((1.5 + 2.5 - 1) / 2)
    assert found["latency_with_computation"]["StreamLAAL"] == pytest.approx((1.6 + 2.9 - 1) / 2)
    assert found["latency"]["LongYAAL"] == pytest.approx(1.5)  # the second is after the end
    assert found["latency_with_computation"]["LongYAAL"] == pytest.approx(1.6)
    assert found["translated"]["audio"]["p95"] == pytest.approx(0.5)
    assert found["word_error_rate"] == 100


def test_word_errors() -> None:
    assert word_errors(["a", "b", "c"], ["a", "b", "c"]) == 0
    assert word_errors(["a", "x", "c", "d"], ["a", "b", "c"]) == 2
    assert word_errors([], ["a"]) == 1 and word_errors(["a"], []) == 1


def test_simulstream_reads_the_log(heard: Any) -> None:
    readers = pytest.importorskip("simulstream.metrics.readers", reason="simulstream is missing")
    folder, talks, point = heard
    config = SimpleNamespace(detokenizer_type="simuleval", latency_unit="word")
    read = readers.LogReader(config, str(folder / "simulstream.jsonl"))
    found = read.final_outputs_and_latencies()
    assert [found[name].final_text.split() for name in ("0", "1")] == [
        [word.text for word in talk.written] for talk in talks
    ]
    for name, talk in zip(("0", "1"), talks, strict=True):
        assert found[name].ideal_delays == [word.audio for word in talk.written]
        aware = [word.time for word in talk.written]
        assert found[name].computational_aware_delays == pytest.approx(aware)
    assert read.num_deleted_tokens() == 0
    assert len(list(simulstream_log(talks))) > 4 and point["latency"]["StreamLAAL"] is not None


def test_a_single_segment_as_simulstream_scores_it() -> None:
    """StreamLAAL of a recording with one sentence is LAAL, which theirs computes alike."""
    scorers = pytest.importorskip(
        "simulstream.metrics.scorers.latency.stream_laal", reason="simulstream is missing"
    )
    delays, length, reference = [1.2, 1.9, 2.4, 4.5], 4.0, 5
    theirs = scorers.StreamLaal._sentence_level_laal(delays, length, reference)
    assert length_adaptive_average_lagging(delays, length, reference) == pytest.approx(theirs)


def test_the_speech_processor_writes_what_listen_writes(heard: Any) -> None:
    pytest.importorskip("simulstream", reason="simulstream is missing")
    from waitinfo.simulstream import SpeechProcessor

    samples = np.concatenate([speech([0.4, *words, 1.3])[0] for words in SENTENCES[:2]])
    config = SimpleNamespace(
        type="waitinfo.simulstream.SpeechProcessor", speech_chunk_size=0.5, latency_unit="word",
        recogniser="tests.listening:tones", model="de-en", k=2.0,
    )  # fmt: skip
    SpeechProcessor.load_model(config)
    SpeechProcessor.translator = Translator(toy_model(), 1)
    made = SpeechProcessor(config)
    with SpeechProcessor.translator.stream(2, raw=True, history=None) as stream:
        for words in SENTENCES[:2]:
            stream.push("".join(f"{word} " for word in words))
            stream.flush()
        stream.finish()
        whole = stream.text.split()
    for _ in range(2):  # it is cleared in between
        step = round(0.5 * RATE)
        blocks = [samples[at : at + step] for at in range(0, len(samples), step)]
        outputs = [made.process_chunk(block) for block in blocks]
        outputs.append(made.end_of_stream())
        made.clear()
        assert [token for each in outputs for token in each.new_tokens] == whole
        assert not any(each.deleted_tokens or each.deleted_string for each in outputs)
        assert sum(bool(each.new_tokens) for each in outputs) > 2


def test_the_command(tmp_path: Path) -> None:
    given = spoken_manifest(tmp_path)
    out = tmp_path / "out"
    done_quietly("evaluate", "--audio", given, "--recogniser", "tests.listening:tones",
                 "--lag", "4,5", "--out", out)  # fmt: skip
    for lag in (4, 5):
        point = json.loads((out / f"veto-lag-{lag}" / "audio.json").read_text())
        assert point["words"] == len(WORDS) and point["lag"] == lag
    assert (
        "manifest" in called("evaluate", "--audio", given, "--source", given, "--out", out).stderr
    )
    assert "--reference" in called("evaluate", "--source", given, "--out", out).stderr
    wrong = tmp_path / "wrong.jsonl"
    for line, reason in (("{}", "line 1"), ('{"audio": "x", "reference": ""}', "no such file")):
        wrong.write_text(line)
        assert reason in called("evaluate", "--audio", wrong, "--out", out).stderr
