"""A small model with a vocabulary, for tests of streams: random weights, varied output."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch

from tests.conftest import tiny_config, toy_pairs
from tests.engines import restless
from waitinfo.model import Transformer
from waitinfo.streaming.event import Event
from waitinfo.streaming.stream import Stream
from waitinfo.streaming.translator import Translator
from waitinfo.systems import build_system
from waitinfo.text.tokenizer import Tokenizer, Vocabulary, VocabularySpec, train_tokenizer
from waitinfo.trained.calibration import Calibration, CalibrationPoint
from waitinfo.trained.saving import LoadedModel

WORDS = ["ba", "be", "bi", "bo", "bu", "da", "de", "di", "do", "du"]
LONG = " ".join(WORDS * 30)


@lru_cache(maxsize=1)
def toy_tokenizer() -> Tokenizer:
    lines = [f"{side}." for pair in toy_pairs(400) for side in pair]
    return train_tokenizer(lines, VocabularySpec("bpe", 300))[0]


@lru_cache(maxsize=2)
def toy_model(system: str = "wait-k") -> LoadedModel:
    return model_with(toy_tokenizer(), system)


def model_with(tokenizer: Tokenizer, system: str = "wait-k") -> LoadedModel:
    """A model with random weights and this vocabulary on both sides."""
    chosen = build_system(system)
    torch.manual_seed(3)
    sizes = {"source_vocabulary": len(tokenizer), "target_vocabulary": len(tokenizer)}
    model = Transformer(tiny_config(**sizes, **chosen.model_defaults)).double().eval()
    return LoadedModel(restless(model), chosen, Vocabulary(tokenizer, tokenizer), Path("toy"))


def some_text(draw: random.Random, words: int) -> str:
    return " ".join(draw.choice(WORDS) + draw.choice(["", "", "", "."]) for _ in range(words))


def lines_of_text() -> list[str]:
    draw = random.Random(5)
    lines = [some_text(draw, draw.randint(1, 5)) for _ in range(4)]
    return [*lines, "", "  ", lines[0], "ba be. bi! bo", "grün 😀", "ba" * 20, "見。東！？ba"]


def record(events: list[Event]) -> list[tuple]:
    """Events without their times."""
    return [(e.kind, e.token, e.word, e.read, e.written, e.sentence) for e in events]


def wait_for(condition: Callable[[], object], seconds: float = 600) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def live_delays(stream: Stream, words: list[str]) -> tuple[list[str], list[int]]:
    """The words that a stream shows if it gets one word at a time, and after how many of them."""
    shown: list[str] = []
    delays: list[int] = []
    for number, word in enumerate(words, 1):
        events = stream.push(word)
        if number == len(words):
            events += stream.finish()
        for event in events:
            if event.kind == "WRITE" and event.word:
                shown += event.word.split()
                delays += [number] * len(event.word.split())
    return shown, delays


def calibration(whole: bool = False, slope: float = 1.0, pace: float = 1.0) -> Calibration:
    """Dials 1 to 9; the lag is the dial times a slope, and a stream measures half a word less."""
    points = [CalibrationPoint(k, slope * k, slope * k - 0.5, 20 + k) for k in range(1, 10)]
    return Calibration(tuple(points), whole, pace)


def alone(text: str, k: float = 2) -> list[tuple]:
    """The events of a stream that runs alone and gets one word at a time."""
    stream = Translator(toy_model(), streams=1, capacity=48).stream(k, history=None)
    for word in text.split():
        stream.push(word)
    stream.finish()
    return record(stream.trace)
