"""Options as the classes of the verbs declare them, and how plain ones are read.

Typer takes longer to load than a sentence to translate. So arguments that need nothing of it (no
help, lists, short or wrong flags) are read here, and all others by typer (`verbs`).
"""

from __future__ import annotations

import os
import typing
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Any

# Each is a function of its own module.
VERBS = (
    "prepare", "train", "distill", "translate", "listen", "serve", "evaluate", "compare", "analyse",
    "models",
)  # fmt: skip
READERS: dict[Any, Callable[[str], Any]] = {str: str, int: int, float: float, Path: Path}


class Option:
    """An option; names and settings are those of `typer.Option`."""

    def __init__(self, *names: str, **settings: Any) -> None:
        self.names, self.settings = names, settings


class Argument(Option):
    """What is given without a flag."""


def find_verb(name: str) -> Callable[[Any], None]:
    return getattr(import_module(f"waitinfo.cli.{name}"), name)  # type: ignore[no-any-return]


def options_of(verb: Callable[[Any], None]) -> type:
    """The class of a verb's options."""
    (options,) = [hint for name, hint in typing.get_type_hints(verb).items() if name != "return"]
    return options  # type: ignore[no-any-return]


def declared(options: type) -> dict[str, tuple[Any, Option]]:
    """The type of every option by its name, and how it is declared."""
    hints = typing.get_type_hints(options, include_extras=True)
    return {name: (hint.__origin__, hint.__metadata__[0]) for name, hint in hints.items()}


def read(options: type, arguments: Sequence[str]) -> Any:
    """The options that these arguments give; None if typer must read them."""
    known = declared(options)
    if any(os.environ.get(option.settings.get("envvar", "")) for _, option in known.values()):
        return None
    try:
        return options(**_values(known, arguments))
    except (LookupError, StopIteration, TypeError, ValueError):
        return None


def _values(known: dict[str, tuple[Any, Option]], arguments: Sequence[str]) -> dict[str, Any]:
    """What is given, by name; an error if typer must read it."""
    (text,) = [name for name, (_, option) in known.items() if isinstance(option, Argument)] or [""]
    flags = {
        flag: (name, kind)
        for name, (kind, option) in known.items()
        if name != text
        for flag in option.names or [f"--{name.replace('_', '-')}"]
    }
    values: dict[str, Any] = {}
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-") and text:
            values.setdefault(text, []).append(argument)
            continue
        flag, equals, value = argument.partition("=")
        name, kind = flags[flag]
        if isinstance(kind, UnionType):
            kind, _ = typing.get_args(kind)  # the other is None
        if kind is bool and not equals:
            values[name] = True
        else:
            values[name] = READERS[kind](value if equals else _value(next(rest)))
    if text and known[text][0] != list[str]:
        raise TypeError
    return values


def _value(argument: str) -> str:
    if argument.startswith("-"):
        raise ValueError
    return argument
