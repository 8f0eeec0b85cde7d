"""Speech that a small program understands: each word is a tone of its own pitch.

`Tones` recognises it by Fourier transforms, so that words come from the samples alone. A tone that
is cut off is heard as the beginning of its word, as recognisers do.
"""

from __future__ import annotations

import json
import os
import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from waitinfo.listening.audio import RATE, Samples
from waitinfo.listening.recogniser import Word
from waitinfo.listening.redecoding import Redecoding

TEXT = """guten morgen wir beginnen heute mit einem neuen vorschlag zur verbesserung der luft und
    das ist eine gute idee für alle menschen in europa ich danke ihnen"""
WORDS = TEXT.split()
LONG, SHORT = 0.3, 0.09  # seconds of a tone, and of the silence after it
LOWEST, STEP = 300.0, 60.0  # Hz


def tone(word: str, seconds: float = LONG) -> Samples:
    at = np.arange(round(seconds * RATE)) / RATE
    pitch = LOWEST + STEP * WORDS.index(word)
    return (0.3 * np.sin(2 * np.pi * pitch * at)).astype(np.float32)


def silence(seconds: float) -> Samples:
    noise = np.random.default_rng(0).normal(0, 1e-4, round(seconds * RATE))
    return noise.astype(np.float32)


def speech(words: Sequence[str | float], short: float = SHORT) -> tuple[Samples, list[Word]]:
    """Words one after the other, with pauses where there are numbers; and when each is spoken."""
    parts: list[Samples] = []
    spoken: list[Word] = []
    for word in words:
        begin = sum(map(len, parts)) / RATE
        if isinstance(word, str):
            parts += [tone(word), silence(short)]
            spoken.append(Word(word, begin, begin + LONG))
        else:
            parts.append(silence(word))
    return np.concatenate(parts), spoken


class Tones:
    """A recogniser of whole stretches; counts how often it was asked."""

    name = "tones"

    def __init__(self, times: bool = False) -> None:
        self.times = times
        self.asked: list[float] = []  # seconds of each stretch

    def transcribe(self, samples: Samples, language: str | None) -> list[Word | str]:
        self.asked.append(len(samples) / RATE)
        loud = np.convolve(np.abs(samples), np.ones(160) / 160, mode="same") > 0.03
        edges = np.flatnonzero(np.diff(np.concatenate([[0], loud.astype(int), [0]])))
        found: list[Word | str] = []
        for begin, end in edges.reshape(-1, 2):
            size = (end - begin) / RATE
            if size < 0.03:
                continue
            spectrum = np.abs(np.fft.rfft(samples[begin:end], 1 << 15))
            pitch = spectrum.argmax() * RATE / (1 << 15)
            word = WORDS[min(len(WORDS) - 1, max(0, round((pitch - LOWEST) / STEP)))]
            if size < 0.9 * LONG:
                word = word[: max(1, len(word) // 2)] + "…"
            found.append(Word(word, begin / RATE, end / RATE) if self.times else word)
        return found


def tones() -> Redecoding:
    """What --recogniser tests.listening:tones is."""
    return Redecoding(Tones())


class Fatal(Tones):
    """Ends its process where it hears the word "luft"."""

    def transcribe(self, samples: Samples, language: str | None) -> list[Word | str]:
        found = super().transcribe(samples, language)
        if "luft" in found:
            os._exit(1)
        if "idee" in found:
            raise RuntimeError("no idea")
        return found


def fatal() -> Redecoding:
    return Redecoding(Fatal())


SENTENCES = (WORDS[:9], WORDS[9:16], WORDS[16:])


def save(path: Path, samples: Samples) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return path


def spoken_manifest(folder: Path) -> Path:
    """Two recordings, the first of them with two sentences."""
    lines = []
    for number, sentences in enumerate((SENTENCES[:2], SENTENCES[2:])):
        parts, at = [], 0
        for words in sentences:
            samples, spoken = speech([0.4, *words, 1.3])
            lines.append(
                {"audio": f"{number}.wav", "offset": at / RATE + 0.4,
                 "duration": spoken[-1].end - 0.4, "source": " ".join(words),
                 "reference": f"ba be {number} bi bo ba, number {at}"}
            )  # fmt: skip
            parts.append(samples)
            at += len(samples)
        save(folder / f"{number}.wav", np.concatenate(parts))
    path = folder / "talks.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path
