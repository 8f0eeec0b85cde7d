"""Disable cuDNN attention during calls of the model.

cuDNN builds a new plan for every shape, and the shapes of a stream grow with every step: on an H200
this made a word take 190 ms instead of 13. The other fused kernels accept any shape. The setting is
global to the process, so it is changed only around calls of the model and then restored.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


class OnDevice(Protocol):
    @property
    def device(self) -> torch.device: ...


M = TypeVar("M", bound=OnDevice)


class WithoutCudnn:
    """A context for many threads: the first to enter saves the setting, the last restores it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = torch.backends.cuda.cudnn_sdp_enabled()
                torch.backends.cuda.enable_cudnn_sdp(False)
            self._inside += 1

    def __exit__(self, *error: Any) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                torch.backends.cuda.enable_cudnn_sdp(self._before)


_context = WithoutCudnn()


def without_cudnn_attention(
    method: Callable[Concatenate[M, P], R],
) -> Callable[Concatenate[M, P], R]:
    """Decorate a method of a model: on a GPU, it runs without cuDNN attention."""

    @wraps(method)
    def call(model: M, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if model.device.type != "cuda":
            return method(model, *args, **kwargs)
        with _context:
            return method(model, *args, **kwargs)

    return call
