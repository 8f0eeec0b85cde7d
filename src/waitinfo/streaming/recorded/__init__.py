"""The engine for GPUs: a round is one or two launches, however many streams take part.

`state` holds what the device and the host know of every slot, `paging` the caches in blocks and who
owns them, `steps` what a round computes, all of it on the device, `graphs` records that, and
`engine` runs the rounds. Without a GPU the same code runs unrecorded, for tests.
"""

from waitinfo.streaming.recorded.engine import RecordedEngine, recordable

__all__ = ["RecordedEngine", "recordable"]
