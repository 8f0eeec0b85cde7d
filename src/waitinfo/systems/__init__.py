"""Systems: how each trains, and when it writes; one module and one line in `SYSTEMS` each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waitinfo.lazy import lazy_names
from waitinfo.systems.registry import (
    SYSTEMS,
    build_system,
    check_dial,
    load_plugins,
    system_class,
)

if TYPE_CHECKING:
    from waitinfo.systems.base import Dial, LossContext, Losses, PolicyState, Step, System

__all__ = [
    "SYSTEMS",
    "Dial",
    "LossContext",
    "Losses",
    "PolicyState",
    "Step",
    "System",
    "build_system",
    "check_dial",
    "load_plugins",
    "system_class",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    dict.fromkeys(
        ("Dial", "Losses", "LossContext", "PolicyState", "Step", "System"), "waitinfo.systems.base"
    ),
)
