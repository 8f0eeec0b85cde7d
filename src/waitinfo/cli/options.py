"""Reading option values that several commands share."""

from __future__ import annotations

from waitinfo.errors import WaitinfoError


def numbers(option: str, text: str | None) -> list[float | None]:
    """`1,3,5` as numbers, each once; [None] where nothing was given."""
    if text is None:
        return [None]
    try:
        return list(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        raise WaitinfoError(
            f"{option} {text}: give numbers separated by commas, as 1,3,5"
        ) from None
