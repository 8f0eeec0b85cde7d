"""Systems: each has one module or folder, and one line in `SYSTEMS`.

The names are available without torch. Using any class imports all of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from waitinfo.errors import WaitinfoError, unknown
from waitinfo.lazy import lazy_names

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
    "system_class",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    dict.fromkeys(
        ("Dial", "Losses", "LossContext", "PolicyState", "Step", "System"), "waitinfo.systems.base"
    ),
)


class Registry(Mapping[str, "type[System]"]):
    """System classes by name."""

    def __init__(self, locations: Mapping[str, str]) -> None:
        self._locations = locations  # "module:class" of the systems in this package
        self._names = list(locations)
        self._classes: dict[str, type[System]] = {}

    def __getitem__(self, name: str) -> type[System]:
        self.load()
        return self._classes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def load(self) -> None:
        """Import every class; this also registers their cross-attentions."""
        for name in self._names:
            if name not in self._classes:
                module, _, class_name = self._locations[name].partition(":")
                imported = importlib.import_module(module, __name__)
                self._classes[name] = getattr(imported, class_name)

    def add(self, system: type[System]) -> type[System]:
        """Register your own system under its name. Can be used as a class decorator."""
        if system.name in self._locations:
            raise WaitinfoError(f"system '{system.name}' already exists; choose another name")
        if system.name not in self._names:
            self._names.append(system.name)
        self._classes[system.name] = system
        return system


SYSTEMS = Registry(
    {
        "full": ".wait_k:Full",
        "wait-k": ".wait_k:WaitK",
        "multipath": ".wait_k:Multipath",
        "adaptive-wait-k": ".adaptive_wait_k:AdaptiveWaitK",
        "moe-wait-k": ".moe_wait_k:MoEWaitK",
        "mma": ".mma:MMA",
        "gma": ".gma:GMA",
        "gsimt": ".gsimt:GSiMT",
        "wait-info": ".wait_info:WaitInfo",
    }
)


def system_class(name: str) -> type[System]:
    try:
        return SYSTEMS[name]
    except KeyError:
        raise unknown("system", name, SYSTEMS) from None


def build_system(name: str, options: dict[str, Any] | None = None) -> System:
    return system_class(name)(options)


def check_dial(system: System, k: float | None) -> float:
    """Check a dial value; without one, return the value that the model was trained for."""
    dial = system.dial
    if dial is None:
        if k is not None:
            raise WaitinfoError(f"k = {k:g}: {system.name} translates whole sentences and has no k")
        return 1.0
    return dial.check(system.trained_dial() if k is None else k)
