"""Streaming: true incremental decoding, many streams in one batch."""

from waitinfo.streaming.decoder import Decoder, Hypothesis
from waitinfo.streaming.engine import Engine
from waitinfo.streaming.stream import Event, Stream

__all__ = ["Decoder", "Engine", "Event", "Hypothesis", "Stream"]
