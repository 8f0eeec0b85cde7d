"""The backend for GPUs: a round is one or two launches, however many streams take part.

`memory` holds what the device keeps of every slot, `steps` what a round computes, all of it on the
device, `fused` the same in few kernels, `launches` records that, and `backend` runs it. Without a
GPU the same code runs unrecorded, for tests.
"""

from waitinfo.streaming.recorded.backend import RecordedBackend, new_backend, recordable

__all__ = ["RecordedBackend", "new_backend", "recordable"]
