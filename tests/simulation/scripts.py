"""What speakers say, and what a stream without any trouble makes of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar
from unittest import mock

from tests.simulation.engine import FakeEngine
from tests.simulation.voices import pcm
from tests.streams import WORDS, record, toy_model
from waitinfo.serving.transcript import Transcript
from waitinfo.streaming import translator
from waitinfo.streaming.translator import Translator

SCRIPTS = 60


@dataclass(frozen=True)
class Script:
    """Pieces of text or of audio, None for a flush, and what they give."""

    pieces: tuple[str | bytes | None, ...]
    text: str  # of all of them
    audio: bool
    k: int
    segmenter: str
    events: tuple[tuple, ...]
    words: dict[tuple[int, int], str]  # by sentence and number
    shown: tuple[int, ...]  # how many of them are shown after each event


@lru_cache(maxsize=1)
def scripts() -> tuple[Script, ...]:
    with mock.patch.object(translator, "new_engine", lambda *_: FakeEngine(1)):
        alone = Translator(toy_model(), streams=1)
    makers = (_make, _make, _make_audio)
    return tuple(makers[seed % 3](alone, random.Random(seed)) for seed in range(SCRIPTS))


def _make(alone: Translator, draw: random.Random) -> Script:
    stops = draw.choice([0.0, 0.2, 0.4])
    text = "".join(
        draw.choice(WORDS) + ("." if draw.random() < stops else "") + " "
        for _ in range(draw.choice([1, 4, 8, 20]))
    )
    pieces: list[str | None] = [*_cut(text, draw)]
    if draw.random() < 0.3:
        pieces.insert(draw.randrange(len(pieces) + 1), None)
    return _play(alone, draw, pieces, pieces, False)


def _make_audio(alone: Translator, draw: random.Random) -> Script:
    said: list[str | None] = []
    for _ in range(draw.choice([1, 4, 8, 20])):
        said.append(draw.choice(WORDS) + draw.choice(["", "", "."]))
        said += [None] * (draw.random() < 0.3)
    text = [word and f"{word} " for word in said]
    return _play(alone, draw, _cut(pcm(said), draw), text, True)


Data = TypeVar("Data", str, bytes)


def _cut(data: Data, draw: random.Random) -> list[Data]:
    places = sorted(draw.sample(range(len(data)), min(len(data) - 1, draw.choice([0, 2, 5]))))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def _play(
    alone: Translator, draw: random.Random, given: Sequence[str | bytes | None],
    pieces: Sequence[str | None], audio: bool,
) -> Script:  # fmt: skip
    """What a stream without any trouble makes of some pieces of text."""
    k, segmenter = draw.choice([1, 2, 4]), draw.choice(["auto", "punctuation", "none:10"])
    with alone.stream(k, raw=True, segment=segmenter, history=None) as stream:
        events = []
        for piece in pieces:
            events += stream.flush() if piece is None else stream.push(piece)
        events += stream.finish()
        transcript = Transcript(stream)
    for piece in pieces:
        transcript.source.add(piece or "")
    words, shown = {}, []
    for event in events:
        if (found := transcript.take([event], trace=False)) is not None:
            words |= {(word.sentence, word.read - word.lag): word.text for word in found.words}
        shown.append(len(words))
    text = "".join(piece or "" for piece in pieces)
    told = tuple(record(events)), words, tuple(shown)
    return Script(tuple(given), text, audio, k, segmenter, *told)
