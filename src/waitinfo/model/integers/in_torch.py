"""A model with integers for code that computes in torch: beam search, sampling, analyses.

The model itself needs no torch. Here its methods take tensors and give tensors, which share the
memory of its arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

import numpy as np
import torch

from waitinfo.model import Network
from waitinfo.model.cache import CacheRows, KeyValueCache, LayerCaches, StateCache
from waitinfo.model.integers.cache import ArrayRows
from waitinfo.model.integers.model import IntegerModel
from waitinfo.model.transformer import Transformer


def in_torch(model: Network) -> Transformer:
    """The same model, with the methods of a `Transformer`."""
    found: Any = TensorModel(model) if isinstance(model, IntegerModel) else model
    return cast("Transformer", found)


class TensorModel:
    """A model with integers that takes and gives tensors."""

    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self, model: IntegerModel) -> None:
        self._model, self.config = model, model.config

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._model, name)
        return self._method(found) if callable(found) else found

    def _method(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            with self._model.computing():
                arrays = {name: as_arrays(value) for name, value in named.items()}
                return as_tensors(method(*map(as_arrays, given), **arrays))

        return call

    def new_target_caches(self, rows: int, capacity: int) -> LayerCaches:
        """Empty caches of what was written, one per decoder layer."""
        like, config = torch.empty(0), self.config
        assert config.decoder == "ssru", "searches have caches of their own for attention"
        return LayerCaches(
            StateCache(rows, config.width, like) for _ in range(config.decoder_layers)
        )


class _Lent:
    """A cache of tensors that takes and gives arrays."""

    def __init__(self, cache: KeyValueCache) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._cache, name)
        return lambda *given: as_arrays(method(*map(as_tensors, given)))


def as_arrays(value: Any) -> Any:
    """Tensors as arrays, also those within other things."""
    if isinstance(value, torch.Tensor):
        return value.numpy()
    if isinstance(value, KeyValueCache):
        return _Lent(value)
    if isinstance(value, CacheRows):
        return ArrayRows(value.index.numpy(), value.span)
    return _within(value, as_arrays)


def as_tensors(value: Any) -> Any:
    """Arrays as tensors, also those within other things."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.require(value, requirements=["C", "W"]))
    if isinstance(value, ArrayRows):
        return CacheRows(torch.from_numpy(value.index), value.span)
    return _within(value, as_tensors)


def _within(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(change, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: change(getattr(value, f.name)) for f in fields(value)})
    return value
