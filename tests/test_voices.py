"""Recognition in processes of its own, subtitles, and the command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import wave
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.commands import HANGS, called
from tests.listening import WORDS, silence, speech
from tests.tools import ROOT
from waitinfo.errors import WaitinfoError
from waitinfo.listening.audio import RATE, Samples
from waitinfo.listening.captions import (
    WIDTH,
    CaptionFile,
    Cue,
    Sentence,
    clock,
    cues,
    layout,
    subtitles,
    width,
)  # fmt: skip
from waitinfo.listening.recogniser import Heard
from waitinfo.listening.workers import BUFFER, Busy, Turn, VoiceObserver, Voices

# Workers


class Talk:
    """Collects what a voice gives."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []
        self.error: Exception | None = None
        self.ended = threading.Event()

    def end(self, error: Exception | None) -> None:
        self.error = error
        self.ended.set()

    @property
    def words(self) -> list[str]:
        return [word.text for each in self.heard for word in each.words]


class Counting(VoiceObserver):
    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.refusals: list[str] = []
        self.failures: list[Exception] = []

    def turn(self, stats: Turn) -> None:
        self.turns.append(stats)

    def refused(self, reason: str) -> None:
        self.refusals.append(reason)

    def failed(self, error: Exception) -> None:
        self.failures.append(error)


def pieces(samples: Samples) -> list[Samples]:
    return [samples[place : place + 800] for place in range(0, len(samples), 800)]


def test_many_voices_are_heard_side_by_side() -> None:
    observer = Counting()
    with Voices("tests.listening:tones", voices=3, workers=2, threads=1, observer=observer) as pool:
        talks = [Talk() for _ in range(3)]
        voices = [pool.open(talk.heard.extend, talk.end, "de") for talk in talks]
        with pytest.raises(Busy, match="3 voices"):
            pool.open(lambda found: None)
        parts = [pieces(speech(WORDS[n : n + 8])[0]) for n in range(3)]
        for turn in range(max(map(len, parts))):
            for voice, samples in zip(voices, parts, strict=True):
                if turn < len(samples):
                    assert voice.push(samples[turn]) == len(samples[turn])
        for voice, talk in zip(voices, talks, strict=True):
            voice.finish()
            assert talk.ended.wait(HANGS) and talk.error is None
        for number, talk in enumerate(talks):
            assert talk.words == WORDS[number : number + 8]
        assert pool.open_voices == 0 and pool.waiting == 0
        with pytest.raises(WaitinfoError, match="finished"):
            voices[0].push(silence(1))
    assert observer.refusals == ["voices"] and not observer.failures
    assert sum(turn.words for turn in observer.turns) == 24
    total = sum(len(each) for samples in parts for each in samples) / RATE
    assert sum(turn.audio for turn in observer.turns) == pytest.approx(total)


def test_a_voice_that_is_too_fast_fills_its_own_buffer() -> None:
    with Voices("tests.listening:tones", voices=2, threads=1) as pool:
        other = pool.open(lambda found: None)
        with pool._changed:  # the worker cannot take anything meanwhile
            taken = [other.push(silence(7)) for _ in range(6)]
            assert sum(taken) == round(BUFFER * RATE) and taken[-1] == 0
            assert other.waiting == BUFFER
        talk = Talk()
        voice = pool.open(talk.heard.extend, talk.end)
        voice.push(speech([*WORDS[:3], 0.5])[0])
        voice.finish()
        assert talk.ended.wait(HANGS) and talk.words == WORDS[:3]
        other.close()
        other.close()
        assert pool.open_voices == 0


def test_a_worker_that_dies_fails_its_voices_and_starts_again() -> None:
    observer = Counting()
    with Voices("tests.listening:Fatal", voices=4, threads=1, observer=observer) as pool:
        bystander, fatal, raising = Talk(), Talk(), Talk()
        pool.open(bystander.heard.extend, bystander.end)
        voice = pool.open(raising.heard.extend, raising.end)
        voice.push(speech(["idee", 1.0])[0])
        assert raising.ended.wait(HANGS) and "no idea" in str(raising.error)
        assert not bystander.ended.is_set()  # an error of one voice is its own
        voice = pool.open(fatal.heard.extend, fatal.end)
        voice.push(speech(["luft", 1.0])[0])
        for talk in (bystander, fatal):
            assert talk.ended.wait(HANGS) and "died" in str(talk.error)
        talk = Talk()
        voice = pool.open(talk.heard.extend, talk.end)
        voice.push(speech([*WORDS[:3], 0.5])[0])
        voice.finish()
        assert talk.ended.wait(HANGS) and talk.error is None and talk.words == WORDS[:3]
        assert pool.open_voices == 0
    assert len(observer.failures) == 3


def test_a_recogniser_that_does_not_load_is_an_error_at_once() -> None:
    with pytest.raises(WaitinfoError, match="nothing"):
        Voices("tests.listening:nothing", threads=1)
    with pytest.raises(WaitinfoError, match="voices"):
        Voices("tests.listening:tones", voices=0)


# Subtitles


def test_a_sentence_becomes_lines_that_end_where_clauses_do() -> None:
    said = "The Commission has presented a plan in Brussels to improve air quality, which we have "
    first, second = cues([Sentence(f"{said}awaited for a long time.", 10.0, 18.0)])
    assert first.lines == (
        "The Commission has presented a plan", "in Brussels to improve air quality,",
    )  # fmt: skip
    assert second.lines == ("which we have awaited for a long time.",)
    # By letters: 35 and 35, and 38.
    assert first.start == 10.0 and first.end == second.start == pytest.approx(10 + 8 * 70 / 108)
    assert second.end == pytest.approx(18.0)


texts = st.lists(st.text("abcdefgh,. ", min_size=1, max_size=30), min_size=1, max_size=25).map(
    lambda parts: " ".join(" ".join(parts).split())
)


@settings(max_examples=30)
@given(st.lists(st.tuples(texts, st.floats(0, 3), st.floats(0.2, 12)), max_size=5))
def test_subtitles_keep_every_word_and_their_limits(given: list[tuple[str, float, float]]) -> None:
    sentences, now = [], 0.0
    for text, gap, length in given:
        sentences.append(Sentence(text, now + gap, now + gap + length))
        now += gap + length
    found = list(cues(sentences))
    shown = "".join(line for cue in found for line in cue.lines)
    assert shown.replace(" ", "") == "".join(text for text, _, _ in given).replace(" ", "")
    for cue in found:
        assert 1 <= len(cue.lines) <= 2 and all(0 < width(line) <= WIDTH for line in cue.lines)
        assert cue.start < cue.end
    assert all(one.end <= other.start + 0.11 for one, other in pairwise(found))


def test_no_subtitle_shows_one_word_for_a_moment() -> None:
    given = [Sentence("Good.", 0.0, 0.3), Sentence("We begin now.", 0.5, 1.5)]
    given += [Sentence("Yes.", 20.0, 20.2)]
    first, second = cues(given)
    assert first.lines == ("Good. We begin now.",) and first.start == 0.0
    assert second == Cue(20.0, 21.0, ("Yes.",))


def test_ideographs_count_twice_and_break_anywhere() -> None:
    said = "今日は新しい提案について話します。" * 5
    parts = layout(said)
    assert "".join(line for lines in parts for line in lines) == said
    assert all(width(line) <= WIDTH for lines in parts for line in lines)
    assert width("今日x") == 5
    assert layout("x" * 100) == [("x" * 42, "x" * 42), ("x" * 16,)]


def test_srt_and_vtt_as_written_by_hand(tmp_path: Path) -> None:
    given = [Sentence("A & B", 1.0, 2.5), Sentence("Yes, it is so today.", 3723.5, 3726.25)]
    assert subtitles(given, "srt") == (
        "1\n00:00:01,000 --> 00:00:02,500\nA & B\n\n"
        "2\n01:02:03,500 --> 01:02:06,250\nYes, it is so today.\n\n"
    )
    vtt = subtitles(given, "vtt")
    assert vtt.startswith("WEBVTT\n\n00:00:01.000 --> 00:00:02.500\nA &amp; B\n\n")
    assert clock(59.9996, ",") == "00:01:00,000"
    out = CaptionFile(tmp_path / "a.srt")
    out.add(given[0])
    assert (tmp_path / "a.srt").read_text() == ""
    out.add(given[1])
    assert (tmp_path / "a.srt").read_text() == subtitles(given[:1], "srt")
    out.close()
    assert (tmp_path / "a.srt").read_text() == subtitles(given, "srt")
    for wrong in (tmp_path / "a.txt", tmp_path / "none" / "a.srt"):
        with pytest.raises(WaitinfoError, match="captions"):
            CaptionFile(wrong)


# The command


def saved(path: Path, samples: Samples) -> Path:
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes((samples * 32767).astype("<i2").tobytes())
    return path


TONES = ("--recogniser", "tests.listening:tones")


def test_the_command_shows_both_lines_and_writes_subtitles(tmp_path: Path) -> None:
    samples, _ = speech([*WORDS[:2], 1.5, *WORDS[2:13], 0.5])
    path = saved(tmp_path / "a.wav", samples)
    done = called("listen", "--audio", path, *TONES, "--captions", tmp_path / "a.vtt")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "guten morgen" and lines[3] == " ".join(WORDS[2:13])
    assert lines[1].lower().startswith("good morning") and lines[4] and not lines[5]
    captions = (tmp_path / "a.vtt").read_text()
    blocks = re.findall(r"--> .*\n((?:.+\n)+)", captions)
    shown = " ".join(" ".join(blocks).split())
    assert shown == f"{lines[1]} {lines[4]}"

    done = called("listen", "--audio", path, *TONES, "--show", "json")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [e["text"] for e in events if e["kind"] == "END"] == [lines[1], lines[4]]


def test_the_command_hears_standard_input() -> None:
    samples, _ = speech([*WORDS[:2], 0.2])
    pcm = (samples * 32767).astype("<i2").tobytes()
    done = called("listen", "-", *TONES, stdin=pcm)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "guten morgen"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--audio", "none.wav"], "none.wav"),
        (["talk.wav"], "--audio"),
        (["-", "--audio", "a.wav"], "one of"),
        (["-", "--pace"], "--pace"),
        (["--audio", "a.wav", "--k", "3", "--lag", "4"], "--lag"),
        (["--audio", "a.wav", "--captions", "a.txt"], ".srt"),
        (["--audio", "a.wav", "--show", "path"], "words, json"),
        (["--audio", "a.wav", "--every", "0"], "every"),
    ],
)
def test_wrong_options_are_an_error_in_one_line(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "a.wav", silence(0.1))
    done = called("listen", *arguments, *TONES)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


def test_ctrl_c_ends_politely(tmp_path: Path) -> None:
    samples, _ = speech([*WORDS[:2], 1.5, *WORDS[2:] * 9])
    path = saved(tmp_path / "a.wav", samples)
    command = [sys.executable, "-m", "waitinfo", "listen", "--audio", path, "--pace", *TONES]
    command += ["--show", "json", "--captions", tmp_path / "a.srt"]
    places = os.pathsep.join([str(ROOT), str(ROOT / "src"), *sys.path])
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": places},
    )  # fmt: skip
    assert process.stdout is not None
    events = []
    for line in process.stdout:
        events.append(json.loads(line))
        if events[-1]["kind"] == "HEARD" and events[-1]["text"] == "mit":
            process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=HANGS)
    assert process.returncode == 0, stderr
    heard = [event["text"] for event in events if event["kind"] == "HEARD"]
    assert heard == [*WORDS[:2], *(WORDS[2:] * 9)[: len(heard) - 2]] and len(heard) < 9 * 20
    ends = [event for event in events if event["kind"] == "END"]
    assert " ".join(end["source"] for end in ends).split() == heard
    captions = (tmp_path / "a.srt").read_text()
    shown = " ".join(" ".join(re.findall(r"--> .*\n((?:.+\n)+)", captions)).split())
    assert shown == " ".join(end["text"] for end in ends)
    assert np.isfinite([event["time"] for event in events]).all()
