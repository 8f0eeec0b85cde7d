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
    from waitinfo.systems.base import LossContext, Losses, System
    from waitinfo.systems.interface import Dial, PolicyState, Step, for_arrays, largest, lookup
    from waitinfo.systems.policy import Policy

__all__ = [
    "SYSTEMS",
    "Dial",
    "LossContext",
    "Losses",
    "Policy",
    "PolicyState",
    "Step",
    "System",
    "build_system",
    "check_dial",
    "for_arrays",
    "largest",
    "load_plugins",
    "lookup",
    "system_class",
]
_MODULES = {
    "base": ("LossContext", "Losses", "System"),
    "interface": ("Dial", "PolicyState", "Step", "for_arrays", "largest", "lookup"),
    "policy": ("Policy",),
}
__getattr__, __dir__ = lazy_names(
    __name__,
    {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names},
)
