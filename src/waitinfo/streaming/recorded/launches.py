"""Launches: steps recorded as CUDA graphs, and the tables that travel to them and back.

A recorded step of hundreds of kernels is one launch.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from waitinfo.streaming.recorded.steps import ENCODE_IN, ENCODE_OUT, WRITE_IN, WRITE_OUT

WARM_UP = 2  # runs before a recording: kernels are compiled and libraries initialised in them
STEPS = 4  # that a launch may take in a row before the host looks at their results


def smallest(choices: Sequence[int], least: int) -> int:
    """The smallest choice that is at least `least`, or the largest."""
    return choices[min(bisect_left(choices, least), len(choices) - 1)]


def buffers(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Room for some numbers on the host and on the device."""
    host = torch.zeros(size, dtype=torch.float64, pin_memory=device.type == "cuda")
    return host, torch.zeros(size, dtype=torch.float64, device=device)


def scratch_inputs(columns: int, slot: int) -> Tensor:
    """Inputs [columns, 1] of a row that only pads a batch; `slot` is the scratch slot."""
    return torch.tensor([[float(slot)], *[[0.0]] * (columns - 1)])


class Tables:
    """Tables that travel between host and device, so that each direction takes one copy.

    Those of the encoder end where those of the writer begin. Results of several steps in a row are
    copied one by one, but waited for together.
    """

    def __init__(self, device: torch.device, tokens: int, rows: int) -> None:
        self.rows, self.device = rows, device
        self._middle_in, self._middle_out = ENCODE_IN * tokens, ENCODE_OUT * tokens
        self._in_host, self._in = buffers(self._middle_in + WRITE_IN * rows, device)
        self._out_host, self._out = buffers(self._middle_out + WRITE_OUT * rows, device)
        later = (STEPS - 1) * WRITE_OUT * rows
        pinned = device.type == "cuda"
        self._later = torch.zeros(later, dtype=torch.float64, pin_memory=pinned)
        self._arrays: dict[tuple[int, ...], np.ndarray] = {}

    @staticmethod
    def fill(table: np.ndarray, scratch: int, *columns: np.ndarray) -> None:
        """Write columns into a table; rows behind them belong to the slot of scratch."""
        used = len(columns[0])
        for row, column in zip(table, columns, strict=True):
            row[:used] = column
        table[1:, used:] = 0
        table[0, used:] = scratch

    def to_encode(self, tokens: int) -> Tensor:
        return self._table(self._in, self._middle_in, ENCODE_IN, tokens, before=True)

    def to_write(self, rows: int) -> Tensor:
        return self._table(self._in, self._middle_in, WRITE_IN, rows)

    def from_encode(self, tokens: int) -> Tensor:
        return self._table(self._out, self._middle_out, ENCODE_OUT, tokens, before=True)

    def from_write(self, rows: int) -> Tensor:
        return self._table(self._out, self._middle_out, WRITE_OUT, rows)

    def encode_in(self, tokens: int) -> np.ndarray:
        return self._array(self._in_host, self._middle_in, ENCODE_IN, tokens, before=True)

    def write_in(self, rows: int) -> np.ndarray:
        return self._array(self._in_host, self._middle_in, WRITE_IN, rows)

    def encode_out(self, tokens: int) -> np.ndarray:
        return self._array(self._out_host, self._middle_out, ENCODE_OUT, tokens, before=True)

    def write_out(self, rows: int, step: int) -> np.ndarray:
        """What a step of the last launch reports."""
        if step:
            return self._array(self._later, (step - 1) * WRITE_OUT * self.rows, WRITE_OUT, rows)
        return self._array(self._out_host, self._middle_out, WRITE_OUT, rows)

    @staticmethod
    def _table(
        buffer: Tensor, middle: int, columns: int, rows: int, before: bool = False
    ) -> Tensor:
        """The table [columns, rows] of a buffer that begins, or ends, in the middle."""
        first = middle - columns * rows if before else middle
        return buffer[first : first + columns * rows].view(columns, rows)

    def _array(
        self, buffer: Tensor, middle: int, columns: int, rows: int, before: bool = False
    ) -> np.ndarray:
        """The same of a buffer of the host; made once, because each launch needs several."""
        key = (id(buffer), middle, columns, rows)
        found = self._arrays.get(key)
        if found is None:
            found = self._table(buffer, middle, columns, rows, before).numpy()
            self._arrays[key] = found
        return found

    def send(self, tokens: int, rows: int) -> None:
        """Copy the inputs of a launch to the device."""
        first, last = self._middle_in - ENCODE_IN * tokens, self._middle_in + WRITE_IN * rows
        self._in[first:last].copy_(self._in_host[first:last], non_blocking=True)

    def fetch(self, tokens: int, rows: int) -> None:
        """Copy the results of an encoder and of the first step to the host, sometime."""
        first, last = self._middle_out - ENCODE_OUT * tokens, self._middle_out + WRITE_OUT * rows
        self._out_host[first:last].copy_(self._out[first:last], non_blocking=True)

    def fetch_later(self, rows: int, step: int) -> None:
        """Copy the results of a further step to the host, sometime."""
        found = self._out[self._middle_out : self._middle_out + WRITE_OUT * rows]
        first = (step - 1) * WRITE_OUT * self.rows
        self._later[first : first + len(found)].copy_(found, non_blocking=True)

    def wait(self) -> None:
        """Wait until everything is computed and copied."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()


class LaunchRecorder:
    """Recordings by key. A step that cannot be recorded is computed launch by launch."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.active = device.type == "cuda"
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph | None] = {}
        self._pool = self._new_pool()

    def _new_pool(self) -> Any:
        return torch.cuda.graph_pool_handle() if self.active else None

    def knows(self, key: Hashable) -> bool:
        """Whether nothing needs to be recorded before `run`."""
        return not self.active or key in self.graphs

    @property
    def recorded(self) -> int:
        return sum(graph is not None for graph in self.graphs.values())

    def forget(self) -> None:
        """Drop all recordings: memory that they use has moved."""
        self.graphs.clear()
        self._pool = self._new_pool()  # that of the recordings goes with the last of them

    def record(self, key: Hashable, compute: Callable[[], None]) -> None:
        """Record a step. It runs a few times for that, on inputs that must not matter."""
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                compute()
        torch.cuda.current_stream(self.device).wait_stream(side)
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may use the device meanwhile, which a stricter mode would forbid.
            with torch.cuda.graph(graph, self._pool, capture_error_mode="thread_local"):
                compute()
        except RuntimeError as error:
            torch.cuda.synchronize(self.device)
            logging.getLogger(__name__).warning(
                "a step cannot be recorded, so it runs slower: %s", str(error).split("\n")[0]
            )
            self.graphs[key] = None
            return
        self.graphs[key] = graph

    def run(self, key: Hashable, compute: Callable[[], None]) -> None:
        graph = self.graphs.get(key)
        if graph is None:
            compute()
        else:
            graph.replay()
