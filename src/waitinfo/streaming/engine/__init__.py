"""The engine: many streams on one model, each at its own pace, nothing computed twice.

`slots` holds the state of every stream, `encoding` brings the caches up to the source that has
arrived, `writing` computes the next target tokens, and `engine` runs the rounds.
"""

from waitinfo.streaming.engine.base import ENDINGS
from waitinfo.streaming.engine.engine import NOT_FINITE, Engine
from waitinfo.streaming.engine.slots import READ, WRITE, Kind, TokenEvent, length_limit

__all__ = ["ENDINGS", "NOT_FINITE", "READ", "WRITE", "Engine", "Kind", "TokenEvent", "length_limit"]
