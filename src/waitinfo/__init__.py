"""waitinfo: simultaneous machine translation with the wait-info policy.

translator = waitinfo.load()
with translator.stream(k=3) as stream:
    for word in words:
        for event in stream.push(word):
            ...
    stream.finish()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from waitinfo.errors import WaitinfoError

if TYPE_CHECKING:
    from waitinfo.streaming.asynchronous import AsyncTranslator
    from waitinfo.streaming.event import Event
    from waitinfo.streaming.stream import Stream
    from waitinfo.streaming.translator import Translator, load

__version__ = "0.1.0"
__all__ = ["AsyncTranslator", "Event", "Stream", "Translator", "WaitinfoError", "load"]

# Imported when used: `import waitinfo` and `waitinfo --help` need no torch.
_HOMES = {
    "AsyncTranslator": "asynchronous",
    "Event": "event",
    "Stream": "stream",
    "Translator": "translator",
    "load": "translator",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"waitinfo.streaming.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'waitinfo' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
