"""waitinfo: simultaneous machine translation with the wait-info policy.

translator = waitinfo.load()
with translator.stream(k=3) as stream:
    for word in words:
        for event in stream.push(word):
            ...
    stream.finish()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from waitinfo.errors import WaitinfoError
from waitinfo.lazy import lazy_names

if TYPE_CHECKING:
    from waitinfo.client.clients import AsyncClient, Client
    from waitinfo.listening.listen import listen
    from waitinfo.streaming.asynchronous import AsyncTranslator
    from waitinfo.streaming.event import Event
    from waitinfo.streaming.stream import Stream
    from waitinfo.streaming.translator import Translator, load

__version__ = "0.3.0"
__all__ = [
    "AsyncClient",
    "AsyncTranslator",
    "Client",
    "Event",
    "Stream",
    "Translator",
    "WaitinfoError",
    "listen",
    "load",
]

__getattr__, _ = lazy_names(
    __name__,
    {
        "AsyncClient": "waitinfo.client.clients",
        "AsyncTranslator": "waitinfo.streaming.asynchronous",
        "Client": "waitinfo.client.clients",
        "Event": "waitinfo.streaming.event",
        "Stream": "waitinfo.streaming.stream",
        "Translator": "waitinfo.streaming.translator",
        "listen": "waitinfo.listening.listen",
        "load": "waitinfo.streaming.translator",
    },
)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
