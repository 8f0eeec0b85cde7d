"""Figures for Prometheus. No label depends on a client."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from waitinfo.listening.workers import Turn, VoiceObserver
from waitinfo.streaming.event import Observer, RoundStats

FRESH = 1.0  # seconds that figures are told again
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
LONG = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
LAGS = (-4, -2, 0, 1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50)


class Metrics:
    """All figures of one server."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._text, self._stale = b"", 0.0  # what was told last, and until when

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"waitinfo_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"waitinfo_{name}", text, labels, buckets=buckets, registry=registry)

        self.streams = Gauge("waitinfo_streams", "Open streams.", ["model"], registry=registry)
        self.connections = Gauge("waitinfo_connections", "Open WebSockets.", registry=registry)
        self.words_in = counter("words_in", "Source words received.", "model")
        self.words_out = counter("words_out", "Translated words sent.", "model")
        self.refusals = counter("refusals", "Clients that were not served.", "reason")
        self.closed = counter("closed_streams", "Streams that ended, by reason.", "reason")
        self.errors = counter("errors", "Messages answered with an error, by code.", "code")
        self.rounds = histogram("round_seconds", "Duration of a round.", SECONDS, "model")
        self.batch = histogram("batch_streams", "Streams in a round.", SIZES, "model")
        self.age = histogram(
            "queue_age_seconds", "Wait of the oldest text of a round.", SECONDS, "model"
        )
        self.lag = histogram("lag_words", "Lag of translated words in words.", LAGS, "model")
        self.response = histogram(
            "response_seconds", "From the newest text to the words sent.", SECONDS, "model"
        )
        self.failures = counter("failed_streams", "Streams with an error of the engine.", "model")
        self.voices = VoiceFigures(registry)

    def text(self) -> bytes:
        """All of them, as they were at most a second ago."""
        now = time.monotonic()
        if now >= self._stale:
            self._text, self._stale = generate_latest(self.registry), now + FRESH
        return self._text


class EngineObserver(Observer):
    """Reports the rounds of one model."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._rounds = metrics.rounds.labels(model)
        self._batch = metrics.batch.labels(model)
        self._age = metrics.age.labels(model)
        self._failures = metrics.failures.labels(model)

    def round(self, stats: RoundStats) -> None:
        self._rounds.observe(stats.seconds)
        self._batch.observe(stats.streams)
        self._age.observe(stats.queue_age)

    def failed(self, error: Exception) -> None:
        self._failures.inc()


class VoiceFigures(VoiceObserver):
    """Reports the turns of recognisers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(f"waitinfo_{name}", text, registry=registry)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(f"waitinfo_{name}", text, buckets=LONG, registry=registry)

        self.open = Gauge("waitinfo_voices", "Open audio streams.", registry=registry)
        self._audio = counter("recognised_audio_seconds", "Audio that was recognised.")
        self._words = counter("recognised_words", "Words that were recognised.")
        self._busy = histogram("recognition_seconds", "Time that a worker takes for a turn.")
        self._waited = histogram("audio_age_seconds", "Wait of the oldest audio of a turn.")
        self._rhythm = histogram("recognition_rhythm_seconds", "Audio between two looks.")
        self._failures = counter("failed_voices", "Voices with an error of the recogniser.")

    def turn(self, stats: Turn) -> None:
        self._audio.inc(stats.audio)
        self._words.inc(stats.words)
        self._busy.observe(stats.seconds)
        self._waited.observe(stats.waited)
        self._rhythm.observe(stats.rhythm)

    def failed(self, error: Exception) -> None:
        self._failures.inc()
