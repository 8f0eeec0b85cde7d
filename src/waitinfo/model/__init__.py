"""The info-aware Transformer: its layers, its losses, and saving and loading it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waitinfo.lazy import lazy_names

if TYPE_CHECKING:
    from waitinfo.model.config import SIZES, ModelConfig
    from waitinfo.model.transformer import Transformer

__all__ = ["SIZES", "ModelConfig", "Transformer"]
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "SIZES": "waitinfo.model.config",
        "ModelConfig": "waitinfo.model.config",
        "Transformer": "waitinfo.model.transformer",
    },
)
