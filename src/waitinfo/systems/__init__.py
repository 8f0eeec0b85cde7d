"""Systems: one file each, all listed here."""

from __future__ import annotations

from typing import Any

from waitinfo.errors import WaitinfoError, unknown
from waitinfo.systems.adaptive_wait_k import AdaptiveWaitK
from waitinfo.systems.base import Dial, Losses, Moment, Standing, Step, System
from waitinfo.systems.full import Full
from waitinfo.systems.gma import GMA
from waitinfo.systems.gsimt import GSiMT
from waitinfo.systems.mma import MMA
from waitinfo.systems.moe_wait_k import MoEWaitK
from waitinfo.systems.multipath import Multipath
from waitinfo.systems.wait_info import WaitInfo
from waitinfo.systems.wait_k import WaitK

SYSTEMS: dict[str, type[System]] = {
    system.name: system
    for system in (Full, WaitK, Multipath, AdaptiveWaitK, MoEWaitK, MMA, GMA, GSiMT, WaitInfo)
}

__all__ = [
    "SYSTEMS",
    "Dial",
    "Losses",
    "Moment",
    "Standing",
    "Step",
    "System",
    "build_system",
    "check_dial",
    "system_class",
]


def system_class(name: str) -> type[System]:
    try:
        return SYSTEMS[name]
    except KeyError:
        raise unknown("system", name, SYSTEMS) from None


def build_system(name: str, options: dict[str, Any] | None = None) -> System:
    return system_class(name)(options)


def check_dial(system: System, k: float | None) -> float:
    """The dial value to use: as given, or the one the model was trained for."""
    dial = system.dial
    if dial is None:
        if k is not None:
            raise WaitinfoError(f"k = {k:g}: {system.name} translates whole sentences, without k")
        return 1.0
    return dial.check(system.trained_dial() if k is None else k)
