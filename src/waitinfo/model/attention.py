"""Multi-head attention with an additive score bias, with or without a cache."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, ClassVar, Concatenate, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from waitinfo.errors import unknown
from waitinfo.model.cache import KeyValueCache, Pages, StateCache
from waitinfo.model.config import CROSS_ATTENTION_MODULES, PLAIN
from waitinfo.model.views import AttentionReport, Memory, SelfView, SourceView

Attend = Callable[[Tensor, Tensor, Tensor, "Tensor | None", bool, float], Tensor]
SelfAttend = Callable[[Tensor, int, "Tensor | None", float], Tensor]
PAGED_WIDTHS = (16, 32, 64, 128)  # of a head, that the kernel for pages takes


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, T, d] -> [B, H, T, d/H]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """[B, H, T, d/H] -> [B, T, d]."""
    return x.transpose(1, 2).flatten(2)


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, causal: bool, dropout: float
) -> Tensor:
    """softmax(q k / sqrt(d) + bias) v, computed by the fused kernel that torch selects.

    With `info.self_bias`, these weights are beta of the paper (Eq. 9); with `info.consistency`,
    gamma (Eq. 11).
    The bias is [B, 1 or H, T or 1, S]. `causal` applies a plain causal mask instead of a bias.
    """
    if isinstance(keys, Pages) and isinstance(values, Pages):
        if bias is not None and (kernel := paged_kernel(keys)) is not None:
            return kernel(queries, keys, values, bias)
        keys, values = keys.gather(), values.gather()
    if bias is not None:
        shape = (queries.shape[0], queries.shape[1], queries.shape[2], keys.shape[2])
        bias = bias.to(queries.dtype).expand(shape)
    return F.scaled_dot_product_attention(
        queries, keys, values, attn_mask=bias, dropout_p=dropout, is_causal=causal
    )


@lru_cache(maxsize=1)
def _paged_attention() -> Callable[..., Tensor] | None:
    try:
        from waitinfo.model.kernels.rows import paged_attention
    except ImportError:  # Triton is not installed
        return None
    return paged_attention


def paged_kernel(keys: Pages) -> Callable[..., Tensor] | None:
    """The kernel that attends to pages where they lie, if there is one for this device."""
    if not keys.pool.is_cuda or keys.pool.dtype == torch.float64:
        return None
    return _paged_attention() if keys.pool.shape[3] in PAGED_WIDTHS else None


def split_projection(projected: Tensor, heads: int) -> tuple[Tensor, ...]:
    """Split packed queries, keys and values: [B, T, 3d] -> [B, H, T, d/H] each."""
    return tuple(split_heads(part, heads) for part in projected.chunk(3, dim=-1))


def self_attend(projected: Tensor, heads: int, bias: Tensor | None, dropout: float) -> Tensor:
    """Self-attention over packed queries, keys and values: [B, T, 3d] -> [B, T, d]."""
    queries, keys, values = split_projection(projected, heads)
    return merge_heads(attend(queries, keys, values, bias, bias is None, dropout))


class SelfAttention(nn.Module):
    """Self-attention of one layer."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.attend: SelfAttend = self_attend  # can be replaced by a fused kernel

    def forward(self, x: Tensor, view: SelfView, cache: KeyValueCache | None = None) -> Tensor:
        """[B, T, d] -> [B, T, d]."""
        projected = self.project(x)
        dropout = self.dropout if self.training else 0.0
        if cache is None or view.position is None:
            return self.out(self.attend(projected, self.heads, view.bias, dropout))
        queries, keys, values = split_projection(projected, self.heads)
        cache.put(keys, values, view.position.rows, view.position.at)
        keys, values = cache.view(view.position.rows, view.position.keys)
        mixed = attend(queries, keys, values, view.bias, view.bias is None, dropout)
        return self.out(merge_heads(mixed))


class RecurrentUnit(nn.Module):
    """In the place of a decoder's self-attention: the SSRU of Kim et al. (2019).

    c_t = f_t c_t-1 + (1 - f_t) W x_t with f_t = sigmoid(W_f x_t + b_f); its output is relu(c_t).
    All that it knows of earlier positions is one vector; attention keeps keys and values of each.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, 2 * width)  # W_f, then W

    def forward(self, x: Tensor, view: SelfView, cache: KeyValueCache | None = None) -> Tensor:
        """[B, T, d] -> [B, T, d]."""
        forget, fresh = self.project(x).chunk(2, dim=-1)
        forget = forget.sigmoid()
        fresh = (1 - forget) * fresh
        position = view.position
        if not isinstance(cache, StateCache) or position is None:
            return F.relu(torch.stack(self._states(forget, fresh, torch.zeros_like(x[:, 0])), 1))
        first = position.at[:, 0]
        states = torch.stack(self._states(forget, fresh, cache.before(position.rows, first)), 1)
        # Padding is behind the positions of a row, and not at the place that would come next.
        follows = position.at == first[:, None] + torch.arange(x.shape[1], device=x.device)
        count = follows.long().cumprod(1).sum(1)
        every = torch.arange(len(x), device=x.device)
        for back in (2, 1):
            last = count - back
            at = torch.where(last < 0, -1, first + last)
            cache.keep(states[every, last.clamp_min(0)], position.rows, at)
        return F.relu(states)

    @staticmethod
    def _states(forget: Tensor, fresh: Tensor, state: Tensor) -> list[Tensor]:
        found = []
        for kept, new in zip(forget.unbind(1), fresh.unbind(1), strict=True):
            state = kept * state + new
            found.append(state)
        return found


class CrossAttention(nn.Module):
    """Cross-attention of one decoder layer.

    Subclasses take the same arguments and may return an `AttentionReport`, which the system finds
    in `Decoded.extras`. A subclass that defines `name` is registered under it, as a value of
    `model.cross_attention`.
    """

    name: ClassVar[str] = PLAIN
    carries: ClassVar[bool] = False  # whether state passes from one target position to the next
    key_vectors: ClassVar[int] = 1  # key vectors per head and source token, concatenated

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.queries = nn.Linear(width, width)
        self.project = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.attend: Attend = attend

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" in vars(cls):
            known = CROSS_ATTENTIONS.setdefault(cls.name, cls)
            if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
                raise TypeError(f"two cross-attentions are named '{cls.name}': {known} and {cls}")
            CROSS_ATTENTIONS[cls.name] = cls  # the same class defined again, as in a notebook

    def from_plain(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Weights to begin with, given those of plain attention; others begin untrained."""
        return weights

    def memory(self, states: Tensor) -> Memory:
        """Keys and values of encoder states [B, S, d]."""
        keys, values = (split_heads(p, self.heads) for p in self.project(states).chunk(2, dim=-1))
        return Memory(keys, values)

    def forward(
        self, x: Tensor, memory: Memory, view: SourceView
    ) -> tuple[Tensor, AttentionReport | None]:
        """[B, T, d] -> [B, T, d]."""
        queries = split_heads(self.queries(x), self.heads)
        dropout = self.dropout if self.training else 0.0
        mixed = self.attend(queries, memory.keys, memory.values, view.bias, False, dropout)
        report = AttentionReport(weights=self.weights(x, memory, view)) if view.weigh else None
        return self.out(merge_heads(mixed)), report

    def weights(self, x: Tensor, memory: Memory, view: SourceView) -> Tensor:
        """What `forward` of this class weighs the source with: [B, T, d] -> [B, H, T, S]."""
        queries = split_heads(self.queries(x), self.heads)
        keys = memory.keys.gather() if isinstance(memory.keys, Pages) else memory.keys
        scores = queries @ keys.to(queries.dtype).transpose(-1, -2) / queries.shape[-1] ** 0.5
        exact = torch.promote_types(scores.dtype, torch.float32)
        return (scores.to(exact) + view.bias.to(exact)).softmax(-1)


# Values of `model.cross_attention` whose classes are imported.
CROSS_ATTENTIONS: dict[str, type[CrossAttention]] = {CrossAttention.name: CrossAttention}


def cross_attention(name: str) -> type[CrossAttention]:
    if name not in CROSS_ATTENTIONS and name in CROSS_ATTENTION_MODULES:
        importlib.import_module(CROSS_ATTENTION_MODULES[name])
    if name not in CROSS_ATTENTIONS:
        allowed = dict.fromkeys([*CROSS_ATTENTIONS, *CROSS_ATTENTION_MODULES])
        raise unknown("model.cross_attention", name, allowed)
    return CROSS_ATTENTIONS[name]


# Attention without cuDNN

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
