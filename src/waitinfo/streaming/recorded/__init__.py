"""The engine for GPUs: a round is one or two launches, however many streams take part.

`state` holds what the device and the host know of every slot, `paging` the caches in blocks and who
owns them, `steps` what a round computes, all of it on the device, `fused` the same in few kernels,
`rewriting` what shifted slots keep, `graphs` records that, and `engine` runs the rounds. Without a
GPU the same code runs unrecorded, for tests.
"""

from waitinfo.model.transformer import Transformer
from waitinfo.streaming.engine import Engine
from waitinfo.streaming.recorded.engine import RESERVED, RecordedEngine, recordable
from waitinfo.systems.base import System

__all__ = ["AnyEngine", "RecordedEngine", "new_engine", "recordable"]

AnyEngine = Engine | RecordedEngine
LEAST_POSITIONS = 4096  # of all slots together, that memory is taken for at the start


def new_engine(
    model: Transformer,
    system: System,
    slots: int,
    capacity: int,
    ending: str,
    round_tokens: int,
    recorded: bool = True,
) -> AnyEngine:
    """The engine for a model; on a GPU, unless `recorded` is off, a recorded one.

    Its usual launches are recorded now. Systems and models that cannot be recorded get the other.
    """
    if not recorded or model.device.type != "cuda" or not recordable(model, system):
        return Engine(model, system, slots, capacity, ending, round_tokens)
    reserved = max(RESERVED, LEAST_POSITIONS // slots)
    engine = RecordedEngine(model, system, slots, capacity, ending, round_tokens, reserved)
    engine.prepare()
    return engine
