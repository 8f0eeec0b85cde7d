"""The engine: many streams on one model, each at its own pace, nothing computed twice.

`engine` runs the rounds, `slots` holds the state of every stream, `decision` says who READs, WRITEs
or ends, and a `backend` computes: layer by layer (`plain`), compiled code (`compiled`), or recorded
(`streaming.recorded`).
"""

from typing import Any

from waitinfo.model import Network
from waitinfo.streaming.engine.decision import length_limit
from waitinfo.streaming.engine.engine import ENDINGS, NOT_FINITE, Engine
from waitinfo.streaming.engine.token_events import READ, WRITE, Kind, TokenEvent
from waitinfo.systems.base import System

__all__ = [
    "ENDINGS", "NOT_FINITE", "READ", "WRITE", "Engine", "Kind", "TokenEvent", "length_limit",
    "new_engine",
]  # fmt: skip


def new_engine(
    model: Network,
    system: System,
    slots: int,
    capacity: int,
    ending: str,
    round_tokens: int,
    recorded: bool = True,
) -> Engine:
    """The fastest engine for a model: on a GPU, unless `recorded` is off, a recorded one.

    Its usual launches are recorded now. Systems and models that cannot be recorded get another.
    """
    make: Any = None
    if recorded and model.device.type == "cuda":
        from waitinfo.streaming.recorded import new_backend, recordable

        make = new_backend if recordable(model, system) else None
    return Engine(model, system, slots, capacity, ending, round_tokens, make)
