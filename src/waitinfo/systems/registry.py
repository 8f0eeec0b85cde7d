"""Systems by name: from this package, from installed packages, and from plugins.

Each system of the package has one line in `SYSTEMS`. Another package offers its own by an entry
point of the group `waitinfo.systems`, whose name is the system's. A plugin is a Python file that
defines systems. The package's names are available without torch; using any class imports all.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from waitinfo.errors import WaitinfoError, unknown

if TYPE_CHECKING:
    from waitinfo.systems.base import System

GROUP = "waitinfo.systems"  # of entry points
PLUGIN = "waitinfo_plugin_"  # begins the names of modules made from files


class Registry(Mapping[str, "type[System]"]):
    """System classes by name."""

    def __init__(self, locations: Mapping[str, str]) -> None:
        self._locations = locations  # "module:class" of the systems in this package
        self._names = list(locations)
        self._classes: dict[str, type[System]] = {}

    def __getitem__(self, name: str) -> type[System]:
        self.load()
        if name not in self._classes:
            self._load_installed(name)
        return self._classes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def load(self) -> None:
        """Import every class of this package; this also registers their cross-attentions."""
        for name, location in self._locations.items():
            if name not in self._classes:
                module, _, class_name = location.partition(":")
                imported = importlib.import_module(module, __package__)
                self._classes[name] = getattr(imported, class_name)

    def add(self, system: type[System]) -> type[System]:
        """Register your own system under its name. Can be used as a class decorator."""
        known = self._classes.get(system.name)
        again = known is not None and _place(known) == _place(system)  # defined once more
        if system.name in self._locations or (known is not None and not again):
            raise WaitinfoError(f"system '{system.name}' already exists; choose another name")
        if system.name not in self._names:
            self._names.append(system.name)
        self._classes[system.name] = system
        return system

    def installed(self) -> list[str]:
        """Names that other packages offer."""
        return sorted({entry.name for entry in _entry_points()} - set(self._locations))

    def _load_installed(self, name: str) -> None:
        for entry in _entry_points():
            if entry.name == name:
                try:
                    system = entry.load()
                except Exception as error:
                    raise WaitinfoError(f"system '{name}' ({entry.value}): {_one(error)}") from None
                if getattr(system, "name", None) != name:
                    raise WaitinfoError(
                        f"system '{name}' ({entry.value}): is not a system of that name; "
                        "correct the entry point"
                    )
                self.add(system)
                return


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
        "veto": ".veto:Veto",
        "local-agreement": ".policy:LocalAgreement",
        "alignatt": ".policy:AlignAtt",
        "confidence": ".policy:Confidence",
        "punctuation": ".policy:Punctuation",
    }
)


def system_class(name: str) -> type[System]:
    try:
        return SYSTEMS[name]
    except KeyError:
        allowed = dict.fromkeys([*SYSTEMS, *SYSTEMS.installed()])
        raise WaitinfoError(
            f"{unknown('system', name, allowed)}; give a file that defines another with --plugin "
            f"FILE.py, or install a package with an entry point in {GROUP}"
        ) from None


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


def load_plugins(files: Iterable[Path | str]) -> list[str]:
    """Run Python files and register the systems that they define; the names of these."""
    return [name for file in files for name in _load_plugin(Path(file))]


def _load_plugin(file: Path) -> list[str]:
    if not file.is_file():
        raise WaitinfoError(f"plugin {file}: no such file; give a Python file")
    module = ModuleType(f"{PLUGIN}{file.stem}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        exec(compile(file.read_bytes(), str(file), "exec"), vars(module))
    except WaitinfoError as error:
        raise WaitinfoError(f"plugin {file}: {error.sentence}") from None
    except Exception as error:
        raise WaitinfoError(f"plugin {file}: {_one(error)}") from None
    systems = _systems_of(module)
    if not systems:
        raise WaitinfoError(f"plugin {file}: defines no system; subclass System with a name")
    return [SYSTEMS.add(system).name for system in systems]


def _systems_of(module: ModuleType) -> list[type[System]]:
    """The systems with a name of their own that a module defines."""
    from waitinfo.systems.base import System

    defined = [x for x in vars(module).values() if isinstance(x, type) and issubclass(x, System)]
    return [x for x in defined if x.__module__ == module.__name__ and "name" in vars(x)]


def _entry_points() -> Iterable[Any]:
    from importlib.metadata import entry_points

    return entry_points(group=GROUP)


def _place(system: type[System]) -> tuple[str, str]:
    return system.__module__, system.__qualname__


def plugin_error(error: BaseException) -> WaitinfoError | None:
    """An error that a plugin's code raised, with its place; None if other code raised it."""
    found, trace = None, error.__traceback__
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__", "")).startswith(PLUGIN):
            found = trace
        trace = trace.tb_next
    if found is None or isinstance(error, WaitinfoError):
        return None
    code = found.tb_frame.f_code
    place = f"plugin {code.co_filename}, line {found.tb_lineno}, in {code.co_name}"
    return WaitinfoError(f"{place}: {_one(error)}")


def _one(error: BaseException) -> str:
    """An error of somebody else's code in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
