"""The processes that torchrun started. They share a folder; one prepares it for all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch.distributed import Store, rendezvous

from waitinfo.errors import WaitinfoError

PREPARED = "waitinfo-translation"
PATIENCE = timedelta(hours=2)  # how long the first process may take to prepare


@dataclass(frozen=True)
class Processes:
    """How many processes work together, and which of them this is."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    store: Store | None = None

    @classmethod
    def join(cls, environment: Mapping[str, str] | None = None) -> Processes:
        """Those that torchrun started, or this one alone."""
        given = os.environ if environment is None else environment
        if int(given.get("WORLD_SIZE", "1")) == 1:
            return cls(local_rank=int(given.get("LOCAL_RANK", "0")))
        store, rank, size = next(iter(rendezvous("env://", timeout=PATIENCE)))
        return cls(rank, size, int(given.get("LOCAL_RANK", "0")), store)

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def device(self, name: str) -> str:
        """The device of this process: GPUs are counted through."""
        return f"cuda:{self.local_rank}" if name == "cuda" and self.size > 1 else name

    def prepare(
        self, prepare: Callable[[], Any], join: Callable[[], Any], name: str = PREPARED
    ) -> None:
        """The first process prepares and the others join after it, or all of them fail.

        What is prepared has a `name` that is used once.
        """
        if self.store is None:
            prepare()
        elif self.leads:
            try:
                prepare()
            except WaitinfoError as error:
                self.store.set(name, str(error))
                raise
            self.store.set(name, "")
        else:
            self.store.wait([name], PATIENCE)
            if problem := self.store.get(name).decode():
                raise WaitinfoError(problem)
            join()
