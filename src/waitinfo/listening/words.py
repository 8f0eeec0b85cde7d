"""Text as words."""

from __future__ import annotations

from waitinfo.text.scripts import UNSPACED


def split_words(text: str) -> list[str]:
    """The words of a text; characters of scripts without spaces are words of their own."""
    return UNSPACED.sub(lambda found: f" {found.group()} ", text).split()
