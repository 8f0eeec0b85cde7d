"""Systems: one module or folder each, and one line each in `SYSTEMS`.

Names are known without torch; all classes are imported when the first of them is used.
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

    def __init__(self, homes: Mapping[str, str]) -> None:
        self._homes = homes  # module:class of those that come with the package
        self._names = list(homes)
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
        """Import every class: each registers its cross-attention."""
        for name in self._names:
            if name not in self._classes:
                module, _, kind = self._homes[name].partition(":")
                self._classes[name] = getattr(importlib.import_module(module, __name__), kind)

    def add(self, system: type[System]) -> type[System]:
        """Make a system of your own known under its name; a class decorator."""
        if system.name in self._homes:
            raise WaitinfoError(f"there is a system '{system.name}' already; choose another name")
        if system.name not in self._names:
            self._names.append(system.name)
        self._classes[system.name] = system
        return system


SYSTEMS = Registry(
    {
        "full": ".full:Full",
        "wait-k": ".wait_k:WaitK",
        "multipath": ".multipath:Multipath",
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
    """The dial value to use: as given, or the one the model was trained for."""
    dial = system.dial
    if dial is None:
        if k is not None:
            raise WaitinfoError(f"k = {k:g}: {system.name} translates whole sentences, without k")
        return 1.0
    return dial.check(system.trained_dial() if k is None else k)
