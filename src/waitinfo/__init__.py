"""waitinfo: simultaneous machine translation with the wait-info policy.

translator = waitinfo.load("run")
stream = translator.stream(k=3)
for word in words:
    for event in stream.push(word):
        ...
stream.finish()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from waitinfo.streaming.translator import AsyncTranslator, Translator, load

__version__ = "0.1.0"
__all__ = ["AsyncTranslator", "Translator", "__version__", "load"]


def __getattr__(name: str) -> Any:
    """The public names are imported when used: `waitinfo --help` needs no torch."""
    if name in __all__:
        from waitinfo.streaming import translator

        return getattr(translator, name)
    raise AttributeError(f"module 'waitinfo' has no attribute '{name}'")
