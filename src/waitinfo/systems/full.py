"""Full-sentence translation: read everything, then write. The quality that others aim for."""

from __future__ import annotations

from types import MappingProxyType

from waitinfo.systems.base import System


class Full(System):
    name = "full"
    summary = "waits for the whole sentence; bidirectional encoder, beam search possible"
    simultaneous = False
    model_defaults = MappingProxyType({"encoder": "bidirectional"})
