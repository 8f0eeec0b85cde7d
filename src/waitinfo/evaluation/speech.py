"""Scoring recordings end to end: from a spoken word to its recognised and translated words.

Each audio file is one stream, at its own pace by a simulated clock: computing takes as long as it
takes, waiting takes no time. Delays are in seconds of audio; those with computation are times of
the clock. Translations are realigned to the segments of the manifest, as those of documents are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from waitinfo.errors import WaitinfoError
from waitinfo.evaluation.latency import (
    length_adaptive_average_lagging,
    mean_scores,
    yet_another_average_lagging,
)
from waitinfo.evaluation.output import one_space
from waitinfo.evaluation.quality import RESAMPLES, quality
from waitinfo.evaluation.realign import METHODS, realign
from waitinfo.listening.audio import RATE, read_file
from waitinfo.listening.listen import Listener, SpeechEvent
from waitinfo.listening.recogniser import Recogniser, fold
from waitinfo.listening.sources import Clock, Paced
from waitinfo.streaming.translator import Translator
from waitinfo.text.files import read_lines

SPEECH = ("LongYAAL", "LongLAAL", "StreamLAAL")
LOG, SEGMENTS, REFERENCES, SIMULSTREAM = (
    "documents.log", "segments.json", "references.txt", "simulstream.jsonl",
)  # fmt: skip


@dataclass(frozen=True)
class Segment:
    """A sentence of a recording: when it is spoken, in seconds, and its translation."""

    audio: Path
    reference: str
    offset: float = 0.0
    duration: float | None = None  # None: to the end of the file
    source: str | None = None  # what is said, if it is known


def read_manifest(path: Path) -> list[Segment]:
    """One JSON object a line; paths of audio are relative to the manifest."""
    found: list[Segment] = []
    for number, line in enumerate(read_lines(path), 1):
        try:
            values = json.loads(line)
            segment = Segment(
                path.parent / values["audio"],
                values["reference"],
                float(values.get("offset", 0.0)),
                None if values.get("duration") is None else float(values["duration"]),
                values.get("source"),
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            raise WaitinfoError(
                f"{path}, line {number}: must be an object with audio and reference; offset, "
                "duration (in seconds) and source may follow"
            ) from None
        if not segment.audio.is_file():
            raise WaitinfoError(f"{path}, line {number}: {segment.audio}: no such file")
        found.append(segment)
    if not found:
        raise WaitinfoError(f"{path}: has no segments")
    return found


@dataclass
class Moment:
    """A word: when it was spoken, how much audio had been heard when it came, and the time then."""

    text: str
    spoken: float
    audio: float
    time: float


@dataclass
class Talk:
    """A recording, and what was heard and written."""

    audio: Path
    segments: list[Segment]
    seconds: float = 0.0
    heard: list[Moment] = field(default_factory=list)
    written: list[Moment] = field(default_factory=list)
    rhythm: list[float] = field(default_factory=list)
    lost: float = 0.0  # seconds

    def take(self, event: SpeechEvent) -> None:
        if event.kind == "HEARD":
            self.heard.append(Moment(event.text, event.end, event.audio, event.time))
        elif event.kind == "WRITE":
            for word in event.text.split():
                self.written.append(Moment(word, event.end, event.audio, event.time))

    @property
    def end(self) -> float:
        """Of the last segment: what is written later is after the recording, for OmniSTEval too."""
        return max(each.offset + self.duration(each) for each in self.segments)

    def duration(self, segment: Segment) -> float:
        return self.seconds - segment.offset if segment.duration is None else segment.duration


def hear(
    segments: Sequence[Segment],
    recogniser: Recogniser,
    translator: Translator,
    k: float | None = None,
    lag: float | None = None,
    clock: Callable[[], Clock] = Clock,
    told: Callable[[Talk], None] = lambda talk: None,
) -> list[Talk]:
    """Hear and translate every recording of a manifest."""
    language = translator.loaded.languages.source
    found: list[Talk] = []
    for audio, members in groupby(segments, lambda segment: segment.audio):
        talk = Talk(audio, list(members))
        blocks = list(read_file(audio))
        talk.seconds = sum(map(len, blocks)) / RATE
        voice = recogniser.voice(language)
        stream = translator.stream(k, raw=True, history=0, lag=lag)
        listener = Listener(Paced(blocks, clock()), voice, stream)
        for event in listener:
            talk.take(event)
            talk.rhythm.append(listener.rhythm)
        talk.lost = listener.lost
        told(talk)
        found.append(talk)
    return found


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Mean, median and 95th percentile."""
    if not values:
        return None
    return {
        "mean": float(np.mean(values)),
        "median": float(np.median(values)),
        "p95": float(np.percentile(values, 95)),
    }


def word_errors(heard: Sequence[str], said: Sequence[str]) -> int:
    """Words inserted, left out or replaced."""
    row = list(range(len(said) + 1))
    for place, word in enumerate(heard, 1):
        above, row = row, [place]
        for n, wanted in enumerate(said):
            row.append(min(above[n] + (word != wanted), above[n + 1] + 1, row[n] + 1))
    return row[-1]


def _error_rate(talks: Sequence[Talk]) -> float | None:
    """Of all recordings whose words are known."""
    errors = count = 0
    for talk in talks:
        texts = [segment.source for segment in talk.segments]
        if None not in texts:
            said = [fold(word) for text in texts for word in (text or "").split()]
            errors += word_errors([fold(word.text) for word in talk.heard], said)
            count += len(said)
    return 100 * errors / count if count else None


def score(talks: Sequence[Talk], resamples: int = RESAMPLES) -> dict[str, Any]:
    """All figures; latencies in seconds."""
    texts: list[str] = []
    latency = {}
    for name, aware in (("latency", False), ("latency_with_computation", True)):
        rows: list[dict[str, float | None]] = []
        for talk in talks:
            rows += _latencies(talk, aware)
        latency[name] = mean_scores(rows, SPEECH)
    for talk in talks:
        texts += [" ".join(talk.written[n].text for n in place) for place in _places(talk, "soft")]
    references = [segment.reference for talk in talks for segment in talk.segments]
    words = [word for talk in talks for word in talk.heard]
    written = [word for talk in talks for word in talk.written]
    return {
        "recordings": len(talks),
        "segments": len(references),
        "seconds": sum(talk.seconds for talk in talks),
        "words": len(words),
        "lost_seconds": sum(talk.lost for talk in talks),
        "rhythm": spread([each for talk in talks for each in talk.rhythm]),
        "word_error_rate": _error_rate(talks),
        "recognised": {
            "audio": spread([word.audio - word.spoken for word in words]),
            "time": spread([word.time - word.spoken for word in words]),
        },
        "translated": {
            "audio": spread([word.audio - word.spoken for word in written]),
            "time": spread([word.time - word.spoken for word in written]),
        },
        "quality": quality(texts, references, resamples),
        **latency,
    }


def _places(talk: Talk, method: str) -> list[range]:
    references = [segment.reference.split() for segment in talk.segments]
    return realign([word.text for word in talk.written], references, method)


def _latencies(talk: Talk, aware: bool) -> list[dict[str, float | None]]:
    """Of each segment with words."""
    delays = [word.time if aware else word.audio for word in talk.written]
    rows = []
    found = {method: _places(talk, method) for method in METHODS}
    for n, segment in enumerate(talk.segments):
        row: dict[str, float | None] = dict.fromkeys(SPEECH)
        length, reference = talk.duration(segment), len(segment.reference.split())
        soft, mwer = ([delays[i] - segment.offset for i in found[m][n]] for m in ("soft", "mwer"))
        if soft:
            end = talk.end - segment.offset
            row["LongYAAL"] = yet_another_average_lagging(soft, length, reference, end)
            row["LongLAAL"] = length_adaptive_average_lagging(soft, length, reference)
        if mwer:
            row["StreamLAAL"] = length_adaptive_average_lagging(mwer, length, reference)
        rows.append(row)
    return rows


def write_results(folder: Path, talks: Sequence[Talk], point: dict[str, Any]) -> None:
    """The figures, and the same words for OmniSTEval and for simulstream."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WaitinfoError(f"{folder}: cannot be created ({error.strerror})") from None
    outputs = [json.dumps(_output(talk), ensure_ascii=False) for talk in talks]
    steps = [json.dumps(line, ensure_ascii=False) for line in simulstream_log(talks)]
    places = [
        {"wav": talk.audio.name, "offset": segment.offset, "duration": talk.duration(segment)}
        for talk in talks
        for segment in talk.segments
    ]
    references = [one_space(segment.reference) for talk in talks for segment in talk.segments]
    for name, lines in (
        (LOG, outputs), (SIMULSTREAM, steps), (SEGMENTS, [json.dumps(places)]),
        (REFERENCES, references), ("audio.json", [json.dumps(point, indent=2)]),
    ):  # fmt: skip
        (folder / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")


def _output(talk: Talk) -> dict[str, Any]:
    """In milliseconds, as OmniSTEval reads it."""
    return {
        "source": talk.audio.name,
        "prediction": " ".join(word.text for word in talk.written),
        "delays": [1000 * word.audio for word in talk.written],
        "elapsed": [1000 * word.time for word in talk.written],
        "source_length": 1000 * talk.seconds,
    }


def simulstream_log(talks: Sequence[Talk]) -> Iterator[dict[str, Any]]:
    """A line for each step that wrote words. What time it took beyond the audio is computing."""
    for number, talk in enumerate(talks):
        yield {"id": number, "metadata": {"wav_name": str(talk.audio)}}
        for (audio, time), words in groupby(talk.written, lambda word: (word.audio, word.time)):
            yield {
                "id": number,
                "total_audio_processed": audio,
                "computation_time": time - audio,
                "generated_tokens": [word.text for word in words],
                "deleted_tokens": [],
            }
