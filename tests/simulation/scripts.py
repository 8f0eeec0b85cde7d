"""What speakers say, and what a stream without any trouble makes of it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from unittest import mock

from tests.simulation.engine import FakeEngine
from tests.streams import WORDS, record, toy_model
from waitinfo.serving.transcript import Transcript
from waitinfo.streaming import translator
from waitinfo.streaming.translator import Translator

SCRIPTS = 60


@dataclass(frozen=True)
class Script:
    """Pieces of text, None for a flush, and what they give."""

    pieces: tuple[str | None, ...]
    k: int
    segmenter: str
    events: tuple[tuple, ...]
    words: dict[tuple[int, int], str]  # by sentence and number
    shown: tuple[int, ...]  # how many of them are shown after each event


@lru_cache(maxsize=1)
def scripts() -> tuple[Script, ...]:
    with mock.patch.object(translator, "new_engine", lambda *_: FakeEngine(1)):
        alone = Translator(toy_model(), streams=1)
    return tuple(_make(alone, random.Random(seed)) for seed in range(SCRIPTS))


def _make(alone: Translator, draw: random.Random) -> Script:
    stops = draw.choice([0.0, 0.2, 0.4])
    text = "".join(
        draw.choice(WORDS) + ("." if draw.random() < stops else "") + " "
        for _ in range(draw.choice([1, 4, 8, 20]))
    )
    places = sorted(draw.sample(range(len(text)), min(len(text) - 1, draw.choice([0, 2, 5]))))
    ends = [*places, len(text)]
    pieces: list[str | None] = [text[a:b] for a, b in zip([0, *places], ends, strict=True)]
    if draw.random() < 0.3:
        pieces.insert(draw.randrange(len(pieces) + 1), None)
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
    return Script(tuple(pieces), k, segmenter, tuple(record(events)), words, tuple(shown))
