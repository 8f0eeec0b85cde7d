"""The error class for invalid input.

Any problem with the input (a path, a value, the content of a file) raises a `WaitinfoError`. Its
message is one sentence: what was given, what is allowed, what to do. The command line prints it and
exits with status 2. A traceback always means a bug in waitinfo.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from numbers import Integral, Real

# A whole command in a message, or an option.
OPTION = re.compile(r"(\b(?:waitinfo|pip|python) [^;)]*)|(?<![^\s(])--([a-z][a-z-]*)")


class WaitinfoError(Exception):
    """Invalid input, explained in one sentence.

    The sentence names options as the command line does, `--max-ratio`, and `str` as Python does,
    `max_ratio`.
    """

    @property
    def sentence(self) -> str:
        return super().__str__()

    def __str__(self) -> str:
        return OPTION.sub(lambda found: found[1] or found[2].replace("-", "_"), self.sentence)


def unknown(what: str, given: object, allowed: Iterable[object]) -> WaitinfoError:
    """The error for an unknown name: gives the bad value and lists the valid ones."""
    return WaitinfoError(f"unknown {what} '{given}'; choose one of: {', '.join(map(str, allowed))}")


def number(what: str, given: object) -> float:
    """A setting as a number; infinite if it is too large for a float."""
    if not isinstance(given, Real):
        raise WaitinfoError(f"{what} = {given!r}: must be a number")
    try:
        return float(given)
    except OverflowError:
        return math.inf if given > 0 else -math.inf  # type: ignore[operator]


def whole(what: str, given: object, least: int = 0) -> int:
    """A setting as a whole number of at least `least`."""
    if not (isinstance(given, Integral) and least <= int(given) < 2**31):
        raise WaitinfoError(f"{what} = {given!r}: must be a whole number of at least {least}")
    return int(given)
