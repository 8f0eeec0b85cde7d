"""Attention without cuDNN's kernels.

cuDNN plans its attention anew for every shape, and the shapes of streams grow by one a step: on an
H200 that made a word take 190 ms instead of 13. The other fused kernels take any shape. The setting
belongs to the whole process, so it is changed around calls of the model only, and then restored.
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
    """A context for any number of threads: the first to enter saves, the last to leave restores."""

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
    """Let a method of a model on a GPU compute attention by other kernels than cuDNN's."""

    @wraps(method)
    def call(model: M, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if model.device.type != "cuda":
            return method(model, *args, **kwargs)
        with _context:
            return method(model, *args, **kwargs)

    return call
