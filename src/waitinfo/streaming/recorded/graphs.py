"""Recording of steps as CUDA graphs: a step of hundreds of kernels becomes one launch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Any

import torch

WARM_UP = 2  # runs before a recording: kernels are compiled and libraries initialised in them


class Recorder:
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
