"""Loading a model for a command."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from waitinfo.config import system_options
from waitinfo.errors import WaitinfoError
from waitinfo.systems import System
from waitinfo.trained.folder import find_model
from waitinfo.trained.saving import LoadedModel, load_model


def load(
    path: Path | None,
    device: str,
    dtype: str = "auto",
    system: str | None = None,
    settings: Sequence[str] = (),
) -> LoadedModel:
    """A model, by its own system or by another, with options `key=value` or `system.key=value`."""
    return load_model(find_model(path), device, dtype, system, system_options(settings))


def use_threads(count: int) -> None:
    """Compute with this many CPU threads; 0 leaves the choice to torch.

    At most one for each core that this process may use: more would only take turns.
    """
    if count < 0:
        raise WaitinfoError(f"--threads {count}: must be 0 or more")
    if count:
        torch.set_num_threads(min(count, usable_cores()))


def usable_cores() -> int:
    """Cores that this process may run on: containers and `taskset` allow fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_beam(system: System, beam: int) -> None:
    if beam < 1:
        raise WaitinfoError(f"--beam {beam}: must be at least 1")
    if beam > 1 and system.name != "full":
        raise WaitinfoError(f"--beam {beam}: only full-sentence models search with a beam")
