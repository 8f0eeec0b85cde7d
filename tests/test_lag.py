"""Latency by name: calibrations, the controller of a stream, and its replay in a batch."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.streams import calibration, record, some_text, toy_model
from waitinfo import AsyncTranslator, Translator
from waitinfo.errors import WaitinfoError
from waitinfo.evaluation.calibrate import default_dials, measured_lag
from waitinfo.evaluation.latency import length_adaptive_average_lagging
from waitinfo.evaluation.trace import WordTrace
from waitinfo.streaming.decoder import Decoder, Schedule
from waitinfo.streaming.event import Event
from waitinfo.streaming.lag import GAIN, SPAN, LagController, LagMeter, WordCount, mean_lag
from waitinfo.streaming.scheduler import HISTORY
from waitinfo.streaming.stream import Stream
from waitinfo.systems import SYSTEMS, build_system
from waitinfo.trained.calibration import (
    FILE,
    Calibration,
    CalibrationPoint,
    interpolate,
    read_calibration,
    write_calibration,
)

# Calibrations


def test_dials_between_calibrated_ones() -> None:
    found = calibration(slope=2.0)
    assert found.dial(5.0) == 2.5 and found.goal(5.0) == 4.5
    assert found.dial(2.0) == 1 and found.dial(18.0) == 9
    assert calibration(whole=True, slope=2.0).dial(7.3) == 4  # the nearest


@pytest.mark.parametrize("lag", [0.9, 9.01, float("nan")])
def test_lags_out_of_range(lag: float) -> None:
    with pytest.raises(WaitinfoError, match="calibrated for lags from 1.00 to 9.00 words"):
        calibration().dial(lag)


def test_noise_in_a_calibration_is_smoothed_over() -> None:
    points = [CalibrationPoint(k, lag, lag, 20) for k, lag in ((1, 2.0), (2, 1.9), (3, 4.0))]
    found = Calibration(tuple(points), False, 1.0)
    assert found.lags == [2.0, 2.0, 4.0] and found.dial(3.0) == 2.5
    with pytest.raises(WaitinfoError, match="lags that rise"):
        Calibration(tuple(replace(point, lag=3.0) for point in points), False, 1.0)


@given(st.lists(st.floats(0, 100), min_size=2, max_size=6), st.floats(-5, 105))
def test_interpolation(values: list[float], x: float) -> None:
    """Between two known points it is on the line through them; elsewhere it is an end's value."""
    xs = sorted(values)
    ys = [3 * value + 1 for value in xs]
    inside = min(max(x, xs[0]), xs[-1])
    assert interpolate(x, xs, ys) == pytest.approx(3 * inside + 1)


def test_a_calibration_is_stored_for_its_system(tmp_path: Path) -> None:
    mine, other = build_system("wait-info"), build_system("multipath")
    with pytest.raises(WaitinfoError, match="not calibrated for wait-info.*evaluate --calibrate"):
        read_calibration(tmp_path, mine)
    write_calibration(tmp_path, mine, calibration(), {"test": {}})
    write_calibration(tmp_path, other, calibration(whole=True), {"test": {}})
    assert read_calibration(tmp_path, mine) == calibration()
    assert read_calibration(tmp_path, other) == calibration(whole=True)
    with pytest.raises(WaitinfoError, match="calibrated with floor=True;"):
        read_calibration(tmp_path, build_system("wait-info", {"floor": False}))
    with pytest.raises(WaitinfoError, match="full translates whole sentences"):
        read_calibration(tmp_path, build_system("full"))
    stored = json.loads((tmp_path / FILE).read_text())
    del stored["systems"]["wait-info"]["pace"]
    (tmp_path / FILE).write_text(json.dumps(stored))
    with pytest.raises(WaitinfoError, match="damaged"):
        read_calibration(tmp_path, mine)
    (tmp_path / FILE).write_text("{")
    with pytest.raises(WaitinfoError, match="cannot be read"):
        read_calibration(tmp_path, mine)


def test_a_calibration_outlives_new_options(tmp_path: Path) -> None:
    """An option that was not known when it was made had its default then."""
    system = build_system("wait-info")
    write_calibration(tmp_path, system, calibration(), {})
    stored = json.loads((tmp_path / FILE).read_text())
    del stored["systems"]["wait-info"]["options"]["info_norm"]
    (tmp_path / FILE).write_text(json.dumps(stored))
    assert read_calibration(tmp_path, system) == calibration()
    with pytest.raises(WaitinfoError, match="calibrated with info_norm=sentence;"):
        read_calibration(tmp_path, build_system("wait-info", {"info_norm": "batch"}))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ([], 5), (["options"], 3), (["pace"], float("nan")), (["pace"], 0), (["pace"], "1"),
        (["points"], None), (["points", 2], "x"), (["points", 2, "measured"], None),
        (["points", 2, "k"], "1"), (["points", 2, "k"], -50), (["points", 2, "lag"], float("inf")),
        (["points", 2, "more"], 1),
    ],
)  # fmt: skip
def test_a_damaged_calibration_is_named(tmp_path: Path, path: list, value: object) -> None:
    system = build_system("wait-info")
    write_calibration(tmp_path, system, calibration(), {})
    stored = json.loads((tmp_path / FILE).read_text())
    *parents, last = ["systems", "wait-info", *path]
    place = stored
    for parent in parents:
        place = place[parent]
    place[last] = value
    (tmp_path / FILE).write_text(json.dumps(stored))
    with pytest.raises(WaitinfoError, match=r"calibration.json: damaged \(.*evaluate --calibrate"):
        read_calibration(tmp_path, system)


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_with_a_dial_can_be_calibrated(name: str) -> None:
    system = build_system(name)
    if system.dial is None:
        with pytest.raises(WaitinfoError, match="no dial"):
            default_dials(system)
    else:
        assert len(set(default_dials(system))) > 5


# Measuring


@given(st.lists(st.integers(0, 4), min_size=1, max_size=SPAN - 1), st.integers(0, 3))
def test_the_lag_of_a_sentence_is_its_laal(steps: list[int], rest: int) -> None:
    """Without a reference, the translation's own length takes its place."""
    delays, read = [], 1
    for step in steps:
        read += step
        delays.append(read)
    source = read + rest
    meter = LagMeter(pace=7.0)
    assert [meter.show(delay) for delay in delays] == [None] * len(delays)
    expected = length_adaptive_average_lagging(delays, source, len(delays))
    assert meter.end(source) == pytest.approx(expected)


def test_long_sentences_are_measured_in_parts() -> None:
    meter = LagMeter(pace=2.0)
    found = [meter.show(3 + 2 * i) for i in range(2 * SPAN + 5)]
    assert [i for i, lag in enumerate(found, 1) if lag is not None] == [SPAN, 2 * SPAN]
    assert found[SPAN - 1] == found[2 * SPAN - 1] == 3.0  # always three words behind
    assert meter.end(3 + 2 * (2 * SPAN + 5)) == 3.0
    assert mean_lag([5, 9, 9, 9], 2.0, source=9) == (5 + 9 - 2) / 2


def test_the_pace_follows_what_was_said() -> None:
    meter = LagMeter(pace=1.0)
    for _ in range(500):
        for _ in range(10):
            meter.show(5)
        meter.end(20)
    assert 1.9 < meter.pace < 2


def test_lags_of_a_whole_set() -> None:
    traces = [WordTrace(["a", "b"], [1, 2], 2), WordTrace(["a", "b"], [2, 2], 2),
              WordTrace([], [], 3)]  # fmt: skip
    assert measured_lag(traces, 1.0) == pytest.approx((1 + 2) / 2)


# Controlling


def event(kind: str, read: int, written: int, word: str | None, sentence: int) -> Event:
    token = "t" if word or kind == "WRITE" else "</s>"
    return Event(kind, token, word, None, read, written, 0, 0, read - written, sentence, 0.0)  # type: ignore[arg-type]


def speak(controller: LagController, sentence: int, words: int, lag: float) -> None:
    """Events of a sentence whose translation lags behind by `lag` words, one word for each."""
    read = written = 0
    while written < words:
        if read < words and read < written + lag:
            read += 1
            controller.observe(event("READ", read, written, "w", sentence), False)
        else:
            written += 1
            controller.observe(event("WRITE", read, written, "v", sentence), written == words)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("bias", [-1.5, 0.0, 2.0])
def test_the_mean_lag_tends_to_the_target(whole: bool, bias: float) -> None:
    """The calibration is wrong by `bias` words, and sentences vary; the mean comes right."""
    draw = random.Random(5)
    controller = LagController(5.0, calibration(whole))
    measured = []
    for sentence in range(400):
        # What this sentence has: the dial's lag, the error and noise, as a stream measures it.
        lag = max(1.0, controller.k - 0.5 + bias + draw.gauss(0, 1))
        speak(controller, sentence, 40, lag)
        before = LagMeter(1.0)
        shown = [before.show(min(40, int(-(-(i + lag) // 1)))) for i in range(40)]
        last = before.end(40)
        measured += [value for value in (*shown, last) if value is not None]
    assert fmean(measured) == pytest.approx(controller.goal, abs=0.15)


@settings(max_examples=50)
@given(st.lists(st.floats(-20, 60), max_size=60), st.booleans(), st.floats(1, 9))
def test_the_dial_turns_slowly_and_stays_in_range(
    lags: list[float], whole: bool, target: float
) -> None:
    controller = LagController(target, calibration(whole))
    for lag in lags:
        before = controller.k
        controller._correct(lag)
        assert 1 <= controller.k <= 9
        assert abs(controller.k - before) <= 1 + 1e-9  # the slope is one dial for a word
        assert not whole or controller.k == int(controller.k)
    for _ in range(int(12 / GAIN)):  # whatever happened, it comes back
        controller._correct(controller.goal + controller.k - controller.calibration.dial(target))
    assert controller.k == pytest.approx(controller.calibration.dial(target), abs=1.01)


def test_a_word_counts_from_its_first_token() -> None:
    count = WordCount()
    for word, expected in ((None, 1), ("ab", 1), ("c", 2), (None, 3)):
        count.read(event("READ", 1, 0, "x", 0)._replace(word=word))
        assert count.words == expected
    count.read(event("READ", 5, 0, None, 0))  # end-of-sentence
    assert count.words == 3


# Streams


def held(system: str = "wait-info", whole: bool = False, streams: int = 4) -> Translator:
    """A model whose calibration says little about it, so that its dial is turned a lot."""
    translator = Translator(toy_model(system), streams=streams, capacity=48)
    translator.dials.calibration = calibration(whole)
    return translator


def run_stream(translator: Translator, pieces: list[str], lag: float) -> Stream:
    stream = translator.stream(lag=lag, history=None, raw=True)
    for piece in pieces:
        stream.push(piece)
    stream.finish()
    return stream


@settings(max_examples=6)
@given(st.integers(0, 1 << 30), st.sampled_from([2.0, 4.5]))
def test_the_same_text_in_any_pieces_gives_the_same(seed: int, lag: float) -> None:
    draw = random.Random(seed)
    text = some_text(draw, 40)
    cuts = sorted(draw.sample(range(1, len(text)), 6))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    translator = held()
    whole, cut = (run_stream(translator, given, lag) for given in ([text], pieces))
    assert record(whole.trace) == record(cut.trace)
    assert whole.turns == cut.turns


@pytest.mark.parametrize(("system", "whole"), [("wait-info", False), ("wait-k", True)])
def test_the_batch_replays_a_stream(system: str, whole: bool) -> None:
    """With the dials of the stream by position, the decoder writes the same after the same."""
    translator = held(system, whole)
    stream = run_stream(translator, [some_text(random.Random(8), 400) + " ba."], 3.0)
    assert len(stream.turns) > 3
    sentences: dict[int, list[list[Event]]] = {}
    for e in stream.trace:
        sentences.setdefault(e.sentence, [[], []])[e.kind == "WRITE"].append(e)
    schedules, sources, current = [], [], stream.turns[0].k
    for number, (reads, _) in sentences.items():
        turns = [turn for turn in stream.turns if turn.sentence == number]
        starts = {0: current} | {turn.written: turn.k for turn in turns}
        current = turns[-1].k if turns else current
        schedules.append(Schedule(list(starts), list(starts.values())))
        pieces = "".join(e.token for e in reads if e.token != "</s>")
        sources.append(translator.vocabulary.source.encode(pieces.replace("\u2581", " ")))
    loaded = translator.loaded
    found = Decoder(loaded.model, loaded.system).decode(sources, schedules)
    fixed = Decoder(loaded.model, loaded.system).decode(sources, stream.turns[0].k)
    for hypothesis, (_, writes) in zip(found, sentences.values(), strict=True):
        assert hypothesis.path == [e.read for e in writes]
        target = [loaded.vocabulary.target.piece(token) for token in hypothesis.tokens]
        assert target == [e.token for e in writes if e.token != "</s>"]
    assert found != fixed  # the turns have made a difference


def test_setting_and_leaving_a_lag() -> None:
    translator = held()
    stream = translator.stream(lag=3.0)
    assert stream.lag == 3.0 and stream.k == 3.0
    stream.k = 5.0
    assert stream.lag is None and stream.k == 5.0 and stream.turns == []
    stream.push("ba be bi. bo bu")
    stream.lag = 2.0
    assert stream.k == 2.0
    assert stream._channel.controller.turns.maxlen == HISTORY
    for wrong in ("4", Decimal(4), [4]):
        with pytest.raises(WaitinfoError, match=r"lag = .*: must be a number"):
            stream.lag = wrong
        with pytest.raises(WaitinfoError, match=r"k = .*: must be a number"):
            stream.k = wrong
    assert stream.lag == 2.0
    stream.push("da de. " + some_text(random.Random(1), 60))
    assert stream.k == stream.turns[-1].k != 2.0
    now = stream.k
    stream.lag = None
    assert stream.k == now and stream.lag is None
    with pytest.raises(WaitinfoError, match="lag 77: this model is calibrated"):
        stream.lag = 77
    with pytest.raises(WaitinfoError, match="k or lag, not both"):
        translator.stream(k=1, lag=1)
    stream.close()


def test_streams_without_a_calibration() -> None:
    translator = Translator(toy_model("wait-info"), streams=1)
    with pytest.raises(WaitinfoError, match="toy: not calibrated for wait-info"):
        translator.stream(lag=3.0)
    with pytest.raises(WaitinfoError, match="not calibrated"):
        Translator(toy_model("wait-info"), streams=1, lag=3.0)
    assert translator.stream().lag is None


def test_a_default_lag() -> None:
    translator = held()
    translator.lag = 4.0
    assert translator.stream().lag == 4.0 and translator.check_dial(None) == 4.0
    assert translator.stream(k=2).lag is None

    async def on_a_loop() -> list[tuple]:
        async with AsyncTranslator(translator) as streams:
            stream = streams.stream(history=None)
            await stream.push(text)
            await stream.finish()
            return record(stream.trace)

    text = some_text(random.Random(4), 50)
    stream = translator.stream(history=None)
    stream.push(text)
    stream.finish()
    assert asyncio.run(on_a_loop()) == record(stream.trace)
