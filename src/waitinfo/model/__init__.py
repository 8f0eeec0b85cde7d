"""The info-aware Transformer: its layers, its losses, and saving and loading it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from waitinfo.lazy import lazy_names

if TYPE_CHECKING:
    from waitinfo.model.config import SIZES, ModelConfig
    from waitinfo.model.integers.model import IntegerModel
    from waitinfo.model.transformer import Transformer

__all__ = ["SIZES", "IntegerModel", "ModelConfig", "Network", "Transformer"]
Network: TypeAlias = "Transformer | IntegerModel"  # in torch, or with integers in NumPy
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "IntegerModel": "waitinfo.model.integers.model",
        "SIZES": "waitinfo.model.config",
        "ModelConfig": "waitinfo.model.config",
        "Transformer": "waitinfo.model.transformer",
    },
)
