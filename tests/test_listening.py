"""From a voice to words and their translation, with speech that a small program understands."""

from __future__ import annotations

import io
import struct
import threading
import time
import tracemalloc
import wave
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import waitinfo
from tests.listening import LONG, WORDS, Tones, silence, speech, tones
from waitinfo.errors import WaitinfoError
from waitinfo.listening.activity import FRAME, Loudness
from waitinfo.listening.audio import (
    RATE,
    VALUES,
    Resampler,
    Samples,
    WaveFormat,
    read_bytes,
    read_file,
    read_raw,
)
from waitinfo.listening.listen import Listener, SpeechEvent, listen
from waitinfo.listening.loading import load_recogniser
from waitinfo.listening.recogniser import Agreement, Heard, Word, fold, nearest_prefix
from waitinfo.listening.redecoding import LONGEST, MARGIN, Redecoding, plausible
from waitinfo.listening.sources import Buffered, Clock, Lost, Microphone, Paced, Piped, Recording
from waitinfo.listening.spoken import SpokenText
from waitinfo.text.scripts import split_words

# Audio


def sine(pitch: float, rate: int, seconds: float = 0.5) -> Samples:
    return np.sin(2 * np.pi * pitch * np.arange(round(rate * seconds)) / rate).astype(np.float32)


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 24_000, 44_100, 48_000])
def test_resampling_keeps_what_both_rates_can_hold(rate: int) -> None:
    found = Resampler(rate).add(sine(1_000, rate), last=True)
    wanted = sine(1_000, RATE)
    assert abs(len(found) - len(wanted)) <= 1
    inner = slice(800, 7_000)
    assert np.abs(found[inner] - wanted[inner]).max() < 2e-3
    if rate > 20_000:
        assert np.abs(Resampler(rate).add(sine(9_500, rate), last=True)[inner]).max() < 2e-3


@pytest.mark.parametrize("rate", [11_127, 47_999, 383_999])
def test_rates_that_nobody_has_take_no_more_memory(rate: int) -> None:
    resampler = Resampler(rate)
    assert resampler._filters.size < 1_000_000
    found = resampler.add(sine(1_000, rate), last=True)
    assert len(found) == pytest.approx(len(sine(1_000, RATE)), rel=1e-3)


@given(st.lists(st.integers(1, 3_000), max_size=8), st.sampled_from([8_000, 24_000, 44_100]))
def test_resampling_does_not_depend_on_the_pieces(sizes: list[int], rate: int) -> None:
    given = np.random.default_rng(1).normal(0, 0.1, sum(sizes)).astype(np.float32)
    resampler, found, place = Resampler(rate), [], 0
    for size in sizes:
        found.append(resampler.add(given[place : place + size]))
        place += size
    found.append(resampler.add(given[:0], last=True))
    whole = Resampler(rate).add(given, last=True)
    np.testing.assert_allclose(np.concatenate(found), whole, atol=1e-6)


def wav(samples: bytes, channels: int, bits: int, rate: int = RATE, kind: int = 1) -> bytes:
    head = struct.pack(
        "<HHIIHH", kind, channels, rate, rate * channels * bits // 8, channels * bits // 8, bits
    )
    return (
        b"RIFF\xff\xff\xff\xffWAVE"
        + b"LIST\x03\0\0\0abc\0"
        + b"fmt \x10\0\0\0"
        + head
        + (b"data" + struct.pack("<I", len(samples)) + samples)
    )


def test_wav_in_all_widths_reads_the_same() -> None:
    values = np.array([0.5, -0.5, 0.25, -1.0, 0.0, 0.75])
    both = np.stack([values, np.zeros(6)], axis=1)  # the mean of two channels is half
    for kind, bits in ((1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64)):
        if kind == 3:
            data = both.astype(f"<f{bits // 8}").tobytes()
        elif bits == 8:
            data = (both * 128 + 128).clip(0, 255).astype(np.uint8).tobytes()
        else:
            wide = (both * 2 ** (bits - 1)).astype("<i4")
            data = b"".join(struct.pack("<i", v)[: bits // 8] for v in wide.ravel().tolist())
        found = np.concatenate(list(read_bytes(wav(data, 2, bits, kind=kind))))
        np.testing.assert_allclose(found, values / 2, atol=1e-7)


@pytest.mark.parametrize(("rate", "channels"), [(383_999, 1), (192_000, 32), (8_000, 32)])
def test_odd_audio_is_read_in_pieces_that_take_little(rate: int, channels: int) -> None:
    """And gives the same as in other pieces."""
    values = np.random.default_rng(0).integers(-9_999, 9_999, (rate // 2, channels))
    data = wav(values.astype("<i2").tobytes(), channels, 16, rate)
    small = np.concatenate(list(read_bytes(data)))
    tracemalloc.start()
    blocks = [*read_bytes(data, seconds=5.0)]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.allclose(np.concatenate(blocks), small, atol=1e-6)
    assert most < 2 * len(data) + 32 * VALUES
    with pytest.raises(WaitinfoError, match="33 channels: must have 1 to 32"):
        next(read_bytes(wav(bytes(66), 33, 16)))


def test_python_own_wav_and_pipes_without_an_end(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes((np.arange(5_000) % 100).astype("<i2").tobytes())
    found = np.concatenate(list(read_file(path)))
    np.testing.assert_array_equal(found * 32768, np.arange(5_000) % 100)
    data = path.read_bytes()
    endless = data[:40] + b"\xff\xff\xff\xff" + data[44:-1]  # and half a sample at the end
    np.testing.assert_array_equal(np.concatenate(list(read_bytes(endless))), found[:-1])
    plain = np.concatenate(list(read_raw(io.BytesIO(data[47:]), data[44:47])))
    np.testing.assert_array_equal(plain, found)


@pytest.mark.parametrize(
    "data", [b"", b"RIFF", b"RIFF\0\0\0\0WAVE", b"RIFF\0\0\0\0WAVEdata\4\0\0\0"]
)
def test_damaged_wav_is_an_error_in_one_line(data: bytes) -> None:
    with pytest.raises(WaitinfoError):
        list(read_bytes(data))


def test_other_files_are_an_error_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("no audio")
    for wrong in (path, tmp_path / "b.wav", tmp_path):
        with pytest.raises(WaitinfoError, match=str(wrong)):
            list(read_file(wrong))
    with pytest.raises(WaitinfoError, match="bits"):
        WaveFormat(1, 1, RATE, 12)


# Agreement


def edits(first: list[str], second: list[str]) -> int:
    if not first or not second:
        return len(first) + len(second)
    if first[0] == second[0]:
        return edits(first[1:], second[1:])
    return 1 + min(edits(first[1:], second), edits(first, second[1:]), edits(first[1:], second[1:]))


words = st.lists(st.sampled_from("abc"), max_size=5)


@given(words, words)
def test_the_nearest_beginning_has_the_fewest_edits(heard: list[str], committed: list[str]) -> None:
    place = nearest_prefix(heard, committed)
    costs = [edits(heard[:end], committed) for end in range(len(heard) + 1)]
    assert costs[place] == min(costs)


@given(st.lists(words, min_size=1, max_size=6))
def test_commits_only_what_two_recognitions_say(looks: list[list[str]]) -> None:
    agreement, said = Agreement(), []
    for number, look in enumerate(looks):
        new, still = agreement.update([Word(w, 0, 0) for w in look])
        said += [word.text for word in new]
        if number == 0:
            assert not said
        tail = [word.text for word in (*new, *still)]
        assert tail == look[len(look) - len(tail) :]
    assert agreement.committed == said
    final = agreement.finish([Word(w, 0, 0) for w in looks[-1]])
    assert agreement.committed == said + [word.text for word in final]
    if all(look == looks[0] for look in looks):
        assert agreement.committed == looks[0]


def test_a_full_stop_at_the_end_of_the_audio_is_not_believed() -> None:
    agreement = Agreement()
    looks = ["Die Kommission hat.", "Die Kommission hat.", "Die Kommission, hat heute"]
    found = [
        [word.text for word in agreement.update([Word(w, 0, 0) for w in look.split()])[0]]
        for look in looks
    ]
    assert found == [[], ["Die", "Kommission"], ["hat"]]
    assert fold("„Hat!“") == "hat" and fold("–") == "–"


def test_noises_and_loops_are_no_words() -> None:
    assert plausible(["[Musik]", "guten", "Morgen", "(lacht", "laut)", "*", "hm", "*"], 2) == [
        "guten",
        "Morgen",
    ]
    assert plausible(["ja"] * 30, 9) == ["ja"]
    assert plausible(["so", "ist", "es"] * 6 + ["ja"], 9) == ["so", "ist", "es"]
    assert plausible(["sehr", "sehr", "sehr", "gut"], 9) == ["sehr", "sehr", "sehr", "gut"]
    assert len(plausible([f"wort{n}" for n in range(100)], 1.0)) == 11
    assert split_words("Ja, 今日は ok") == ["Ja,", "今", "日", "は", "ok"]


# Recognising again


def blocks(samples: Samples, seconds: float = 0.1) -> Iterator[Samples]:
    size = round(seconds * RATE)
    for place in range(0, len(samples), size):
        yield samples[place : place + size]


def heard(recogniser: Redecoding, samples: Samples, seconds: float = 0.1) -> list[Heard]:
    voice = recogniser.voice(live=False)
    found = [each for block in blocks(samples, seconds) for each in voice.hear(block)]
    return found + voice.finish()


def said(found: list[Heard]) -> list[Word]:
    return [word for each in found for word in each.words]


def text(found: list[Heard]) -> list[str]:
    return [word.text for word in said(found)]


@pytest.mark.parametrize("times", [False, True])
def test_words_come_once_in_order_and_at_their_times(times: bool) -> None:
    samples, spoken = speech([0.5, *WORDS[:9], 1.5, *WORDS[9:], 0.2])
    found = heard(Redecoding(Tones(times=times)), samples)
    assert text(found) == WORDS
    slack = 0.1 if times else 0.5  # estimated times follow the number of letters
    for word, truth in zip(said(found), spoken, strict=True):
        assert abs(word.start - truth.start) < slack and abs(word.end - truth.end) < slack
    ends = [time for word in said(found) for time in (word.start, word.end)]
    assert ends == sorted(ends)
    # A word is committed before the sentence is over, and not before it was spoken.
    assert len([each for each in found if each.words]) > 4
    last = {word.text: each.position for each in found for word in each.words}
    assert all(last[word.text] >= word.end - 0.1 for word in spoken)
    pauses = [each for each in found if each.pause]
    assert len(pauses) == 2 and pauses[0].position < spoken[9].start
    assert not found[-1].open


@pytest.mark.parametrize("seconds", [0.013, 0.5, 3.0, 100.0])
def test_the_words_do_not_depend_on_the_blocks(seconds: float) -> None:
    samples, _ = speech([*WORDS[:6], 1.2, *WORDS[6:], 2.0])
    assert text(heard(Redecoding(Tones()), samples, seconds)) == WORDS


def test_a_stretch_without_pauses_is_cut_and_loses_nothing() -> None:
    many = WORDS * 3  # half a minute
    samples, _ = speech(many)
    transcriber = Tones()
    found = heard(Redecoding(transcriber), samples)
    assert text(found) == many
    assert max(transcriber.asked) <= LONGEST + 0.1
    assert sum(each.pause for each in found) == 1  # the end


def test_a_voice_is_continued_at_any_anchor() -> None:
    """Another voice that hears the audio from there on says the rest, and nothing twice."""
    samples, _ = speech([*WORDS[:9], 1.4, *WORDS[9:12], 0.7, *WORDS * 2, 1.5])
    made = Redecoding(Tones())
    found = heard(made, samples)
    assert len({each.anchor.sample for each in found}) > 4
    for place, each in enumerate(found, 1):
        rest = made.voice(carried=each.anchor.words)
        again = [*rest.hear(samples[each.anchor.sample :]), *rest.finish()]
        assert sentences(found[:place] + again) == sentences(found), each
        done = text(found[:place])
        assert each.anchor.words == tuple(done[len(done) - len(each.anchor.words) :])


def sentences(found: list[Heard]) -> list[str]:
    """The words between pauses; some pauses are told twice."""
    marked = [part for each in found for part in (*text([each]), *(["|"] if each.pause else []))]
    return [each for each in " ".join(marked).split("|") if each.strip()]


def test_silence_noise_and_clicks_are_not_recognised() -> None:
    transcriber = Tones()
    click = np.zeros(400, np.float32)
    click[:40] = 0.8
    noise = np.random.default_rng(2).normal(0, 0.004, 5 * RATE).astype(np.float32)
    for samples in (silence(5), np.concatenate([silence(2), click, silence(2)]), noise):
        found = heard(Redecoding(transcriber), samples)
        assert not any(each.words or each.open or each.pause for each in found)
        told = [each.position for each in found]  # that nothing is said
        assert [round(each) for each in told] in ([2], [2, 4])
        assert all(each.position - each.anchor.sample / RATE < MARGIN + 0.1 for each in found)
    assert transcriber.asked == []
    both = np.concatenate([noise, 0.1 * sine(300, RATE)])[: 165 * FRAME]
    loud = Loudness().voiced(both.reshape(-1, FRAME))
    assert not loud[:156].any() and loud[158:].all()


def test_lost_audio_ends_a_stretch_and_keeps_time() -> None:
    samples, _ = speech([*WORDS[:3], 0.1])
    voice = Redecoding(Tones()).voice()
    found = voice.hear(samples) + voice.skip(5 * RATE)
    found += voice.hear(samples) + voice.finish()
    assert text(found) == WORDS[:3] * 2
    assert said(found)[3].start >= 5 + len(samples) / RATE - 0.5
    assert voice.skip(RATE) == []


class StillClock(Clock):
    """Time that passes only where a test says so."""

    def __init__(self) -> None:
        self.moment = 0.0

    def now(self) -> float:
        return self.moment

    def until(self, moment: float) -> None:
        self.moment = max(self.moment, moment)


class Slow(Tones):
    """Takes so many seconds of a clock for each stretch."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        super().__init__()
        self.clock, self.seconds = clock, seconds

    def transcribe(self, samples: Samples, language: str | None) -> list[Word | str]:
        self.clock.until(self.clock.now() + self.seconds)
        return super().transcribe(samples, language)


def test_a_slow_machine_looks_less_often_and_keeps_up() -> None:
    samples, _ = speech([*WORDS[:12], 2.0])
    counts = []
    for seconds in (0.0, 0.7):
        clock = StillClock()
        transcriber = Slow(clock, seconds)
        voice = Redecoding(transcriber, every=0.2).voice()
        found = []
        for block in Paced(blocks(samples), clock):
            assert isinstance(block, np.ndarray)
            found += voice.hear(block)
        found += voice.finish()
        assert text(found) == WORDS[:12]
        assert clock.now() < len(samples) / RATE + 2 * seconds + 0.2
        counts.append(len(transcriber.asked))
    assert counts[1] < counts[0] / 2
    assert voice.rhythm >= 0.7


def test_what_is_much_too_slow_loses_audio_and_says_so() -> None:
    samples, _ = speech(WORDS * 6)  # more than a minute
    clock = StillClock()
    voice = Redecoding(Slow(clock, 25.0)).voice()
    lost, behind = 0, 0.0
    given = 0
    for block in Paced(blocks(samples), clock):
        if isinstance(block, Lost):
            voice.skip(block.samples)
            lost += block.samples
        else:
            voice.hear(block)
        given += block.samples if isinstance(block, Lost) else len(block)
        behind = max(behind, clock.now() - given / RATE)
    assert lost and given == len(samples)
    assert behind < 90


# Sources


def test_a_buffer_drops_the_oldest_or_lets_the_writer_wait() -> None:
    dropping = Buffered(drop=True)
    for number in range(40):
        dropping.put(np.full(RATE, number, np.float32))
    dropping.end()
    lost, kept = dropping
    assert isinstance(lost, Lost) and lost.samples == 10 * RATE
    assert isinstance(kept, np.ndarray) and kept[0] == 10 and len(kept) == 30 * RATE

    piped = Piped(np.full(RATE, number, np.float32) for number in range(100))
    parts = [part for part in piped if not isinstance(part, Lost)]
    assert np.concatenate(parts)[::RATE].tolist() == list(range(100))


def test_a_pipe_that_fails_says_so_after_what_came() -> None:
    def broken() -> Iterator[Samples]:
        yield np.zeros(RATE, np.float32)
        raise WaitinfoError("gone")

    seen = []
    with pytest.raises(WaitinfoError, match="gone"):
        for part in Piped(broken()):
            seen.append(part)
    assert sum(map(len, seen)) == RATE


class FakeStream:
    """What sounddevice.InputStream does: calls back from a thread of its own."""

    def __init__(self, samples: Samples, callback, finished_callback, blocksize, **given) -> None:
        self.samples, self.given = samples, given
        self.callback, self.finished, self.size = callback, finished_callback, blocksize

    def __enter__(self) -> FakeStream:
        self.thread = threading.Thread(target=self.play)
        self.thread.start()
        return self

    def play(self) -> None:
        for place in range(0, len(self.samples), self.size):
            self.callback(self.samples[place : place + self.size, None], self.size, None, None)
        self.finished()

    def __exit__(self, *_: object) -> None:
        self.thread.join()


def fake_sounddevice(samples: Samples, rates: tuple[int, ...] = (RATE,)) -> SimpleNamespace:
    devices = [{"name": "USB mic", "max_input_channels": 1, "default_samplerate": 48_000.0}]

    class PortAudioError(Exception):
        pass

    def query(device: object = None, kind: str | None = None) -> object:
        if kind is None:
            return devices
        if device not in (None, 0, "USB"):
            raise ValueError(f"No input device matching {device!r}")
        return devices[0]

    def check(device: object, samplerate: int, **_: object) -> None:
        if samplerate not in rates:
            raise PortAudioError("Invalid sample rate")

    return SimpleNamespace(
        PortAudioError=PortAudioError, query_devices=query, check_input_settings=check,
        InputStream=lambda **given: FakeStream(samples, **given),
    )  # fmt: skip


@pytest.mark.parametrize("rate", [RATE, 48_000])
def test_a_microphone_is_heard(rate: int) -> None:
    samples, _ = speech([*WORDS[:4], 0.5])
    given = samples if rate == RATE else Resampler(RATE, rate).add(samples, last=True)
    microphone = Microphone("USB", fake_sounddevice(given, (rate,)))
    voice = tones().voice()
    found = [each for part in microphone for each in voice.hear(part)] + voice.finish()
    assert text(found) == WORDS[:4] and microphone.name == "USB mic"


def test_a_microphone_that_is_not_there_is_an_error_with_those_that_are() -> None:
    with pytest.raises(WaitinfoError, match="USB mic"):
        Microphone("studio", fake_sounddevice(silence(1)))


# Recognisers by name


def test_wrong_recognisers_are_an_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model.onnx").touch()
    wrong = [tmp_path / "file", tmp_path / "empty", tmp_path / "onnx", "./none", "no.module:thing"]
    for name in (*wrong, "tests.listening:nothing", "vosk:"):
        with pytest.raises(WaitinfoError):
            load_recogniser(name)
    with pytest.raises(WaitinfoError, match="every"):
        load_recogniser("tests.listening:tones", every=0)
    assert load_recogniser("tests.listening:tones").name == "tones"
    assert isinstance(load_recogniser("tests.listening:Tones", every=2.5), Redecoding)


# Translation


@pytest.fixture(scope="module")
def translator() -> waitinfo.Translator:
    return waitinfo.load(streams=4)


def by_kind(events: list[SpeechEvent], kind: str) -> list[SpeechEvent]:
    return [event for event in events if event.kind == kind]


def test_words_are_translated_with_their_times(translator: waitinfo.Translator) -> None:
    samples, spoken = speech([*WORDS[:2], 1.5, *WORDS[2:13], 1.5])
    events = list(listen(blocks(samples), tones(), translator))
    assert [event.text for event in by_kind(events, "HEARD")] == WORDS[:13]
    first, second = by_kind(events, "END")
    assert first.source == " ".join(WORDS[:2]) and second.source == " ".join(WORDS[2:13])
    # A stream of the same text with an end in the same place writes the same.
    with translator.stream() as stream:
        wanted = stream.push("guten morgen") + stream.flush()
        wanted += stream.push(" ".join(WORDS[2:13])) + stream.finish()
    written = "".join(event.text for event in by_kind(events, "WRITE"))
    assert written == "".join(event.text for event in wanted)
    assert [first.text, second.text] == [
        "".join(e.text for e in wanted if e.sentence == n).strip() for n in (0, 1)
    ]
    assert abs(second.start - spoken[2].start) < 0.5 and abs(second.end - spoken[12].end) < 0.5
    for event in by_kind(events, "WRITE"):
        assert event.event is not None and event.start <= event.end <= event.audio <= event.time + 1
    # Open words are neither translated nor part of what was heard.
    assert any("…" in event.text for event in by_kind(events, "OPEN"))
    assert not any("…" in event.text for event in by_kind(events, "HEARD"))
    assert events[-1].kind == "END" or not by_kind(events, "OPEN")[-1].text


def test_stopping_translates_what_was_heard(translator: waitinfo.Translator) -> None:
    samples, _ = speech(WORDS)
    listener = listen(blocks(samples), tones(), translator)
    events = []
    for event in listener:
        events.append(event)
        if event.text == "heute":
            listener.stop()
    heard = [event.text for event in by_kind(events, "HEARD")]
    assert heard[: WORDS.index("heute") + 1] == WORDS[: WORDS.index("heute") + 1]
    assert len(heard) < len(WORDS)
    assert " ".join(event.source for event in by_kind(events, "END")).split() == heard
    assert translator.open_streams == 0


def test_a_listener_that_is_left_gives_its_stream_back(translator: waitinfo.Translator) -> None:
    samples, _ = speech(WORDS)
    events = iter(listen(blocks(samples), tones(), translator))
    next(events)
    events.close()  # type: ignore[attr-defined]
    assert translator.open_streams == 0


def test_recognition_alone() -> None:
    samples, _ = speech([*WORDS[:3], 0.5])
    events = list(Listener(Recording(blocks(samples)), tones().voice(), None))
    assert [event.text for event in events if event.kind == "HEARD"] == WORDS[:3]


def test_words_are_found_again_in_what_a_stream_reads(translator: waitinfo.Translator) -> None:
    """Also characters without spaces, and words that normalisation changes."""
    given = ["Guten", "Morgen,", "ﬁnde", "ich", "…", "今", "日", "schön."]
    text, found = SpokenText(), []
    with translator.stream(raw=True) as stream:
        for number, each in enumerate(given):
            piece = text.give(Word(each, number, number + 1))
            for event in stream.push(piece):
                found += text.read(event)
        for event in stream.finish():
            found += text.read(event)
    assert [word.start for word in found] == list(range(len(given)))


def test_lost_audio_is_an_event(translator: waitinfo.Translator) -> None:
    samples, _ = speech([*WORDS[:3], 0.5])

    class Leaky(Recording):
        def __iter__(self) -> Iterator[Samples | Lost]:
            yield from super().__iter__()
            yield Lost(2 * RATE)

    listener = listen(Leaky(blocks(samples)), tones(), translator)
    (lost,) = [event for event in listener if event.kind == "LOST"]
    assert listener.lost == 2.0 and lost.end - lost.start == pytest.approx(2.0)
    assert lost.start == pytest.approx(len(samples) / RATE)


def test_the_clock_of_a_file_says_when_it_would_have_been(translator: waitinfo.Translator) -> None:
    samples, _ = speech([0.3, *WORDS[:5], 1.5])
    began = time.monotonic()
    events = list(listen(blocks(samples), tones(), translator))
    assert all(event.time >= event.audio - 0.15 for event in events)
    assert time.monotonic() - began < 60
    assert events[-1].end <= len(samples) / RATE + LONG
