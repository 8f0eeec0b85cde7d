"""Typed configuration: dataclasses filled from TOML and `--set section.key=value`.

An unknown key or a value of the wrong type raises an error that names it and lists what is allowed.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from waitinfo.errors import WaitinfoError, unknown

T = TypeVar("T")

# Training options that did not help, by section, with the values at which they were off. Those
# without values only said how another one worked. Models and points hold them, mostly unused.
REMOVED: dict[str, dict[str, tuple[Any, ...]]] = {
    "model": {"info_from": ("embedding",)},
    "system": {
        "confidence": ("none",),
        "confidence_after": (),
        "confidence_power": (),
        "sentence_power": (),
        "curriculum_updates": (0,),
    },
}
LAST_WITH_REMOVED = "0.3.0"  # release

LARGEST_INT = 2**53  # the largest number that a float holds exactly; tensors hold it too


def from_mapping(kind: type[T], values: Mapping[str, Any], section: str) -> T:
    """Build a dataclass from plain values, which are checked and converted field by field."""
    fields = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    filled = {}
    for key, value in without_removed(values, section, fields).items():
        if key not in fields:
            if key in REMOVED.get(section, ()):
                raise WaitinfoError(
                    f"{section}.{key} {value}: this version does not have this training option; "
                    f"use waitinfo {LAST_WITH_REMOVED}, the last release that has it"
                )
            raise unknown("setting", f"{section}.{key}", sorted(fields))
        filled[key] = _convert(value, hints[key], f"{section}.{key}")
    return kind(**filled)


def without_removed(
    values: Mapping[str, Any], section: str, kept: Collection[str] = ()
) -> dict[str, Any]:
    """Values of a section, without removed options that were not used."""
    removed = {name: off for name, off in REMOVED.get(section, {}).items() if name not in kept}
    return {
        name: value
        for name, value in values.items()
        if name not in removed or (removed[name] and str(value) not in map(str, removed[name]))
    }


def _convert(value: Any, hint: Any, name: str) -> Any:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and type(None) in options:
        return None
    for option in options:
        try:
            return _CONVERTERS[option](value)
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
    wanted = " or ".join(getattr(option, "__name__", str(option)) for option in options)
    raise WaitinfoError(f"setting {name}: '{value}' is not a valid {wanted}")


def _plain(value: Any) -> Any:
    """A number or text; a list, a table or a date is neither."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    return value


def _bool(value: Any) -> bool:
    if isinstance(value, str):
        return {"true": True, "false": False}[value.lower()]
    if not isinstance(value, bool):
        raise TypeError
    return value


def _int(value: Any) -> int:
    number = int(_plain(value))
    if number != float(value) or abs(number) > LARGEST_INT:
        raise ValueError
    return number


_CONVERTERS: dict[Any, Callable[[Any], Any]] = {
    bool: _bool,
    int: _int,
    float: lambda value: float(_plain(value)),
    str: lambda value: str(_plain(value)),
}


def read_toml(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise WaitinfoError(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WaitinfoError(f"{path}: not valid TOML ({error})") from None


def system_options(settings: Sequence[str]) -> dict[str, Any]:
    """Parse options of a system, written as `key=value` or `system.key=value`."""
    for setting in settings:
        if "=" not in setting:
            raise WaitinfoError(f"--set {setting}: write it as key=value")
    full = [f"system.{setting.removeprefix('system.')}" for setting in settings]
    return apply_settings({}, full).get("system", {})


def apply_settings(values: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Override values by `key=value` and `section.key=value` settings."""
    values = {k: dict(v) if isinstance(v, dict) else v for k, v in values.items()}
    for setting in settings:
        path, equals, value = setting.partition("=")
        if not equals:
            raise WaitinfoError(f"--set {setting}: write it as section.key=value")
        *sections, key = path.strip().split(".")
        table = values
        for section in sections:
            table = table.setdefault(section, {})
            if not isinstance(table, dict):
                raise WaitinfoError(f"--set {setting}: '{section}' is not a section")
        table[key] = value.strip()
    return values
