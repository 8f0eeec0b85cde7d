"""Real recognisers and recordings of people: each kind as a stream, and through the pages."""

from __future__ import annotations

import json
import os
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.browsing import browser, needs_chromium, problems, shows, speaker_and_listener
from tests.listening import save
from tests.oracle import edits
from tests.recognisers import converted_whisper, recordings, vosk_english, whisper_tiny
from tests.serving import running, wait_for
from waitinfo.listening.audio import RATE
from waitinfo.listening.loading import load_recogniser
from waitinfo.listening.recogniser import Heard
from waitinfo.serving.hearing import Hearing
from waitinfo.serving.hub import Hub
from waitinfo.serving.metrics import Metrics
from waitinfo.serving.models import load_models

__all__ = ["browser", "problems"]


def plain(words: list[str]) -> list[str]:
    return [word.strip(string.punctuation).lower() for word in words]


def faster_whisper() -> Path:
    pytest.importorskip("faster_whisper", reason="needs faster-whisper")
    return converted_whisper()


def vosk() -> Path:
    pytest.importorskip("vosk", reason="needs vosk")
    return vosk_english()


KINDS = {
    "onnx-asr": (whisper_tiny, "de", "69"),
    "faster-whisper": (faster_whisper, "de", "69"),
    "vosk": (vosk, "en", "platforms"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_recording_is_heard_as_a_stream(kind: str) -> None:
    weights, language, name = KINDS[kind]
    samples, said = recordings(language, name, pause=1.5)
    voice = load_recogniser(weights(), every=1.5, threads=1).voice(language, live=False)
    found: list[Heard] = []
    for begin in range(0, len(samples), RATE // 10):
        found += voice.hear(samples[begin : begin + RATE // 10])
    found += voice.finish()
    words = [word for heard in found for word in heard.words]
    assert edits(plain([word.text for word in words]), said) <= len(said) / 2
    times = [time for word in words for time in (word.start, word.end)]
    assert times == sorted(times) and times[0] >= 0
    # It is heard while it is spoken, and the silence after it is told.
    assert found[0].position < len(samples) / RATE - 1.5 and found[-1].pause
    # The last word ends where the speaker does. (Where the first one is, Whisper only guesses.)
    spoken = np.flatnonzero(np.abs(samples) > 0.1 * np.abs(samples).max()) / RATE
    assert abs(times[-1] - spoken[-1]) < 1


def test_vosk_is_heard_as_by_itself() -> None:
    """What is committed early is what Vosk says in the end."""
    module = pytest.importorskip("vosk", reason="needs vosk")
    samples, _ = recordings("en", "platforms")
    model = str(vosk_english())
    voice = load_recogniser(model).voice()
    found = [word.text for heard in voice.hear(samples) + voice.finish() for word in heard.words]
    alone = module.KaldiRecognizer(module.Model(model), RATE)
    alone.AcceptWaveform((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    assert found == json.loads(alone.FinalResult())["text"].split()


SOCKET = """window.WebSocket = class extends WebSocket {
  constructor(...given) {
    super(...given);
    this.addEventListener("message", (event) => {
      const message = JSON.parse(event.data);
      if (message.type === "heard") (window.heard ??= []).push(message);
    });
  }
  send(given) {
    const message = typeof given === "string" ? JSON.parse(given) : {};
    if (message.type === "start") window.pace = { k: message.k, lag: message.lag };
    super.send(given);
  }
};"""


@needs_chromium
def test_spoken_german_is_english_on_another_page(
    browser: Any, tmp_path: Path, problems: list[str]
) -> None:
    """Whisper hears a person at the microphone of one browser, and people read it in another."""
    samples, said = recordings("de", "68", "69", pause=1.5)
    silence = np.zeros(60 * RATE, np.float32)
    recording = save(
        tmp_path / "speech.wav", np.concatenate([silence[: 2 * RATE], samples, silence])
    )
    metrics = Metrics()
    models = load_models([Path("de-en")], metrics, streams=4, device="cpu", compare=0)
    hub = Hub(models, metrics=metrics, hearing=Hearing(metrics, str(whisper_tiny()), 1))
    phone = {"viewport": {"width": 360, "height": 740}}
    with (
        running(hub) as server,
        speaker_and_listener(browser, server, recording, problems, SOCKET, **phone) as pages,
    ):
        page, listener = pages
        page.click("#microphone")
        pauses = "window.heard?.filter((each) => each.pause).length >= 2"
        page.wait_for_function(pauses)
        page.click("#microphone")
        wait_for(lambda: server.hub.hearing.free == 1)
        heard, pace = page.evaluate("[heard, pace]")
        words = " ".join(each["text"] for each in heard).split()
        assert edits(plain(words), said) <= len(said) / 2
        translator = server.hub.models.find().translator
        with translator.stream(**pace, raw=True, history=None) as stream:
            for each in heard:
                stream.push(each["text"])
                if each["pause"]:
                    stream.flush()
            stream.finish()
        shows(page, stream.text.split(), "#target")
        shows(listener, stream.text.split(), "#words")
        assert {"mathematical", "properties"} & set(plain(stream.text.split()))
        if folder := os.environ.get("WAITINFO_PICTURES"):
            for name, each in zip(("speaker", "audience"), pages, strict=True):
                each.screenshot(path=Path(folder) / f"{name}-heard.png")
