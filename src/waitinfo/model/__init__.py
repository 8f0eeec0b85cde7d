"""Model: the info-aware Transformer, its attention, and its folder on disk."""

from waitinfo.model.config import SIZES, ModelConfig
from waitinfo.model.transformer import Transformer

__all__ = ["SIZES", "ModelConfig", "Transformer"]
