"""The one error a user is meant to read.

Everything that can be wrong with what was given (a path, a value, a file's content) is raised as
a `WaitinfoError` whose message is one sentence: what was given, what is allowed, what to do.
The command line prints it and exits with 2; a traceback always means a defect of ours.
"""

from __future__ import annotations

from collections.abc import Iterable


class WaitinfoError(Exception):
    """Bad input, explained in one sentence."""


def unknown(what: str, given: object, allowed: Iterable[object]) -> WaitinfoError:
    """The error for a name outside a closed set: says the bad value and lists the valid ones."""
    return WaitinfoError(f"unknown {what} '{given}'; choose one of: {', '.join(map(str, allowed))}")
