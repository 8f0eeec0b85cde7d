"""Full-sentence translation: read everything, then write. The quality target of the others."""

from __future__ import annotations

from types import MappingProxyType

from waitinfo.systems.base import System


class Full(System):
    name = "full"
    summary = "waits for the whole sentence; bidirectional encoder, supports beam search"
    simultaneous = False
    model_defaults = MappingProxyType({"encoder": "bidirectional"})
