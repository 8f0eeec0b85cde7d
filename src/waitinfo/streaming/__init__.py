"""Streaming: decoding under a policy, with caches."""

from waitinfo.streaming.decoder import Decoder, Hypothesis

__all__ = ["Decoder", "Hypothesis"]
